// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"debug/elf"
	"encoding/binary"
	"fmt"

	"github.com/otelctx/otelctx/internal/wire"
)

// Image is a generated shared library and its layout. Addresses are relative to the start of the
// library, and equal the offsets in the file.
type Image struct {
	File []byte
	// Text is the size of the first part of the file, one page, which is mapped readable and
	// executable. The rest of the file is less than a page, and is mapped readable and writable.
	Text int
	// Storage is the address of the symbol that points to the process storage. Descriptor is the
	// address of the thread-local symbol's TLS descriptor, whose second word is the symbol's offset
	// from the thread pointer.
	Storage, Descriptor int
}

// soname is the library's name, in the form that profilers search for.
const soname = wire.ProfilingLibraryPrefix + "otelctx" + wire.ProfilingLibrarySuffix

// descriptors contains the relocation type of a TLS descriptor for each machine.
var descriptors = map[elf.Machine]uint64{
	elf.EM_X86_64:  uint64(elf.R_X86_64_TLSDESC),
	elf.EM_AARCH64: uint64(elf.R_AARCH64_TLSDESC),
}

const (
	headerSize  = 64
	segmentSize = 56
	symbolSize  = 24
	relaSize    = 24
	dynSize     = 16
	wordSize    = 8
)

// Indices of the symbols.
const (
	storageSymbol = 1 + iota
	threadSymbol
	numSymbols
)

// Indices of the sections.
const (
	_ = iota
	hashSection
	symbolSection
	stringSection
	relaSection
	tlsSection
	dynamicSection
	gotSection
	dataSection
	nameSection
	numSections
)

// Generate returns the library for a machine with this page size. The same arguments always give
// the same bytes. Generate fails unless the machine is amd64 or arm64, and the page size is a power
// of two and at least 4096.
func Generate(machine elf.Machine, pageSize int) (*Image, error) {
	relocation, ok := descriptors[machine]
	if !ok || pageSize < 4096 || pageSize&(pageSize-1) != 0 {
		return nil, fmt.Errorf("no library for %v with pages of %d bytes", machine, pageSize)
	}
	var strings stringTable
	symbolNames := [numSymbols]uint32{
		storageSymbol: strings.add(wire.ProfilingProcessSymbol),
		threadSymbol:  strings.add(wire.ProfilingThreadSymbol),
	}
	name := strings.add(soname)

	const segments = 5
	var sections [numSections]elf.Section64
	// The executable page contains no code, only the read-only data. Profilers search only
	// executable mappings for the library, so the page must exist, and a separate page for the
	// read-only data would be a waste.
	offset := uint64(headerSize + segments*segmentSize)
	place := func(n int, size, align uint64) {
		offset = (offset + align - 1) &^ (align - 1)
		sections[n].Off, sections[n].Addr, sections[n].Size, sections[n].Addralign = offset, offset, size, align
		offset += size
	}
	place(hashSection, 4*4+8+4+4*(numSymbols-1), 8)
	place(symbolSection, numSymbols*symbolSize, 8)
	place(stringSection, uint64(len(strings)), 1)
	place(relaSection, relaSize, 8)
	textEnd := offset
	offset = uint64(pageSize)
	place(tlsSection, 0, 8)
	dynamic := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: uint64(name)},
		{Tag: int64(elf.DT_GNU_HASH), Val: sections[hashSection].Addr},
		{Tag: int64(elf.DT_STRTAB), Val: sections[stringSection].Addr},
		{Tag: int64(elf.DT_STRSZ), Val: sections[stringSection].Size},
		{Tag: int64(elf.DT_SYMTAB), Val: sections[symbolSection].Addr},
		{Tag: int64(elf.DT_SYMENT), Val: symbolSize},
		{Tag: int64(elf.DT_RELA), Val: sections[relaSection].Addr},
		{Tag: int64(elf.DT_RELASZ), Val: relaSize},
		{Tag: int64(elf.DT_RELAENT), Val: relaSize},
		{Tag: int64(elf.DT_NULL)},
	}
	place(dynamicSection, uint64(len(dynamic)*dynSize), 8)
	place(gotSection, 2*wordSize, 8)
	place(dataSection, wordSize, 8)
	dataEnd := offset
	sections[tlsSection].Size = wordSize // allocated per thread, not in the file

	var names stringTable
	describe := func(n int, name string, kind elf.SectionType, flags elf.SectionFlag, link, info uint32, entry uint64) {
		s := &sections[n]
		s.Name, s.Type, s.Flags = names.add(name), uint32(kind), uint64(flags)
		s.Link, s.Info, s.Entsize = link, info, entry
	}
	const data = elf.SHF_ALLOC | elf.SHF_WRITE
	describe(hashSection, ".gnu.hash", elf.SHT_GNU_HASH, elf.SHF_ALLOC, symbolSection, 0, 0)
	describe(symbolSection, ".dynsym", elf.SHT_DYNSYM, elf.SHF_ALLOC, stringSection, storageSymbol, symbolSize)
	describe(stringSection, ".dynstr", elf.SHT_STRTAB, elf.SHF_ALLOC, 0, 0, 0)
	describe(relaSection, ".rela.dyn", elf.SHT_RELA, elf.SHF_ALLOC, symbolSection, 0, relaSize)
	describe(tlsSection, ".tbss", elf.SHT_NOBITS, data|elf.SHF_TLS, 0, 0, 0)
	describe(dynamicSection, ".dynamic", elf.SHT_DYNAMIC, data, stringSection, 0, dynSize)
	describe(gotSection, ".got", elf.SHT_PROGBITS, data, 0, 0, wordSize)
	describe(dataSection, ".data", elf.SHT_PROGBITS, data, 0, 0, 0)
	describe(nameSection, ".shstrtab", elf.SHT_STRTAB, 0, 0, 0, 0)
	place(nameSection, uint64(len(names)), 1)
	sections[nameSection].Addr = 0
	offset = (offset + 7) &^ 7

	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{
			0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT),
		},
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Shoff: offset, Ehsize: headerSize,
		Phentsize: segmentSize, Phnum: segments, Shentsize: 64, Shnum: numSections, Shstrndx: nameSection,
	}
	part := func(kind elf.ProgType, flags elf.ProgFlag, from, fileSize, memSize, align uint64) elf.Prog64 {
		return elf.Prog64{
			Type: uint32(kind), Flags: uint32(flags), Off: from, Vaddr: from, Paddr: from,
			Filesz: fileSize, Memsz: memSize, Align: align,
		}
	}
	page, dyn, tls := uint64(pageSize), &sections[dynamicSection], &sections[tlsSection]
	load := [segments]elf.Prog64{
		part(elf.PT_LOAD, elf.PF_R|elf.PF_X, 0, textEnd, textEnd, page),
		part(elf.PT_LOAD, elf.PF_R|elf.PF_W, page, dataEnd-page, dataEnd-page, page),
		part(elf.PT_DYNAMIC, elf.PF_R|elf.PF_W, dyn.Off, dyn.Size, dyn.Size, 8),
		part(elf.PT_TLS, elf.PF_R, tls.Off, 0, tls.Size, 8),
		// Without this segment, loading the library would make all stacks executable.
		part(elf.PT_GNU_STACK, elf.PF_R|elf.PF_W, 0, 0, 0, 16),
	}
	symbols := [numSymbols]elf.Sym64{
		storageSymbol: {
			Name: symbolNames[storageSymbol], Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT),
			Shndx: dataSection, Value: sections[dataSection].Addr, Size: wordSize,
		},
		// The value of a thread-local symbol is its offset in each thread's TLS block.
		threadSymbol: {
			Name: symbolNames[threadSymbol], Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_TLS),
			Shndx: tlsSection, Size: wordSize,
		},
	}
	rela := elf.Rela64{Off: sections[gotSection].Addr, Info: threadSymbol<<32 | relocation}

	f := file{make([]byte, offset+numSections*64)}
	f.put(0, header)
	f.put(headerSize, load)
	f.put(sections[hashSection].Off, hashTable())
	f.put(sections[symbolSection].Off, symbols)
	f.put(sections[stringSection].Off, []byte(strings))
	f.put(sections[relaSection].Off, rela)
	f.put(sections[dynamicSection].Off, dynamic)
	f.put(sections[nameSection].Off, []byte(names))
	f.put(offset, sections)
	return &Image{
		File: f.b, Text: pageSize,
		Storage: int(sections[dataSection].Addr), Descriptor: int(sections[gotSection].Addr),
	}, nil
}

// gnuHash is a DT_GNU_HASH table with both symbols in one bucket.
type gnuHash struct {
	Buckets, FirstSymbol, BloomWords, BloomShift uint32
	Bloom                                        uint64
	Bucket                                       uint32
	// Chain has the hashes of the symbols. The lowest bit marks the last one.
	Chain [numSymbols - 1]uint32
}

func hashTable() gnuHash {
	t := gnuHash{Buckets: 1, FirstSymbol: storageSymbol, BloomWords: 1, BloomShift: 6, Bucket: storageSymbol}
	for i, name := range [numSymbols - 1]string{wire.ProfilingProcessSymbol, wire.ProfilingThreadSymbol} {
		h := uint32(5381)
		for _, c := range []byte(name) {
			h = h*33 + uint32(c)
		}
		t.Bloom |= 1<<(h%64) | 1<<(h>>t.BloomShift%64)
		t.Chain[i] = h &^ 1
	}
	t.Chain[len(t.Chain)-1] |= 1
	return t
}

// stringTable is an ELF string table: NUL-terminated strings, the first one empty.
type stringTable []byte

// add appends s and returns its offset.
func (t *stringTable) add(s string) uint32 {
	if len(*t) == 0 {
		*t = append(*t, 0)
	}
	offset := len(*t)
	*t = append(append(*t, s...), 0)
	return uint32(offset)
}

type file struct{ b []byte }

// put encodes v at an offset. It panics if v does not fit.
func (f file) put(offset uint64, v any) {
	if _, err := binary.Encode(f.b[offset:], binary.LittleEndian, v); err != nil {
		panic(fmt.Sprintf("%T at %#x: %v", v, offset, err))
	}
}
