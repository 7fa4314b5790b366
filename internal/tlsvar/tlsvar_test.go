// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tlsvar

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// forgery is the memory of a process that has mapped a forged library at each multiple of
// librarySize. Other addresses are zero.
type forgery struct {
	library []byte
	reads   int
	bytes   int64
	// beforeRead, if not nil, is called before each read.
	beforeRead func()
}

const librarySize = 1 << 20

func (f *forgery) ReadAt(b []byte, off int64) (int, error) {
	f.reads++
	f.bytes += int64(len(b))
	if f.beforeRead != nil {
		f.beforeRead()
	}
	clear(b)
	if at := off % librarySize; at < int64(len(f.library)) {
		copy(b, f.library[at:])
	}
	return len(b), nil
}

func (f *forgery) process() *Process {
	p := &Process{Memory: f}
	for i := range uint64(200) {
		p.Modules = append(p.Modules, Module{Start: (i + 1) * librarySize, Name: "forged"})
	}
	return p
}

// The symbol that the forged libraries define.
const forgedName = "variable"

// forged returns a library with a thread-local variable and these entries of its dynamic section. The
// library's hash table is at 6144 (GNU) or 2048 (SysV), its symbols are at 3072, and its names at 4096.
func forged(t *testing.T, gnu, sysv []uint32, entries ...elf.Dyn64) []byte {
	t.Helper()
	b := make([]byte, 8192)
	put := func(at int, data any) {
		var encoded bytes.Buffer
		require.NoError(t, binary.Write(&encoded, binary.LittleEndian, data))
		copy(b[at:], encoded.Bytes())
	}
	const programs, dynamic, symbols, names = 64, 512, 3072, 4096
	entries = append(entries, elf.Dyn64{Tag: int64(elf.DT_SYMTAB), Val: symbols}, elf.Dyn64{Tag: int64(elf.DT_STRTAB), Val: names})
	put(0, elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64)},
		Machine: uint16(elf.EM_X86_64), Phoff: programs, Phentsize: 56, Phnum: 3,
	})
	put(programs, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Memsz: math.MaxUint32},
		{Type: uint32(elf.PT_TLS), Memsz: 64},
		{Type: uint32(elf.PT_DYNAMIC), Vaddr: dynamic, Memsz: uint64(16 * len(entries))},
	})
	put(dynamic, entries)
	put(6144, gnu)
	put(2048, sysv)
	put(symbols, []elf.Sym64{{Name: 1}, {Name: 1, Info: uint8(elf.STT_TLS), Shndx: 1, Value: 8}})
	put(names+1, []byte(forgedName))
	return b
}

// forgeries are libraries whose tables have no end.
func forgeries(t *testing.T) map[string][]byte {
	t.Helper()
	entry := func(tag elf.DynTag, value uint64) elf.Dyn64 { return elf.Dyn64{Tag: int64(tag), Val: value} }
	// One bucket, whose chain begins with symbol 1.
	found := []uint32{1, 1, 0, 0, 1, gnuHash(forgedName) | 1}
	const zeros = 8192
	return map[string][]byte{
		"relocations": forged(t, found, nil, entry(elf.DT_GNU_HASH, 6144), entry(elf.DT_RELA, zeros), entry(elf.DT_RELASZ, math.MaxUint64)),
		"small relocation tables": forged(t, found, nil, entry(elf.DT_GNU_HASH, 6144), entry(elf.DT_RELA, zeros),
			entry(elf.DT_RELASZ, 64<<20), entry(elf.DT_JMPREL, zeros), entry(elf.DT_PLTRELSZ, 64<<20)),
		"a GNU chain": forged(t, []uint32{1, 1, 0, 0, 1}, nil, entry(elf.DT_GNU_HASH, 6144)),
		// Symbol 3 is followed by itself, and has another name.
		"a SysV chain": forged(t, nil, []uint32{1, 9, 3, 0, 0, 0, 3}, entry(elf.DT_HASH, 2048)),
	}
}

// A search ends, even if each of many modules has endless tables, or a table that is just acceptable.
func TestFindIsBounded(t *testing.T) {
	for name, library := range forgeries(t) {
		t.Run(name, func(t *testing.T) {
			f := &forgery{library: library}
			_, err := f.process().Find(t.Context(), forgedName)
			require.ErrorIs(t, err, ErrBudget)
			assert.LessOrEqual(t, f.bytes, int64(budget))
			assert.LessOrEqual(t, f.reads, budget/readCost)
		})
	}
}

// A search reads nothing more once its context is done.
func TestFindEndsWithContext(t *testing.T) {
	for name, library := range forgeries(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			f := &forgery{library: library}
			const last = 50
			f.beforeRead = func() {
				if f.reads == last {
					cancel()
				}
			}
			_, err := f.process().Find(ctx, forgedName)
			require.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, last, f.reads)
		})
	}
}
