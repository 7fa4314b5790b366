// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// public are the packages that others import.
var public = []string{"reader", "resourcepublisher", "ringbuf", "scopedattr", "spanctx", "universalprofiling"}

// Every exported name says what it promises: also constants in groups, the fields of
// structs and the methods of interfaces, which linters pass over.
func TestDocumentation(t *testing.T) {
	tr := readTree(t)
	for _, name := range public {
		documented := documentation{t: t, pkg: name}
		p := tr.document(t, name)
		assert.Greater(t, len(strings.Fields(p.Doc)), 20, "package %s says what it is for", name)
		documented.values(p.Consts)
		documented.values(p.Vars)
		documented.functions("", p.Funcs)
		for _, typ := range p.Types {
			assert.NotEmpty(t, typ.Doc, "%s.%s", name, typ.Name)
			documented.values(typ.Consts)
			documented.values(typ.Vars)
			documented.functions("", typ.Funcs)
			documented.functions(typ.Name+".", typ.Methods)
			documented.members(typ)
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

// document reads the documentation of a package, for whatever its files are built.
func (tr tree) document(t *testing.T, dir string) *doc.Package {
	t.Helper()
	// Package doc changes what it reads: the files are parsed once more.
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(tr.root, dir, "*.go"))
	require.NoError(t, err)
	var files []*ast.File
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, p, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(set, files, modulePath+"/"+dir)
	require.NoError(t, err)
	return p
}

// documentation checks the names of one package.
type documentation struct {
	t   *testing.T
	pkg string
}

func (d documentation) functions(of string, funcs []*doc.Func) {
	for _, f := range funcs {
		assert.NotEmpty(d.t, f.Doc, "%s.%s%s", d.pkg, of, f.Name)
	}
}

// values checks constants and variables: one that stands alone may be documented by its
// group.
func (d documentation) values(values []*doc.Value) {
	for _, v := range values {
		for _, spec := range v.Decl.Specs {
			spec, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			own := spec.Doc.Text() + spec.Comment.Text()
			if len(v.Decl.Specs) == 1 {
				own += v.Doc
			}
			for _, name := range spec.Names {
				if name.IsExported() {
					assert.NotEmpty(d.t, own, "%s.%s", d.pkg, name.Name)
				}
			}
		}
	}
}

// members checks the fields of structs and the methods of interfaces. A comment may be
// about several of them: it stands above and names them.
func (d documentation) members(typ *doc.Type) {
	for _, spec := range typ.Decl.Specs {
		spec, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		var fields *ast.FieldList
		switch kind := spec.Type.(type) {
		case *ast.StructType:
			fields = kind.Fields
		case *ast.InterfaceType:
			fields = kind.Methods
		default:
			continue
		}
		var above string
		for _, f := range fields.List {
			above += f.Doc.Text() + f.Comment.Text()
			for _, name := range f.Names {
				if name.IsExported() {
					assert.Regexp(d.t, `\b`+name.Name+`\b`, above, "%s.%s.%s: say what it is", d.pkg, typ.Name, name.Name)
				}
			}
		}
	}
}
