// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package docscode

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const root = "../.."

// block matches a block of Go code. The block is indented if it is part of a list.
var block = regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```$")

// benchmarks is the module that depends on the libraries of real services.
const benchmarks = "benchmarks"

// modules lists documents whose code is compiled as part of a module other than the library's, with
// the name of that module. The declarations that the code needs are in testdata, in one directory
// per module.
var modules = map[string]string{
	"docs/getting-started.md": benchmarks,
	"docs/migration.md":       benchmarks,
}

// readDocuments returns the text of all documents by path. It skips the test if the package is
// tested in the module cache, which contains only the library's module.
func readDocuments(t *testing.T) map[string]string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, benchmarks, "go.mod")); err != nil {
		t.Skip("needs a clone of the repository: ", err)
	}
	documents := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || path == filepath.Join(root, "bin")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		documents[filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))] = string(text)
		return err
	}))
	return documents
}

func function(t *testing.T, name, code string) string {
	t.Helper()
	var f strings.Builder
	fmt.Fprintf(&f, "func %s() error {\n%s\n", name, code)
	file, err := parser.ParseFile(token.NewFileSet(), name, "package p\n"+f.String()+"return nil\n}", 0)
	require.NoError(t, err, code)
	// The compiler rejects unused variables, so use each variable that the code declares.
	for _, statement := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if assign, ok := statement.(*ast.AssignStmt); ok && assign.Tok == token.DEFINE {
			for _, left := range assign.Lhs {
				fmt.Fprintf(&f, "_ = %s\n", left.(*ast.Ident).Name)
			}
		}
	}
	f.WriteString("return nil\n}\n")
	return f.String()
}

// check compiles a Go file as part of a module, without linking it. make test-all also vets it, which
// includes vetting all that it imports, and checks code that uses the libraries of real services.
func check(t *testing.T, module, name, code string) {
	t.Helper()
	if module == benchmarks && !testenv.All() {
		return
	}
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
	cmd := exec.Command("go", "build", file)
	if testenv.All() {
		cmd = exec.Command("go", "vet", file)
	}
	cmd.Dir = filepath.Join(root, filepath.FromSlash(module))
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s\n%s", out, code)
}

// Every block of Go code in a document compiles: as a program if it declares package main,
// otherwise as the body of a function.
func TestCodeCompiles(t *testing.T) {
	functions := map[string]*strings.Builder{}
	blocks := 0
	for document, text := range readDocuments(t) {
		module := modules[document]
		found := block.FindAllStringSubmatch(text, -1)
		assert.Len(t, found, strings.Count(text, "```go\n"), document)
		for _, match := range found {
			blocks++
			if strings.HasPrefix(match[1], "package main\n") {
				check(t, module, "main.go", strings.Replace(match[1], "package main", "package p", 1))
				continue
			}
			if functions[module] == nil {
				prelude, err := os.ReadFile(filepath.Join("testdata", "prelude", filepath.FromSlash(module), "prelude.go"))
				require.NoError(t, err)
				functions[module] = new(strings.Builder)
				functions[module].Write(prelude)
			}
			fmt.Fprintf(functions[module], "\n// %s\n%s", document, function(t, fmt.Sprintf("block%d", blocks), match[1]))
		}
	}
	require.NotZero(t, blocks)
	for module, code := range functions {
		check(t, module, "documents.go", code.String())
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	// noAnchor matches the characters that GitHub removes from a heading to form its anchor.
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors of a document's headings.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		title := link.ReplaceAllString(match[1], "]")
		name := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for n := 0; ; n++ {
			unique := name
			if n > 0 {
				unique = fmt.Sprintf("%s-%d", name, n)
			}
			if !out[unique] {
				out[unique] = true
				break
			}
		}
	}
	return out
}

// Links to files and headings in the repository have a target.
func TestLinks(t *testing.T) {
	documents := readDocuments(t)
	links := 0
	for document, text := range documents {
		for _, match := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(match[1], "#")
			to := filepath.ToSlash(filepath.Join(filepath.Dir(document), path))
			if path == "" {
				to = document
			}
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(to)))
			assert.NoError(t, err, "%s links to %s", document, match[1])
			if text, ok := documents[to]; ok && anchor != "" {
				assert.True(t, anchors(text)[anchor], "%s links to %s: no such heading", document, match[1])
			}
		}
	}
	require.NotZero(t, links)
}

func TestAnchors(t *testing.T) {
	assert.Equal(t, map[string]bool{"a-c--d-e": true, "again": true, "again-1": true},
		anchors("# A `c` & [D, e](f.md#g)\ntext\n## Again\n```sh\n# no heading\n```\n## Again\n"))
}

// identifier matches the path of a file or directory of the project, in backquotes.
var identifier = regexp.MustCompile("`((?:internal|cmd|benchmarks|collector|docs|example)/[\\w./-]+)`")

// release matches the version in a release tag, such as `collector/v1.2.3`, which looks like a
// path.
var release = regexp.MustCompile(`/v(?:X\.Y\.Z|\d+\.\d+\.\d+)`)

// Every path in backquotes in a document must exist. The changelog is exempt, because it also names
// removed files.
func TestPaths(t *testing.T) {
	paths := 0
	for document, text := range readDocuments(t) {
		if document == "CHANGELOG.md" {
			continue
		}
		for _, match := range identifier.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if release.MatchString(match[1]) {
				continue
			}
			paths++
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(match[1])))
			assert.NoError(t, err, "%s names %s", document, match[1])
		}
	}
	require.NotZero(t, paths)
}
