// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/otelctx/otelctx/internal/elffile"
)

const (
	// maxSymbols is the maximum number of functions kept in memory for a file, at 16 bytes each.
	maxSymbols = 1 << 20
	// maxSymbolEntries is the maximum number of symbol table entries that are read.
	maxSymbolEntries = 1 << 22
	// maxAliases is the maximum number of functions with the same start whose names are compared.
	maxAliases = 64
	// maxOverlap is the maximum number of functions that lookup tries for an address. It begins with the last
	// function that starts at or before the address, and goes backwards.
	maxOverlap = 16
	// maxMangled is the maximum length of a mangled name in bytes. The demangled name can be much longer, so
	// its length is limited to 1<<maxDemangledBits bytes.
	maxMangled       = 1 << 10
	maxDemangledBits = 12
)

// elfSymbols holds the functions of an ELF file by address.
type elfSymbols struct {
	functions []elfFunction
	names     [2]elffile.Part // string tables of .symtab and .dynsym
}

type elfFunction struct {
	address uint64
	name    uint32 // offset in the string table
	// sizeAndKind is the function's size, at most maxSize, shifted left by kindBits. The lower bits contain the
	// rank and dynamicBit.
	sizeAndKind uint32
}

const (
	rankBits   = 3      // mask of the rank: 0 for global, 1 for weak, 2 for local symbols
	dynamicBit = 1 << 2 // set if the name is in names[1]
	kindBits   = 3
	maxSize    = 1<<(32-kindBits) - 1
)

func (f elfFunction) size() uint64 { return uint64(f.sizeAndKind >> kindBits) }
func (f elfFunction) rank() uint32 { return f.sizeAndKind & rankBits }

// readSymbols reads the functions in .symtab and .dynsym. It skips functions without a size, because their end is
// unknown.
func readSymbols(f *elffile.File) *elfSymbols {
	symbols := &elfSymbols{}
	left := uint64(maxSymbolEntries)
	for i := range f.Sections {
		s := &f.Sections[i]
		kind := elf.SectionType(s.Type)
		if kind != elf.SHT_SYMTAB && kind != elf.SHT_DYNSYM || uint64(s.Link) >= uint64(len(f.Sections)) {
			continue
		}
		table := 0
		if kind == elf.SHT_DYNSYM {
			table = 1
		}
		symbols.names[table] = f.Content(&f.Sections[s.Link])
		left = symbols.read(f.Content(s), table == 1, left)
	}
	slices.SortStableFunc(symbols.functions, func(a, b elfFunction) int {
		return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.rank(), b.rank()))
	})
	if len(symbols.functions) < cap(symbols.functions)/2 {
		symbols.functions = slices.Clone(symbols.functions)
	}
	return symbols
}

// read reads the entries of a table. left is the maximum number of entries to read. read returns how many entries may
// still be read from other tables.
func (s *elfSymbols) read(table elffile.Part, dynamic bool, left uint64) uint64 {
	var b [elf.Sym64Size]byte
	// Allocate the functions at once, because append would allocate several times as much.
	s.functions = slices.Grow(s.functions, min(int(min(table.Size(), maxSymbols*elf.Sym64Size)/elf.Sym64Size), maxSymbols-len(s.functions)))
	for i := range left {
		if !table.Read(i*elf.Sym64Size, b[:]) || len(s.functions) >= maxSymbols {
			return left - i
		}
		symbol := elf.Sym64{
			Name: binary.LittleEndian.Uint32(b[0:]), Info: b[4], Shndx: binary.LittleEndian.Uint16(b[6:]),
			Value: binary.LittleEndian.Uint64(b[8:]), Size: binary.LittleEndian.Uint64(b[16:]),
		}
		kind := elf.ST_TYPE(symbol.Info)
		if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC ||
			elf.SectionIndex(symbol.Shndx) == elf.SHN_UNDEF || symbol.Size == 0 {
			continue
		}
		bits := uint32(0)
		if dynamic {
			bits = dynamicBit
		}
		switch elf.ST_BIND(symbol.Info) {
		case elf.STB_GLOBAL:
		case elf.STB_WEAK:
			bits |= 1
		default:
			bits |= 2
		}
		f := elfFunction{symbol.Value, symbol.Name, uint32(min(symbol.Size, maxSize))<<kindBits | bits}
		s.functions = append(s.functions, f)
	}
	return 0
}

// lookup returns the name of the function that contains address. If several functions contain it, lookup prefers
// the highest start, then global over weak over local binding, and then the fewest leading underscores (malloc over
// __libc_malloc).
func (s *elfSymbols) lookup(address uint64) (string, bool) {
	i, _ := slices.BinarySearchFunc(s.functions, address, func(f elfFunction, a uint64) int {
		if f.address <= a {
			return -1
		}
		return 1
	})
	for range maxOverlap {
		if i--; i < 0 {
			break
		}
		if f := s.functions[i]; address-f.address < f.size() {
			return s.best(f.address, address)
		}
	}
	return "", false
}

// best returns the preferred name of the functions that begin at start and extend beyond address.
func (s *elfSymbols) best(start, address uint64) (string, bool) {
	i, _ := slices.BinarySearchFunc(s.functions, start, func(f elfFunction, a uint64) int { return cmp.Compare(f.address, a) })
	best, underscores, rank := "", 0, uint32(0)
	for end := min(i+maxAliases, len(s.functions)); i < end && s.functions[i].address == start; i++ {
		f := s.functions[i]
		if address-start >= f.size() || best != "" && f.rank() > rank {
			continue
		}
		name, ok := s.name(f)
		if !ok || name == "" {
			continue
		}
		n := len(name) - len(strings.TrimLeft(name, "_"))
		if best == "" || n < underscores {
			best, underscores, rank = name, n, f.rank()
		}
	}
	return demangled(best), best != ""
}

// name returns the name of f in the file, without a version suffix.
func (s *elfSymbols) name(f elfFunction) (string, bool) {
	names := s.names[0]
	if f.sizeAndKind&dynamicBit != 0 {
		names = s.names[1]
	}
	name, ok := names.Text(uint64(f.name))
	if i := strings.IndexByte(name, '@'); i > 0 {
		name = name[:i]
	}
	return name, ok
}

// demangled returns a C++ or Rust name in readable form. It returns other names, and names longer than maxMangled,
// unchanged.
func demangled(name string) string {
	if len(name) > maxMangled {
		return name
	}
	return demangle.Filter(name, demangle.MaxLength(maxDemangledBits))
}
