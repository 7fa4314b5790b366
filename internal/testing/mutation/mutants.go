// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of one file.
type mutant struct {
	id      string
	file    string // relative to the root
	source  []byte
	from    int // the bytes [from, to) become with
	to      int
	with    string
	change  string
	line    int
	context string // the function that it is in
}

func (m *mutant) place() string { return fmt.Sprintf("%s:%d", m.file, m.line) }

func (m *mutant) apply() []byte {
	return slices.Concat(m.source[:m.from], []byte(m.with), m.source[m.to:])
}

// find returns every mutant of a subject, in the order in which they are to be taken.
func (s *subject) find(root string) ([]mutant, error) {
	var out []mutant
	for _, dir := range s.dirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := e.Name()
			file := filepath.Join(dir, name)
			source, err := os.ReadFile(filepath.Join(root, file))
			if err != nil && !e.IsDir() {
				return nil, err
			}
			var found []mutant
			switch {
			case strings.HasSuffix(name, ".bpf.c"):
				found = inC(source)
			case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, "_bpfel.go"):
				if built, err := build.Default.MatchFile(filepath.Join(root, dir), name); err != nil || !built {
					continue
				}
				if found, err = inGo(source); err != nil {
					return nil, err
				}
			}
			for i := range found {
				found[i].file = file
			}
			out = append(out, identify(source, found)...)
		}
	}
	slices.SortFunc(out, func(a, b mutant) int { return cmp.Compare(a.id, b.id) })
	return out, nil
}

// identify gives each mutant of a file its ID: a hash of what it changes, in which line of
// which function, without the line's number.
func identify(source []byte, mutants []mutant) []mutant {
	seen := map[string]int{}
	for i := range mutants {
		m := &mutants[i]
		m.source = source
		m.line = 1 + strings.Count(string(source[:m.from]), "\n")
		begin := bytes.LastIndexByte(source[:m.from], '\n') + 1
		end := m.from + strings.IndexByte(string(source[m.from:])+"\n", '\n')
		key := strings.Join([]string{m.file, m.context, strings.TrimSpace(string(source[begin:end])), m.change}, "\x00")
		seen[key]++
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, seen[key]))
		m.id = hex.EncodeToString(sum[:6])
	}
	return mutants
}

// swapped are operators and what takes their place.
var swapped = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
}

var opposite = map[string]string{strconv.FormatBool(true): strconv.FormatBool(false), strconv.FormatBool(false): strconv.FormatBool(true)}

// inGo returns the mutants of a Go file. They swap operators, leave out statements, and
// exchange the constants true and false.
func inGo(source []byte) ([]mutant, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []mutant
	function := ""
	add := func(from, to token.Pos, with, change string) {
		out = append(out, mutant{
			from: set.Position(from).Offset, to: set.Position(to).Offset, with: with, change: change, context: function,
		})
	}
	remove := func(n ast.Node) {
		text := string(source[set.Position(n.Pos()).Offset:set.Position(n.End()).Offset])
		text, _, _ = strings.Cut(text, "\n")
		add(n.Pos(), n.End(), "", "remove "+text)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		function = f.Name.Name
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				for _, op := range swapped[n.Op] {
					add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), op.String(), n.Op.String()+" to "+op.String())
				}
			case *ast.Ident:
				if other := opposite[n.Name]; other != "" {
					add(n.Pos(), n.End(), other, n.Name+" to "+other)
				}
			case *ast.IfStmt:
				add(n.Cond.Pos(), n.Cond.Pos(), "false && ", "if never")
			case *ast.ExprStmt, *ast.DeferStmt, *ast.IncDecStmt, *ast.GoStmt:
				remove(n)
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					remove(n)
				}
			}
			return true
		})
	}
	return out, nil
}

// cChange finds what can be changed in C.
var cChange = regexp.MustCompile(` (==|!=|<|>=|&&|\|\||\+|-) |return (true|false);|\n\t+((?:ordered|give\w*|BOUND)\([^;\n]*\);)`)

var cSwapped = map[string]string{
	"==": "!=", "!=": "==", "<": ">=", ">=": "<", "&&": "||", "||": "&&", "+": "-", "-": "+", "true": "false", "false": "true",
}

// inC returns the mutants of a C file.
func inC(source []byte) []mutant {
	var out []mutant
	for _, at := range cChange.FindAllSubmatchIndex(source, -1) {
		for group := 1; group <= 3; group++ {
			from, to := at[2*group], at[2*group+1]
			if from < 0 {
				continue
			}
			was := string(source[from:to])
			change := was + " to " + cSwapped[was]
			if group == 3 {
				change = "remove " + was
				was = ""
			}
			out = append(out, mutant{from: from, to: to, with: cSwapped[was], change: change})
		}
	}
	return out
}
