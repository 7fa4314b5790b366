// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/ast"
	"go/doc"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// public are the packages that others import.
var public = []string{"instrumentation", "reader", "resourcepublisher", "ringbuf", "scopedattr", "scopedattr/contextattr", "spanctx", "universalprofiling"}

// Every exported name says what it promises: also constants in groups, the fields of
// structs and the methods of interfaces, which linters pass over.
func TestDocumentation(t *testing.T) {
	tr := readTree(t)
	for _, name := range public {
		about := 0
		for _, f := range tr.files {
			if f.dir != name || f.test {
				continue
			}
			about += len(strings.Fields(f.ast.Doc.Text()))
			for _, d := range f.ast.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
						assert.NotEmpty(t, d.Doc.Text(), "%s.%s%s", name, receiver(d), d.Name)
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						checkSpec(t, name, d, spec)
					}
				}
			}
		}
		assert.Greater(t, about, 20, "package %s says what it is for", name)
	}
}

// receiver returns the name of the type that a method belongs to, or "" for a function.
func receiver(f *ast.FuncDecl) string {
	name := ""
	if f.Recv != nil {
		ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && name == "" {
				name = id.Name
			}
			return true
		})
	}
	return name
}

// checkSpec checks constants, variables and types. One that stands alone may be documented by
// its group.
func checkSpec(t *testing.T, pkg string, group *ast.GenDecl, spec ast.Spec) {
	t.Helper()
	own := ""
	if len(group.Specs) == 1 {
		own = group.Doc.Text()
	}
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() {
				assert.NotEmpty(t, own+spec.Doc.Text()+spec.Comment.Text(), "%s.%s", pkg, name)
			}
		}
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return
		}
		assert.NotEmpty(t, own+spec.Doc.Text(), "%s.%s", pkg, spec.Name)
		switch kind := spec.Type.(type) {
		case *ast.StructType:
			checkMembers(t, pkg+"."+spec.Name.Name, kind.Fields)
		case *ast.InterfaceType:
			checkMembers(t, pkg+"."+spec.Name.Name, kind.Methods)
		}
	}
}

// checkMembers checks the fields of a struct or the methods of an interface. A comment may
// be about several of them: it stands above and names them.
func checkMembers(t *testing.T, typ string, members *ast.FieldList) {
	t.Helper()
	var above string
	for _, m := range members.List {
		above += m.Doc.Text() + m.Comment.Text()
		for _, name := range m.Names {
			if name.IsExported() {
				assert.Regexp(t, `\b`+name.Name+`\b`, above, "%s.%s: say what it is", typ, name)
			}
		}
	}
}

// Every package that others import has examples whose output is checked.
func TestExamples(t *testing.T) {
	tr := readTree(t)
	for _, name := range public {
		var checked int
		for _, f := range tr.files {
			if f.dir != name || !f.test {
				continue
			}
			for _, example := range doc.Examples(f.ast) {
				assert.NotEmpty(t, example.Output, "%s.Example%s: no Output, so nobody runs it", name, example.Name)
				checked++
			}
		}
		assert.NotZero(t, checked, "package %s has no example", name)
	}
}
