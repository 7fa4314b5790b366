// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patched is a file with some bytes changed.
type patched struct {
	file  io.ReaderAt
	at    int64
	patch []byte
	read  int // bytes
}

func (p *patched) ReadAt(b []byte, offset int64) (int, error) {
	n, err := p.file.ReadAt(b, offset)
	p.read += n
	for i, x := range p.patch {
		if at := p.at + int64(i) - offset; at >= 0 && at < int64(n) {
			b[at] = x
		}
	}
	return n, err
}

// FuzzImage checks that lookups in a damaged file do not crash, do not read without limit, and do not invent names.
// The file is this test program with some bytes changed, or truncated. If it is unchanged, the results must be
// correct.
func FuzzImage(f *testing.F) {
	base, err := os.ReadFile("/proc/self/exe")
	require.NoError(f, err)
	good := parsed(bytes.NewReader(base))
	require.NotNil(f, good.golang)
	regions := regionsOf(good)
	for i := range regions {
		f.Add(uint8(i), uint32(0), []byte{}, uint32(len(base)), uint32(1000))
		f.Add(uint8(i), uint32(8), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, uint32(len(base)), uint32(70000))
		f.Add(uint8(i), uint32(24), []byte{0}, uint32(len(base)-1), uint32(300000))
	}
	f.Fuzz(func(t *testing.T, region uint8, offset uint32, patch []byte, size, address uint32) {
		at := regions[int(region)%len(regions)]
		patch = patch[:min(len(patch), 64)]
		content := base[:min(int(size), len(base))]
		patched := &patched{file: bytes.NewReader(content), at: int64(at.start + uint64(offset)%at.size), patch: patch}
		i := parsed(patched)
		if i.elf == nil {
			return
		}
		_, _ = i.elf.buildIDs()
		text := good.golang.text + uint64(address)%(good.golang.limit-good.golang.text)
		for _, address := range []uint64{text, uint64(address), ^uint64(0) - uint64(address)} {
			lines, kind := i.lookup(address)
			requireSound(t, i, lines, kind)
			if kind == TypeNative && len(lines) > 0 {
				requireInSymbols(t, patched, address, lines[0].Function)
			}
			if len(patch) == 0 && len(content) == len(base) {
				want, wantKind := good.lookup(address)
				require.Equal(t, want, lines)
				require.Equal(t, wantKind, kind)
			}
		}
		assert.Less(t, patched.read, 64*len(base)+1<<20)
	})
}

// regionsOf returns the parts of a file that contain headers and tables.
func regionsOf(i *file) []part {
	regions := []part{i.elf.file.sub(0, 64), i.golang.table.sub(0, 128), i.golang.functions, i.golang.names, i.golang.byPC, i.golang.units, i.golang.inlineTrees}
	for n := range i.elf.sections {
		s := &i.elf.sections[n]
		if s.name == ".go.module" || elf.SectionType(s.Type) == elf.SHT_SYMTAB || elf.SectionType(s.Type) == elf.SHT_NOTE {
			regions = append(regions, i.elf.content(s))
		}
	}
	var header elf.Header64
	decode(i.elf.file, 0, &header)
	return append(regions,
		i.elf.file.sub(header.Phoff, uint64(header.Phnum)*uint64(header.Phentsize)),
		i.elf.file.sub(header.Shoff, uint64(header.Shnum)*uint64(header.Shentsize)))
}

func requireSound(t *testing.T, i *file, lines []Line, kind string) {
	t.Helper()
	require.LessOrEqual(t, len(lines), maxGoInlineDepth)
	require.Contains(t, []string{TypeGo, TypeNative}, kind)
	require.True(t, kind == TypeNative || i.golang != nil)
	for _, l := range lines {
		require.NotEmpty(t, l.Function)
		require.LessOrEqual(t, len(l.File), maxName)
		require.GreaterOrEqual(t, l.Line, 0)
		if kind == TypeNative {
			require.Empty(t, l.File)
		}
	}
}

// requireInSymbols checks that debug/elf finds a symbol with this name at address, unless debug/elf rejects the
// file.
func requireInSymbols(t *testing.T, file io.ReaderAt, address uint64, name string) {
	t.Helper()
	f, err := elf.NewFile(file)
	if err != nil {
		return
	}
	symbols, err := f.Symbols()
	dynamic, err2 := f.DynamicSymbols()
	if err != nil && err2 != nil {
		return
	}
	require.True(t, slices.ContainsFunc(append(symbols, dynamic...), func(s elf.Symbol) bool {
		return demangled(s.Name) == name && address-s.Value < s.Size
	}), "%#x is in no %s", address, name)
}
