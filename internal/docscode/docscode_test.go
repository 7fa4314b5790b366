// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package docscode

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// block is Go code in a document, maybe indented as part of a list.
var block = regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```$")

// function returns a function whose body is code.
func function(t *testing.T, name, code string) string {
	t.Helper()
	var f strings.Builder
	fmt.Fprintf(&f, "func %s() error {\n%s\n", name, code)
	file, err := parser.ParseFile(token.NewFileSet(), name, "package p\n"+f.String()+"return nil\n}", 0)
	require.NoError(t, err, code)
	// What is declared in it need not be used.
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

func TestCodeCompiles(t *testing.T) {
	documents, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	prelude, err := os.ReadFile("testdata/prelude.go")
	require.NoError(t, err)
	var program strings.Builder
	program.Write(prelude)
	blocks := 0
	for _, document := range append(documents, "../../README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		found := block.FindAllStringSubmatch(string(text), -1)
		assert.Len(t, found, strings.Count(string(text), "```go\n"), document)
		for _, match := range found {
			blocks++
			fmt.Fprintf(&program, "\n// %s\n%s", document, function(t, fmt.Sprintf("block%d", blocks), match[1]))
		}
	}
	require.NotZero(t, blocks)
	file := filepath.Join(t.TempDir(), "documents.go")
	require.NoError(t, os.WriteFile(file, []byte(program.String()), 0o600))
	// It is no program, so nothing is linked, and what it imports the tests have compiled.
	out, err := exec.Command("go", "build", file).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, program.String())
}
