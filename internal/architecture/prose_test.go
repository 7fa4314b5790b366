// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// How many words a sentence may have. A comment stands beside code, which takes part of the
// reader's attention. Documents name commands, files and versions, each of which is a word.
const (
	commentBar  = 25
	documentBar = 30
)

// unclear are phrases that make a reader stop, with plainer words for them.
var unclear = map[string]string{
	"as far as": "within, if, what",
	"for want":  "for lack",
	"give way":  "be evicted, be dropped",
	"gives way": "is evicted, is dropped",
	"mostly":    "usually, most of",
	"to be had": "there is, can be",
}

// sentence is one sentence, with where its paragraph begins.
type sentence struct {
	place string
	text  string
}

// words returns how many words s has. What has neither letter nor digit is no word.
func (s sentence) words() int {
	n := 0
	for word := range strings.FieldsSeq(s.text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

// unclear returns the unclear phrases in s.
func (s sentence) unclear() []string {
	text := " " + strings.Join(strings.FieldsFunc(strings.ToLower(s.text), func(r rune) bool { return !unicode.IsLetter(r) }), " ") + " "
	var out []string
	for _, phrase := range sortedKeys(unclear) {
		if strings.Contains(text, " "+phrase+" ") {
			out = append(out, phrase)
		}
	}
	return out
}

var (
	// sentenceEnd is where a sentence may end: a mark, closing signs and white space.
	sentenceEnd = regexp.MustCompile(`[.!?]["')\]*_]*\s+`)
	// abbreviation is a word with a dot that ends no sentence.
	abbreviation = regexp.MustCompile(`(?:^|[\s(])(?:e\.g|i\.e|vs|cf|resp|approx)\.\s+$`)
)

// sentences returns the sentences of a paragraph.
func sentences(place, paragraph string) []sentence {
	var out []sentence
	begin := 0
	add := func(end int) {
		if text := strings.Join(strings.Fields(paragraph[begin:end]), " "); text != "" {
			out = append(out, sentence{place, text})
		}
		begin = end
	}
	for _, match := range sentenceEnd.FindAllStringIndex(paragraph, -1) {
		if !abbreviation.MatchString(paragraph[begin:match[1]]) {
			add(match[1])
		}
	}
	add(len(paragraph))
	return out
}

// listItem begins an item of a list, in a comment or in a document.
var listItem = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.)\s+`)

// paragraphs joins lines to paragraphs, and calls each with the number of its first line.
// An empty line, and an item of a list, begins a new one.
func paragraphs(lines []string, each func(line int, text string)) {
	first, text := 0, ""
	flush := func() {
		if text != "" {
			each(first, text)
		}
		text = ""
	}
	for i, line := range lines {
		if mark := listItem.FindString(line); mark != "" {
			flush()
			line = line[len(mark):]
		}
		line = strings.TrimSpace(line)
		if line == "" {
			flush()
			continue
		}
		if text == "" {
			first = i
		}
		text += line + " "
	}
	flush()
}

// directive is a comment for a tool. Those of linters have a reason, which is not prose.
var directive = regexp.MustCompile(`^//(?:[a-z0-9]+:|nolint|line |export )`)

// blockMargin is what begins each line of some block comments.
var blockMargin = regexp.MustCompile(`(?m)^ \*`)

// exampleOutput begins the comment that says what an example prints.
var exampleOutput = regexp.MustCompile(`^(?i:unordered )?[Oo]utput:`)

// inComments returns the sentences of the comments of a Go file.
func (f file) inComments(tr tree) []sentence {
	var out []sentence
	for _, group := range f.ast.Comments {
		if exampleOutput.MatchString(group.Text()) {
			continue
		}
		var lines []string
		for _, c := range group.List {
			lines = append(lines, commentLines(c.Text)...)
		}
		begin := tr.set.Position(group.Pos())
		out = append(out, inComment(tr.rel(begin.Filename), begin.Line, lines)...)
	}
	return out
}

// commentLines returns the lines of a comment without its signs. A directive is an empty line.
func commentLines(text string) []string {
	switch {
	case directive.MatchString(text):
		return []string{""}
	case strings.HasPrefix(text, "//"):
		return []string{strings.TrimPrefix(text, "//")}
	default:
		return strings.Split(blockMargin.ReplaceAllString(strings.Trim(text, "/*"), ""), "\n")
	}
}

// inComment returns the sentences of a comment. Code in it, which is indented, and headings
// are left out.
func inComment(name string, begin int, lines []string) []sentence {
	inItem := false
	for i, line := range lines {
		switch {
		case listItem.MatchString(line):
			inItem = true
		case strings.TrimSpace(line) == "":
			inItem = false
		case strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    ") && !inItem || strings.HasPrefix(line, " # "):
			lines[i] = ""
		}
	}
	var out []sentence
	paragraphs(lines, func(line int, text string) {
		out = append(out, sentences(fmt.Sprintf("%s:%d", name, begin+line), text)...)
	})
	return out
}

// sourceExtensions are those of files with comments like C's.
var sourceExtensions = []string{".c", ".h", ".s"}

// cToken is a comment of C or of Go's assembly, or a string or character, which may look
// like the begin of one.
var cToken = regexp.MustCompile(`(?s)"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/`)

// inSource returns the sentences of the comments of a C or assembly file. Comments that have
// their lines for themselves, one below the other, are one.
func inSource(name, text string) []sentence {
	var out []sentence
	var lines []string
	begin, end := 0, 0
	flush := func() {
		out = append(out, inComment(name, begin, lines)...)
		lines = nil
	}
	for _, match := range cToken.FindAllStringIndex(text, -1) {
		comment := text[match[0]:match[1]]
		if comment[0] != '/' {
			continue
		}
		line := 1 + strings.Count(text[:match[0]], "\n")
		alone := strings.TrimSpace(text[strings.LastIndexByte(text[:match[0]], '\n')+1:match[0]]) == ""
		if !alone || line != end+1 {
			flush()
		}
		if lines == nil {
			begin = line
		}
		lines = append(lines, commentLines(comment)...)
		end = line + strings.Count(comment, "\n")
		if !alone {
			flush()
		}
	}
	flush()
	return out
}

var (
	codeSpan = regexp.MustCompile("`+[^`]+`+")
	image    = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	link     = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	fence    = regexp.MustCompile("^\\s*```")
	remark   = regexp.MustCompile(`(?s)<!--.*?-->`)
)

// inDocument returns the sentences of a Markdown document. Code, tables, headings, pictures
// and remarks are left out. A code span is one word, and of a link its text counts.
func inDocument(name, text string) []sentence {
	text = remark.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	lines := strings.Split(text, "\n")
	code := false
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		if fence.MatchString(line) {
			code = !code
			lines[i] = ""
			continue
		}
		if code || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#") {
			lines[i] = ""
			continue
		}
		lines[i] = strings.TrimPrefix(trimmed, "> ")
		if listItem.MatchString(line) {
			lines[i] = line
		}
	}
	var out []sentence
	paragraphs(lines, func(line int, text string) {
		text = image.ReplaceAllString(text, "")
		text = codeSpan.ReplaceAllString(text, "code")
		text = link.ReplaceAllString(text, "$1")
		out = append(out, sentences(fmt.Sprintf("%s:%d", name, line+1), text)...)
	})
	return out
}

// Nobody has to read a sentence twice because it is long. The whole project is checked: every
// comment in code that is not generated, and the prose of every document.
func TestSentences(t *testing.T) {
	tr := readTree(t)
	for _, f := range tr.files {
		if !ast.IsGenerated(f.ast) {
			checkSentences(t, f.inComments(tr), commentBar)
		}
	}
	for _, name := range tr.others {
		extension := path.Ext(name)
		if extension != ".md" && !slices.Contains(sourceExtensions, extension) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(tr.root, filepath.FromSlash(name)))
		require.NoError(t, err)
		if extension == ".md" {
			checkSentences(t, inDocument(name, string(text)), documentBar)
		} else {
			checkSentences(t, inSource(name, string(text)), commentBar)
		}
	}
}

// checkSentences fails the test for each sentence with more words than bar, or with an unclear
// phrase.
func checkSentences(t *testing.T, all []sentence, bar int) {
	t.Helper()
	for _, s := range all {
		if n := s.words(); n > bar {
			t.Errorf("%s: a sentence of %d words, at most %d are easy to read: %s", s.place, n, bar, s.text)
		}
		for _, phrase := range s.unclear() {
			t.Errorf("%s: %q is not plain, say %s: %s", s.place, phrase, unclear[phrase], s.text)
		}
	}
}

func TestInComments(t *testing.T) {
	const source = `package p

// F does this. x.Y is not the
// end, e.g. of a sentence.
//
//	code is left out
//
//   - an item
//     with two lines
//   - another one
func F() {} //nolint:all // A reason.

// Output: is left out.
`
	tr := tree{root: "/root", set: token.NewFileSet()}
	parsed, err := parser.ParseFile(tr.set, "/root/dir/f.go", source, parser.ParseComments)
	require.NoError(t, err)
	assert.Equal(t, []sentence{
		{"dir/f.go:3", "F does this."},
		{"dir/f.go:3", "x.Y is not the end, e.g. of a sentence."},
		{"dir/f.go:8", "an item with two lines"},
		{"dir/f.go:10", "another one"},
	}, file{ast: parsed}.inComments(tr))
}

func TestInSource(t *testing.T) {
	const source = `// Copyright.

#define SIZE 1 // bytes
// One sentence, with a "string". It's
// another one.
static char s[] = "// No \" comment /*", c = '"'; /* Behind
 * code. */
`
	assert.Equal(t, []sentence{
		{"f.c:1", "Copyright."},
		{"f.c:3", "bytes"},
		{"f.c:4", `One sentence, with a "string".`},
		{"f.c:4", "It's another one."},
		{"f.c:6", "Behind code."},
	}, inSource("f.c", source))
}

func TestInDocument(t *testing.T) {
	const document = `# A heading. It is left out.

One sentence, with a [link to
another place](https://example.com/a.b) and 'a command'. "Is this one?" Yes.

'''
code. and more
'''

| a table | is left out |
|---|---|

<!-- A remark.
Of two lines. -->
- **An item** ![with a picture](a.png)
- Another one
`
	assert.Equal(t, []sentence{
		{"f.md:3", "One sentence, with a link to another place and code."},
		{"f.md:3", `"Is this one?"`},
		{"f.md:3", "Yes."},
		{"f.md:15", "**An item**"},
		{"f.md:16", "Another one"},
	}, inDocument("f.md", strings.ReplaceAll(document, "'", "`")))
	assert.Equal(t, 7, sentence{text: "This - a sign - is not a word."}.words())
}

func TestUnclear(t *testing.T) {
	assert.Equal(t, []string{"as far as", "mostly"}, sentence{text: "Mostly it is right, as\nfar as (that) goes."}.unclear())
	assert.Empty(t, sentence{text: "Almost all of it is right."}.unclear())
}
