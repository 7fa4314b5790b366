// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/elffile"
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
	regions, code, codeSize := regionsOf(f, base)
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
		_, _ = i.elf.BuildIDs()
		text := code + uint64(address)%codeSize
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

// region is a range of a file that contains headers or tables.
type region struct{ start, size uint64 }

// regionsOf returns the regions of a Go program's file that tests damage, and the addresses of its code.
func regionsOf(t testing.TB, content []byte) (regions []region, text, size uint64) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(content))
	require.NoError(t, err)
	var header elf.Header64
	_, err = binary.Decode(content, binary.LittleEndian, &header)
	require.NoError(t, err)
	regions = []region{
		{0, 64},
		{header.Phoff, uint64(header.Phnum) * uint64(header.Phentsize)},
		{header.Shoff, uint64(header.Shnum) * uint64(header.Shentsize)},
	}
	for _, s := range f.Sections {
		switch {
		case s.Name == ".gopclntab":
			// The header of the table contains the offsets of its parts: names, units, files, byPC and functions.
			regions = append(regions, region{s.Offset, 128})
			for word := range uint64(5) {
				start := binary.LittleEndian.Uint64(content[s.Offset+8+8*(3+word):])
				regions = append(regions, region{s.Offset + start, s.Size - start})
			}
		case s.Name == ".go.module", s.Type == elf.SHT_SYMTAB, s.Type == elf.SHT_NOTE:
			regions = append(regions, region{s.Offset, s.Size})
		case s.Name == ".text":
			text, size = s.Addr, s.Size
		}
	}
	return regions, text, size
}

func requireSound(t *testing.T, i *file, lines []Line, kind string) {
	t.Helper()
	require.LessOrEqual(t, len(lines), 64)
	require.Contains(t, []string{TypeGo, TypeNative}, kind)
	require.True(t, kind == TypeNative || i.golang != nil)
	for _, l := range lines {
		require.NotEmpty(t, l.Function)
		require.LessOrEqual(t, len(l.File), elffile.MaxName)
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
