// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// modulePath is the library's module path. The path of a nested module is modulePath plus its
// directory.
const modulePath = "github.com/otelctx/otelctx"

// tree is the project's source: all Go files, for every platform.
type tree struct {
	root  string
	files []file
	// others lists the paths of all other files, slash-separated and relative to root.
	others []string
}

type file struct {
	dir  string // slash-separated and relative to the root, "." for the root
	test bool   // a _test.go file, or in a testdata directory
	ast  *ast.File
}

// readTree returns the project's source, which callers must not modify. It skips the test if only
// the library's module is present, as in the module cache.
func readTree(t *testing.T) tree {
	t.Helper()
	if _, err := os.Stat(filepath.Join("..", "..", "cmd", "otelctx", "go.mod")); err != nil {
		t.Skip("needs a clone of the repository: ", err)
	}
	out, err := parsed()
	require.NoError(t, err)
	return out
}

// parsed parses the project.
var parsed = sync.OnceValues(func() (tree, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return tree{}, err
	}
	out, set := tree{root: root}, token.NewFileSet()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || path == filepath.Join(root, "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !strings.HasSuffix(rel, ".go") {
			out.others = append(out.others, rel)
			return nil
		}
		ast, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		out.files = append(out.files, file{
			dir:  dir,
			test: strings.HasSuffix(rel, "_test.go") || slices.Contains(strings.Split(dir, "/"), "testdata"),
			ast:  ast,
		})
		return nil
	})
	return out, err
})

func (f file) imports() []string {
	var out []string
	for _, spec := range f.ast.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has accepted it already
		}
		out = append(out, path)
	}
	return out
}

// goMod is the part of the output of "go mod edit -json" that the tests need.
type goMod struct {
	dir     string
	Module  struct{ Path string }
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

// modules returns the go.mod files of the tree.
func (tr tree) modules(t *testing.T) []goMod {
	t.Helper()
	out, err := modulesOnce()
	require.NoError(t, err)
	return out
}

var modulesOnce = sync.OnceValues(func() ([]goMod, error) {
	tr, err := parsed()
	if err != nil {
		return nil, err
	}
	var out []goMod
	for _, path := range tr.others {
		if dir, name := filepath.Split(path); name == "go.mod" {
			m := goMod{dir: filepath.ToSlash(filepath.Clean(dir))}
			text, err := tr.goTool(dir, nil, "mod", "edit", "-json")
			if err == nil {
				err = json.Unmarshal(text, &m)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			out = append(out, m)
		}
	}
	return out, nil
})

// goTool runs the go command in dir and returns what it prints.
func (tr tree) goTool(dir string, env []string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(tr.root, filepath.FromSlash(dir))
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w: %s", strings.Join(args, " "), dir, err, stderr.String())
	}
	return out, nil
}

// moduleOf returns the path of the innermost module that contains the package at path, or "" if
// none of modules does.
func moduleOf(path string, modules []string) string {
	var out string
	for _, m := range modules {
		if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(out) {
			out = m
		}
	}
	return out
}

// short returns the name that the tables use for a module or package.
func short(path string) string {
	for _, prefix := range []string{modulePath + "/", "go.opentelemetry.io/", "golang.org/", "google.golang.org/", "github.com/"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			return rest
		}
	}
	return path
}

// row is the set of words in a table row.
type row map[string]bool

func add(rows map[string]row, name, word string) {
	if rows[name] == nil {
		rows[name] = row{}
	}
	rows[name][word] = true
}

// compare fails the test for each difference between table and found. The order of words in a row
// does not matter.
func compare(t *testing.T, table map[string]string, found map[string]row) {
	t.Helper()
	for _, name := range sortedKeys(found) {
		want, ok := table[name]
		if words := strings.Join(sortedKeys(found[name]), " "); !ok {
			t.Errorf("missing row:\n\t%q: %q,", name, words)
		}
		for _, word := range sortedKeys(found[name]) {
			if ok && !contains(want, word) {
				t.Errorf("%s: %s is not in the table's row", name, word)
			}
		}
	}
	for _, name := range sortedKeys(table) {
		for word := range strings.FieldsSeq(table[name]) {
			if !found[name][word] {
				t.Errorf("%s: the row lists %s, which is no longer used", name, word)
			}
		}
	}
}

func contains(words, word string) bool { return slices.Contains(strings.Fields(words), word) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
