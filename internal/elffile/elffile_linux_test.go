// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// Most tests of this package are those of the command's package symbols, which looks up the code of running
// programs with it.

// pieStripped is a way to build a program so that its Go table can be found only with relocations.
var pieStripped = programs.Variant{Name: "pie-stripped", Flags: []string{"-buildmode=pie", "-ldflags=-s -w"}}

// build builds the program prog of package symbols, and returns its path.
func build(t testing.TB, v programs.Variant) string {
	t.Helper()
	return programs.Build(t, v, "../../cmd/otelctx/internal/profile/symbols", "./testdata/prog")
}

// endless is a file without an end that consists of relocations after its headers.
type endless struct{ content []byte }

func (e endless) ReadAt(b []byte, offset int64) (int, error) {
	for i := range b {
		b[i] = 0
		if at := offset + int64(i); at < int64(len(e.content)) {
			b[i] = e.content[at]
		} else if at%24 == 8 {
			b[i] = byte(elf.R_X86_64_RELATIVE)
		}
	}
	return len(b), nil
}

// TestEndlessRelocations checks that a table of relocations takes limited memory even if it claims a huge size.
func TestEndlessRelocations(t *testing.T) {
	header := elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)},
		Machine: uint16(elf.EM_X86_64), Shoff: 64, Shentsize: 64, Shnum: 1,
	}
	all := elf.Section64{Type: uint32(elf.SHT_RELA), Flags: uint64(elf.SHF_ALLOC), Off: 240, Size: 1 << 62}
	var b bytes.Buffer
	require.NoError(t, binary.Write(&b, binary.LittleEndian, header))
	require.NoError(t, binary.Write(&b, binary.LittleEndian, all))
	f, err := Parse(Whole(endless{b.Bytes()}))
	require.NoError(t, err)
	assert.Len(t, f.relocations(), maxRelocations)
}

// TestOlderGo checks that moduledata is found if it has no section of its own, as in files built before Go 1.26. It is
// then found by the address of the Go table, which it contains either in the data or as a relocation. The test renames
// sections to imitate such files.
func TestOlderGo(t *testing.T) {
	for _, v := range []programs.Variant{programs.Stripped, pieStripped} {
		if v.Name == pieStripped.Name && !testenv.All() {
			continue // The go command compiles the standard library again.
		}
		file, err := os.Open(build(t, v))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, file.Close()) })
		f, err := Parse(Whole(file))
		require.NoError(t, err)
		want, err := f.GoTable()
		require.NoError(t, err)
		for i := range f.Sections {
			switch f.Sections[i].name {
			case ".go.module":
				f.Sections[i].name = ".noptrdata"
			case ".noptrdata":
				f.Sections[i].name = ""
			}
		}
		got, err := f.GoTable()
		require.NoError(t, err)
		assert.Equal(t, want.text, got.text)
		assert.Equal(t, want.inlineTrees.start, got.inlineTrees.start)
	}
}

// TestNotELF checks that files are rejected if they are not ELF, not 64-bit or not little-endian.
func TestNotELF(t *testing.T) {
	content, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	for at, value := range map[int]byte{
		0: 0, elf.EI_CLASS: byte(elf.ELFCLASS32), elf.EI_DATA: byte(elf.ELFDATA2MSB),
	} {
		changed := bytes.Clone(content)
		changed[at] = value
		_, err := Parse(Whole(bytes.NewReader(changed)))
		require.ErrorIs(t, err, ErrNotELF, at)
	}
	_, err = Parse(Whole(bytes.NewReader(content[:elf.EI_NIDENT-1])))
	require.ErrorIs(t, err, ErrNotELF)
}

// TestRelocated checks that the Go table is found if the addresses in moduledata are only in relocations. Some
// linkers produce such files.
func TestRelocated(t *testing.T) {
	testenv.NeedAll(t) // because the go command compiles the standard library again
	content, err := os.ReadFile(build(t, pieStripped))
	require.NoError(t, err)
	f, err := Parse(Whole(bytes.NewReader(content)))
	require.NoError(t, err)
	want, err := f.GoTable()
	require.NoError(t, err)
	module := f.Named(".go.module")
	cleared := 0
	for _, r := range f.relocations() {
		if r.address-module.Addr < module.Size {
			clear(content[module.Off+r.address-module.Addr:][:8])
			cleared++
		}
	}
	assert.Greater(t, cleared, 20)
	f, err = Parse(Whole(bytes.NewReader(content)))
	require.NoError(t, err)
	got, err := f.GoTable()
	require.NoError(t, err)
	assert.Equal(t, want.text, got.text)
	assert.Equal(t, want.inlineTrees.start, got.inlineTrees.start)
}

// TestWrongModule checks that the Go table is not used if a word of moduledata disagrees with it, because the names
// could be wrong, nor without moduledata, because the base address is unknown.
func TestWrongModule(t *testing.T) {
	content, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	f, err := Parse(Whole(bytes.NewReader(content)))
	require.NoError(t, err)
	module := f.Content(f.Named(".go.module")).start
	for _, word := range []uint64{
		moduleHeader, moduleNames, moduleUnits, moduleFiles, moduleByPC, moduleTable,
		moduleFuncTab, moduleFuncTab + 1, moduleMinPC, moduleMaxPC, moduleText,
	} {
		content[module+word*8] ^= 0x10
		f, err := Parse(Whole(bytes.NewReader(content)))
		require.NoError(t, err)
		_, err = f.GoTable()
		require.ErrorIs(t, err, ErrNoGoTable, "word %d", word)
		content[module+word*8] ^= 0x10
	}
	for i := range f.Sections {
		if f.Sections[i].name != ".gopclntab" {
			f.Sections[i].name = ""
		}
	}
	_, err = f.GoTable()
	require.ErrorIs(t, err, ErrNoGoTable)
}
