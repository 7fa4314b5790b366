// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"debug/elf"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func jsonLine(line string, to any) error { return json.Unmarshal([]byte(line), to) }

func here() uintptr { return reflect.ValueOf(here).Pointer() }

type cgoReport struct {
	Native, Libc, Go uint64
	GoFile           string
	GoLine           int
}

// TestNative checks that C functions in a Go program and in a library are symbolized, and that Go functions
// in such a program are, too.
func TestNative(t *testing.T) {
	for _, b := range []struct {
		programs.Variant

		stripped, usual bool
	}{
		{programs.Cgo, false, true},
		{programs.CgoPIE, false, false},
		{programs.Variant{Name: "cgo-stripped", Flags: []string{"-ldflags=-s -w"}, Cgo: true}, true, true},
		{programs.Variant{Name: "cgo-pie-stripped", Flags: []string{"-buildmode=pie", "-ldflags=-s -w"}, Cgo: true}, true, false},
	} {
		t.Run(b.Name, func(t *testing.T) {
			if !b.usual {
				testenv.NeedAll(t)
			}
			var r cgoReport
			p := start(t, build(t, b.Variant, "cgo"), &r)
			process := p.open()

			l := process.Locate(r.Native, true)
			assert.Equal(t, TypeNative, l.Type)
			assert.Equal(t, p.path, l.Mapping.Path)
			if b.stripped {
				assert.Empty(t, l.Lines, "no file has the name")
			} else {
				assert.Equal(t, []Line{{Function: "native_code"}}, l.Lines)
			}

			l = process.Locate(r.Libc, true)
			assert.Equal(t, TypeNative, l.Type)
			assert.Equal(t, []Line{{Function: "qsort"}}, l.Lines)
			assert.Contains(t, l.Mapping.Path, "libc")
			assert.Regexp(t, "^[0-9a-f]{40}$", l.Mapping.GNUBuildID)
			assert.Empty(t, l.Mapping.GoBuildID)

			l = process.Locate(r.Go, true)
			assert.Equal(t, TypeGo, l.Type)
			assert.Equal(t, []Line{{Function: "main.goCode", File: r.GoFile, Line: r.GoLine}}, withoutStarts(l.Lines))
		})
	}
}

// TestUnnamed checks that NewUnnamedFiles yields the same mappings and build ids as NewFiles, and keeps no
// file open.
func TestUnnamed(t *testing.T) {
	var r cgoReport
	p := start(t, build(t, programs.Cgo, "cgo"), &r)
	named, unnamed := p.open(), openWith(t, NewUnnamedFiles(), p.PID())
	addresses := []uint64{r.Native, r.Libc, r.Go}
	for _, address := range addresses {
		assert.Empty(t, unnamed.Locate(address, true).Lines)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range fds {
		path, _ := os.Readlink(fd) // it may have been closed
		assert.NotEqual(t, p.path, path)
	}
	gnu := 0
	for _, address := range addresses {
		want, got := named.Locate(address, true), unnamed.Locate(address, true)
		assert.NotEmpty(t, want.Lines)
		assert.Equal(t, &Location{Mapping: want.Mapping, Address: address, Type: TypeNative}, got)
		if got.Mapping.GNUBuildID != "" {
			gnu++
		}
	}
	assert.Positive(t, gnu)
}

// without is a file that fails the test if certain sections are read.
type without struct {
	*os.File

	t        *testing.T
	sections []*elffile.Section
}

func (f without) ReadAt(b []byte, offset int64) (int, error) {
	for _, s := range f.sections {
		// A section's first byte may be read with the preceding data, because files are read in blocks.
		assert.False(f.t, uint64(offset) > s.Off && uint64(offset) < s.Off+s.Size, "%#x", offset)
	}
	return f.File.ReadAt(b, offset)
}

// TestUnnamedReadsNoSymbols checks that build ids are read without reading symbol tables, in programs
// linked by Go and by the system's linker.
func TestUnnamedReadsNoSymbols(t *testing.T) {
	for v, name := range map[*programs.Variant]string{&programs.Static: "prog", &programs.Cgo: "cgo"} {
		f, err := os.Open(build(t, *v, name))
		require.NoError(t, err)
		defer func() { _ = f.Close() }()
		e, err := elffile.Parse(elffile.Whole(f))
		require.NoError(t, err)
		tables := []*elffile.Section{e.Named(".gopclntab")}
		for i := range e.Sections {
			if s := &e.Sections[i]; elf.SectionType(s.Type) == elf.SHT_SYMTAB {
				tables = append(tables, s)
			}
		}
		require.Len(t, tables, 2)
		got := newFile(NewUnnamedFiles(), fileID{}, without{f, t, tables}, f)
		assert.Regexp(t, "^[0-9a-f]{40}$", got.gnuBuildID)
		assert.NotEmpty(t, got.goBuildID)
		assert.Equal(t, TypeNative, got.kind)
	}
}

// TestVDSO checks that functions in the vDSO are symbolized.
func TestVDSO(t *testing.T) {
	process := openProcess(t, os.Getpid())
	var names []string
	for _, r := range process.regions() {
		if r.mapping.Path != vdso {
			continue
		}
		for a := r.mapping.Start; a < r.mapping.Limit; a += 4 {
			l := process.Locate(a, true)
			assert.Equal(t, TypeNative, l.Type)
			for _, line := range l.Lines {
				names = append(names, line.Function)
			}
		}
	}
	assert.Contains(t, strings.Join(names, " "), "clock_gettime")
}

// requireFoundByPath checks that a region's file is found even without access to map_files, which requires
// privileges.
func requireFoundByPath(t *testing.T, p *Process, r *Region) {
	t.Helper()
	f, _, err := p.openFirst(p.candidates(r)[1:])
	require.NoError(t, err, r.mapping.Path)
	require.NoError(t, f.Close())
}

func TestOpenNamed(t *testing.T) {
	process := openProcess(t, os.Getpid())
	opened := 0
	for _, r := range process.regions() {
		if r.inode == 0 {
			continue
		}
		requireFoundByPath(t, process.Process, r)
		opened++
		for _, change := range []func(*Region){func(r *Region) { r.inode++ }, func(r *Region) { r.minor++ }} {
			changed := &Region{process: r.process, major: r.major, minor: r.minor, inode: r.inode, mapping: r.mapping}
			if change(changed); r.mapping.Path == mustExecutable(t) && changed.inode == r.inode {
				continue // For the executable, the same inode number suffices.
			}
			_, _, err := process.openFirst(process.candidates(changed)[1:])
			require.Error(t, err, "another file at the same path")
		}
	}
	assert.Positive(t, opened)
}

func mustExecutable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// TestOverlap checks which function is chosen if several contain an address.
func TestOverlap(t *testing.T) {
	names := "\x00outer\x00inner\x00__alias\x00_local\x00weak@@VERSION_1\x00"
	at := func(name string) uint32 { return uint32(strings.Index(names, "\x00"+name) + 1) }
	s := &elfSymbols{names: [2]elffile.Part{elffile.Whole(strings.NewReader(names))}, functions: []elfFunction{
		{100, at("outer"), 100 << kindBits},
		{110, at("__alias"), 20 << kindBits},
		{110, at("inner"), 20 << kindBits},
		{110, at("_local"), 30<<kindBits | 2},
		{300, at("weak"), 10<<kindBits | 1},
		{300, at("_local"), 10<<kindBits | 2},
	}}
	for address, want := range map[uint64]string{
		99: "", 100: "outer", 109: "outer", 110: "inner", 129: "inner", 130: "_local", 140: "outer",
		199: "outer", 200: "", 300: "weak", 309: "weak", 310: "",
	} {
		got, ok := s.lookup(address)
		assert.Equal(t, want, got, address)
		assert.Equal(t, want != "", ok, address)
	}
}

func TestDemangled(t *testing.T) {
	for name, want := range map[string]string{
		"qsort":                                "qsort",
		"_ZN3foo3barEi":                        "foo::bar(int)",
		"_RNvNtCs1234_7mycrate3foo3bar":        "mycrate::foo::bar",
		"_Z" + strings.Repeat("x", maxMangled): "_Z" + strings.Repeat("x", maxMangled),
	} {
		assert.Equal(t, want, demangled(name))
	}
}
