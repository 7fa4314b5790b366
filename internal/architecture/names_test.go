// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// stemBar is how many names of a package may differ by their endings only: show, shown,
// shows, Shows and ShownBy are mixed up.
const stemBar = 4

var (
	// nameWord is one word of a name.
	nameWord = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)
	// particle is a word that makes no name another one.
	particle = regexp.MustCompile(`^(?:all|as|at|by|for|from|in|into|of|off|on|out|to|up|with)$`)
	// ending is what English adds to a word.
	ending = regexp.MustCompile(`^(?:(.{3,}?)(?:ings?|ers?|ed|en|es|e|n)|(.{2,}?[^s])s)$`)
	// doubled is a consonant that English doubles before an ending.
	doubled = regexp.MustCompile(`(?:bb|dd|gg|mm|nn|pp|rr|tt)$`)
)

// stem returns what a name of one word shares with its inflections, or "" for a name of
// several words. Particles do not count.
func stem(name string) string {
	var out string
	for _, word := range nameWord.FindAllString(name, -1) {
		word = strings.ToLower(word)
		switch {
		case out == "":
			out = word
		case !particle.MatchString(word):
			return ""
		}
	}
	for {
		match := ending.FindStringSubmatch(out)
		if match == nil {
			return out
		}
		out = match[1] + match[2]
		if doubled.MatchString(out) {
			out = out[:len(out)-1]
		}
	}
}

// declared returns the names that f declares for its package: of functions, methods, types,
// fields, variables and constants. Those within functions are not among them.
func (f file) declared() []string {
	var out []string
	for _, decl := range f.ast.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			out = append(out, decl.Name.Name)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					out = append(out, spec.Name.Name)
					ast.Inspect(spec.Type, func(n ast.Node) bool {
						if field, ok := n.(*ast.Field); ok {
							out = append(out, namesOf(field.Names)...)
						}
						_, function := n.(*ast.FuncType)
						return !function
					})
				case *ast.ValueSpec:
					out = append(out, namesOf(spec.Names)...)
				}
			}
		}
	}
	return out
}

func namesOf(identifiers []*ast.Ident) []string {
	var out []string
	for _, i := range identifiers {
		out = append(out, i.Name)
	}
	return out
}

// A reader tells the names of a package apart.
func TestStems(t *testing.T) {
	packages := map[string]map[string]row{}
	for _, f := range readTree(t).files {
		if f.test || ast.IsGenerated(f.ast) {
			continue
		}
		if packages[f.dir] == nil {
			packages[f.dir] = map[string]row{}
		}
		for _, name := range f.declared() {
			if s := stem(name); s != "" {
				add(packages[f.dir], s, name)
			}
		}
	}
	for _, dir := range sortedKeys(packages) {
		for _, s := range sortedKeys(packages[dir]) {
			if names := sortedKeys(packages[dir][s]); len(names) > stemBar {
				t.Errorf("%s: names that differ by their endings only: %s", dir, strings.Join(names, " "))
			}
		}
	}
}

func TestStem(t *testing.T) {
	for want, names := range map[string]string{
		"show":    "show shown shows Shows ShownBy showing",
		"read":    "read Reader readers reads ReadFrom",
		"writ":    "write writer written writes",
		"run":     "run runs running Runner",
		"publish": "publish published Publisher publishes",
		"clo":     "close closed Close",
		"is":      "is",
		"":        "openFile NewReader",
	} {
		for name := range strings.FieldsSeq(names) {
			assert.Equal(t, want, stem(name), name)
		}
	}
}
