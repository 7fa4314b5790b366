// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"flag"
	"fmt"
	"go/doc"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what is generated in documents anew")

// pictured says whether the picture has a package: those of the library and of the command
// line tool that are not for tests.
func pictured(tr tree, dir string) bool {
	module := tr.moduleDir(dir)
	return (module == "." || module == "cmd/otelctx") && !strings.HasPrefix(dir, testKit) &&
		!slices.Contains([]string{"internal/architecture", "internal/docscode", "cmd/otelctx/internal/hostile"}, dir)
}

// The picture of who imports whom, and the table of packages, are made of the code.
func TestPackages(t *testing.T) {
	tr := readTree(t)
	imports, synopses := map[string]row{}, map[string]string{}
	for _, f := range tr.files {
		if f.test || !pictured(tr, f.dir) {
			continue
		}
		if imports[f.dir] == nil {
			imports[f.dir] = row{}
		}
		for _, path := range f.imports() {
			if dir, ok := strings.CutPrefix(path, modulePath+"/"); ok && pictured(tr, dir) {
				imports[f.dir][dir] = true
			}
		}
		if text := f.ast.Doc.Text(); text != "" {
			synopses[f.dir] = brackets.Replace(new(doc.Package).Synopsis(text))
		}
	}
	compareGenerated(t, tr, "docs/packages.md", map[string]string{"picture": picture(imports), "packages": table(synopses)})
}

// compareGenerated compares parts of a document with what is made of the code, or with
// -update writes them. A part stands between two remarks with its name.
func compareGenerated(t *testing.T, tr tree, document string, parts map[string]string) {
	t.Helper()
	name := filepath.Join(tr.root, filepath.FromSlash(document))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	is := strings.ReplaceAll(string(text), "\r\n", "\n")
	want := is
	for part, content := range parts {
		begin, end := "<!-- "+part+": written by go test ./internal/architecture -update -->\n", "<!-- "+part+": end -->\n"
		before, rest, found := strings.Cut(want, begin)
		require.True(t, found, "%s has no %q", document, begin)
		_, after, found := strings.Cut(rest, end)
		require.True(t, found, "%s has no %q", document, end)
		want = before + begin + content + end + after
	}
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		return
	}
	assert.Equal(t, want, is, "go test ./internal/architecture -update writes it")
}

var (
	makeGroup  = regexp.MustCompile(`^##@ (.*)$`)
	makeTarget = regexp.MustCompile(`^([a-z0-9-]+):.*## (.*)$`)
)

// CONTRIBUTING.md has what make help prints.
func TestMakeHelp(t *testing.T) {
	tr := readTree(t)
	text, err := os.ReadFile(filepath.Join(tr.root, "Makefile"))
	require.NoError(t, err)
	var help strings.Builder
	help.WriteString("```\n")
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\r\n", "\n")) {
		line = strings.TrimSuffix(line, "\n")
		if m := makeGroup.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(&help, "\n%s\n", m[1])
		} else if m := makeTarget.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(&help, "  %-14s %s\n", m[1], m[2])
		}
	}
	help.WriteString("```\n")
	compareGenerated(t, tr, "CONTRIBUTING.md", map[string]string{"help": help.String()})
}

// brackets takes the brackets from links of Go's documentation.
var brackets = strings.NewReplacer("[", "", "]", "")

// table returns a table of packages, with what each says of itself first.
func table(synopses map[string]string) string {
	var s strings.Builder
	s.WriteString("| Package | What it says of itself |\n|---|---|\n")
	for _, dir := range sortedKeys(synopses) {
		fmt.Fprintf(&s, "| [`%s`](../%s) | %s |\n", dir, dir, strings.ReplaceAll(synopses[dir], "|", `\|`))
	}
	return s.String()
}

// picture returns a graph for Mermaid. It leaves out an import of a package that another
// import brings anyway.
func picture(imports map[string]row) string {
	var s strings.Builder
	s.WriteString("```mermaid\nflowchart TB\n")
	for _, group := range []struct{ name, title, prefix string }{
		{"tool", "command line tool", "cmd/otelctx"}, {"public", "public", ""}, {"hidden", "internal", "internal/"},
	} {
		fmt.Fprintf(&s, "  subgraph %s[%q]\n", group.name, group.title)
		for _, dir := range sortedKeys(imports) {
			if groupOf(dir) == group.prefix {
				fmt.Fprintf(&s, "    %s[%q]\n", node(dir), strings.TrimPrefix(strings.TrimPrefix(dir, "cmd/otelctx/"), "internal/"))
			}
		}
		s.WriteString("  end\n")
	}
	for _, from := range sortedKeys(imports) {
		for _, to := range sortedKeys(imports[from]) {
			if !implied(imports, from, to) {
				fmt.Fprintf(&s, "  %s --> %s\n", node(from), node(to))
			}
		}
	}
	return s.String() + "```\n"
}

// groupOf returns the prefix of the group that a package is in.
func groupOf(dir string) string {
	for _, prefix := range []string{"cmd/otelctx", "internal/"} {
		if strings.HasPrefix(dir, prefix) {
			return prefix
		}
	}
	return ""
}

// node returns the name that a package has in the graph.
func node(dir string) string { return strings.ReplaceAll(dir, "/", "_") }

// implied reports whether a package that from imports needs to, too.
func implied(imports map[string]row, from, to string) bool {
	for other := range imports[from] {
		if other != to && reaches(imports, other, to) {
			return true
		}
	}
	return false
}

// reaches reports whether from needs to, by whatever way.
func reaches(imports map[string]row, from, to string) bool {
	for next := range imports[from] {
		if next == to || reaches(imports, next, to) {
			return true
		}
	}
	return false
}

func TestPicture(t *testing.T) {
	got := picture(map[string]row{
		"reader": {"internal/a": true, "internal/b/c": true}, "internal/a": {"internal/b/c": true}, "internal/b/c": {},
		"cmd/otelctx/internal/d": {"reader": true},
	})
	assert.Equal(t, "```mermaid\nflowchart TB\n"+`  subgraph tool["command line tool"]
    cmd_otelctx_internal_d["d"]
  end
  subgraph public["public"]
    reader["reader"]
  end
  subgraph hidden["internal"]
    internal_a["a"]
    internal_b_c["b/c"]
  end
  cmd_otelctx_internal_d --> reader
  internal_a --> internal_b_c
  reader --> internal_a
`+"```\n", got)
}
