// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package tlsvar finds a thread-local variable in another process by its symbol name, as OTEP 4947
// requires readers to do ("Thread-Local Variable Resolution").
//
// The package does not need to open or trust any file. It reads the program headers, the dynamic
// section, the symbols and the relocations from the process's memory, where they are mapped. It
// supports the access models global dynamic (TLSDESC and traditional), initial exec and local exec,
// with glibc and musl, on amd64 and arm64.
package tlsvar

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Module is a mapping that may be the start of an ELF file: its file offset is 0.
type Module struct {
	Start uint64
	// Name is the name of the file, for error messages.
	Name string
}

// Process describes a process in which to search for variables.
type Process struct {
	Memory io.ReaderAt
	// Modules are the files that the process has mapped.
	Modules []Module
	// ProgramHeaders is the address of the executable's program headers, AT_PHDR in the auxiliary
	// vector.
	ProgramHeaders uint64
	// Musl is true if the C library is musl.
	Musl bool
}

// Variable is a thread-local variable of a process. It is valid as long as the module that defines
// it is loaded.
type Variable struct {
	// Module is the name of the file that defines the variable.
	Module string
	// Model is the variable's access model.
	Model Model

	machine elf.Machine
	musl    bool
	// offset is relative to the start of the module's block if Model is Dynamic, and to the thread
	// pointer otherwise.
	offset int64
	// id is the module's index in the dynamic thread vector. It is used only if Model is Dynamic.
	id uint64
}

// Model is the access model of a thread-local variable. It says where threads have the variable.
type Model string

const (
	// LocalExec variables belong to the executable. Their offset from the thread pointer was fixed
	// by the linker.
	LocalExec Model = "local-exec"
	// Static variables belong to a library. Their offset from the thread pointer was fixed by the
	// loader.
	Static Model = "initial-exec"
	// Dynamic variables belong to a library whose block each thread finds through its dynamic
	// thread vector.
	Dynamic Model = "global-dynamic"
)

// ErrUnresolved means that a module defines the symbol, but has no relocation that says where the
// variable is.
var ErrUnresolved = errors.New("no relocation for the symbol")

// ErrBudget means that a search was given up because it would read too much.
var ErrBudget = fmt.Errorf("searching all modules for the symbol takes more than %d MiB", budget>>20)

const (
	// Limits for tables of a module. Real modules are far below these limits.
	maxProgramHeaders = 128
	maxDynamic        = 1024

	// budget is the number of bytes that one search reads. readCost is added to the bytes of each
	// read, so that the number of reads is limited too. A search through the largest relocation
	// tables of real programs, or through thousands of modules, needs a tenth of the budget.
	budget   = 256 << 20
	readCost = 1 << 10

	relocationSize = 24
	symbolSize     = 24
	chunk          = 64 << 10
)

// meteredMemory is memory that can be read until ctx is done or a budget is used up. The process
// chooses how long the loops of this package are, so all of them end with the first failed read.
type meteredMemory struct {
	io.ReaderAt
	ctx  context.Context //nolint:containedctx // it lives as long as one search
	left int64
	// exhausted is the reason why all further reads fail, or nil.
	exhausted error
}

func (m *meteredMemory) ReadAt(b []byte, off int64) (int, error) {
	m.left -= int64(len(b)) + readCost
	if m.exhausted == nil && m.left < 0 {
		m.exhausted = ErrBudget
	}
	if m.exhausted == nil {
		m.exhausted = m.ctx.Err()
	}
	if m.exhausted != nil {
		return 0, m.exhausted
	}
	return m.ReaderAt.ReadAt(b, off)
}

// Find returns the variables with this name, one for each module that defines it. It skips modules
// that are not ELF files or are malformed. If a module defines the symbol but its variable cannot
// be located, Find also returns an error, which is about the first such module. It wraps
// [ErrUnresolved] if the module has no relocation for the symbol. If the search ends early, the error
// is [ErrBudget] or ctx's error.
func (p *Process) Find(ctx context.Context, name string) (found []Variable, err error) {
	mem := &meteredMemory{ReaderAt: p.Memory, ctx: ctx, left: budget}
	for _, m := range p.Modules {
		v, defined, merr := p.find(mem, m, name)
		switch {
		case mem.exhausted != nil:
			return found, mem.exhausted
		case merr == nil && defined:
			found = append(found, v)
		case defined && err == nil:
			err = fmt.Errorf("%s in %q: %w", name, m.Name, merr)
		}
	}
	return found, err
}

// image is an ELF file in memory.
type image struct {
	mem     io.ReaderAt
	machine elf.Machine
	bias    uint64 // address in memory minus address in the file
	end     uint64 // the highest address in the file
	phdr    uint64
	tls     elf.Prog64
	dynamic map[elf.DynTag]uint64
}

func (p *Process) find(mem io.ReaderAt, m Module, name string) (v Variable, defined bool, err error) {
	f, err := open(mem, m)
	if err != nil {
		return v, false, err
	}
	index, sym, err := f.lookup(name)
	if err != nil || sym.Shndx == 0 || elf.ST_TYPE(sym.Info) != elf.STT_TLS {
		return v, false, err
	}
	v = Variable{Module: m.Name, machine: f.machine, musl: p.Musl}
	if f.phdr == p.ProgramHeaders {
		v.Model, v.offset = LocalExec, f.localExec(sym.Value)
		return v, true, nil
	}
	return v, true, f.resolve(&v, index, sym.Value)
}

// open reads the needed parts of the file that is mapped at m.
func open(mem io.ReaderAt, m Module) (*image, error) {
	var h elf.Header64
	if err := read(mem, m.Start, &h); err != nil {
		return nil, err
	}
	f := &image{mem: mem, machine: elf.Machine(h.Machine), phdr: m.Start + h.Phoff}
	if string(h.Ident[:4]) != elf.ELFMAG || elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		f.machine != elf.EM_X86_64 && f.machine != elf.EM_AARCH64 || h.Phnum > maxProgramHeaders || h.Phentsize != 56 {
		return nil, errors.New("not an ELF file of this machine")
	}
	programs := make([]elf.Prog64, h.Phnum)
	if err := read(mem, f.phdr, programs); err != nil {
		return nil, err
	}
	var dynamic *elf.Prog64
	first := true
	for i, ph := range programs {
		switch elf.ProgType(ph.Type) {
		case elf.PT_LOAD:
			if first {
				f.bias, first = m.Start-(ph.Vaddr-ph.Off), false
			}
			f.end = max(f.end, ph.Vaddr+ph.Memsz)
		case elf.PT_TLS:
			f.tls = ph
		case elf.PT_DYNAMIC:
			dynamic = &programs[i]
		}
	}
	if f.tls.Memsz == 0 || dynamic == nil {
		return nil, errors.New("no thread-local variables")
	}
	entries := make([]elf.Dyn64, min(dynamic.Memsz/16, maxDynamic))
	if err := read(mem, f.bias+dynamic.Vaddr, entries); err != nil {
		return nil, err
	}
	f.dynamic = map[elf.DynTag]uint64{}
	for _, e := range entries {
		if elf.DynTag(e.Tag) == elf.DT_NULL {
			break
		}
		f.dynamic[elf.DynTag(e.Tag)] = e.Val
	}
	return f, nil
}

// address returns the address in memory to which a pointer in the dynamic section refers. The
// loader of glibc has already added the bias to the pointer, and the loader of musl has not.
func (f *image) address(tag elf.DynTag) uint64 {
	v := f.dynamic[tag]
	if v == 0 || v >= f.bias && v-f.bias <= f.end {
		return v
	}
	return f.bias + v
}

// lookup finds a symbol in the file's hash table. There are two kinds of hash tables.
func (f *image) lookup(name string) (uint32, elf.Sym64, error) {
	if f.dynamic[elf.DT_GNU_HASH] != 0 {
		return f.lookupGNU(name)
	}
	table := f.address(elf.DT_HASH)
	var h struct{ Buckets, Chains uint32 }
	if err := read(f.mem, table, &h); err != nil || h.Buckets == 0 {
		return 0, elf.Sym64{}, err
	}
	next := table + 8 + 4*uint64(sysvHash(name)%h.Buckets)
	for {
		var i uint32
		if err := read(f.mem, next, &i); err != nil || i == 0 || i >= h.Chains {
			return 0, elf.Sym64{}, err
		}
		if sym, ok, err := f.symbol(i, name); ok || err != nil {
			return i, sym, err
		}
		next = table + 8 + 4*uint64(h.Buckets) + 4*uint64(i)
	}
}

func (f *image) lookupGNU(name string) (uint32, elf.Sym64, error) {
	table := f.address(elf.DT_GNU_HASH)
	var h struct{ Buckets, FirstSymbol, BloomWords, BloomShift uint32 }
	if err := read(f.mem, table, &h); err != nil || h.Buckets == 0 {
		return 0, elf.Sym64{}, err
	}
	hash := gnuHash(name)
	buckets := table + 16 + 8*uint64(h.BloomWords)
	chains := buckets + 4*uint64(h.Buckets)
	var i uint32
	if err := read(f.mem, buckets+4*uint64(hash%h.Buckets), &i); err != nil || i < h.FirstSymbol {
		return 0, elf.Sym64{}, err
	}
	for {
		var c uint32
		if err := read(f.mem, chains+4*uint64(i-h.FirstSymbol), &c); err != nil {
			return 0, elf.Sym64{}, err
		}
		if c|1 == hash|1 {
			if sym, ok, err := f.symbol(i, name); ok || err != nil {
				return i, sym, err
			}
		}
		if c&1 == 1 {
			return 0, elf.Sym64{}, nil
		}
		i++
	}
}

// symbol reads symbol i. ok is false if the symbol has another name.
func (f *image) symbol(i uint32, name string) (sym elf.Sym64, ok bool, err error) {
	if err := read(f.mem, f.address(elf.DT_SYMTAB)+symbolSize*uint64(i), &sym); err != nil {
		return sym, false, err
	}
	text := make([]byte, len(name)+1)
	if _, err := f.mem.ReadAt(text, int64(f.address(elf.DT_STRTAB)+uint64(sym.Name))); err != nil {
		return sym, false, err
	}
	return sym, string(text) == name+"\x00", nil
}

// localExec returns the offset from the thread pointer of a variable of the executable. The
// executable's block is next to the thread pointer: it ends there on amd64, and begins two words
// after it on arm64.
func (f *image) localExec(value uint64) int64 {
	align := max(f.tls.Align, 1)
	up := func(n uint64) uint64 { return (n + align - 1) / align * align }
	if f.machine == elf.EM_AARCH64 {
		return int64(up(16) + value)
	}
	return int64(value - up(f.tls.Memsz))
}

// resolve finds the location of a variable by a relocation for its symbol. The loader has stored
// the location there.
func (f *image) resolve(v *Variable, index uint32, value uint64) error {
	for _, table := range [...]struct{ address, size elf.DynTag }{{elf.DT_RELA, elf.DT_RELASZ}, {elf.DT_JMPREL, elf.DT_PLTRELSZ}} {
		address, left := f.address(table.address), f.dynamic[table.size]
		for left >= relocationSize {
			b := make([]byte, min(left, chunk)/relocationSize*relocationSize)
			if _, err := f.mem.ReadAt(b, int64(address)); err != nil {
				return err
			}
			address, left = address+uint64(len(b)), left-uint64(len(b))
			for ; len(b) > 0; b = b[relocationSize:] {
				offset, info, addend := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
				sym := elf.R_SYM64(info)
				if sym != index && (sym != 0 || addend != value) {
					continue
				}
				if found, err := f.relocated(v, elf.R_TYPE64(info), f.bias+offset, value, sym == 0); found || err != nil {
					return err
				}
			}
		}
	}
	return ErrUnresolved
}

// relocated reads the words that the loader has stored for a relocation, and sets the location of
// v. It returns false if the relocation is not of a kind for thread-local variables.
func (f *image) relocated(v *Variable, kind uint32, address, value uint64, anonymous bool) (bool, error) {
	var words [2]uint64
	switch {
	case f.isKind(kind, elf.R_X86_64_TPOFF64, elf.R_AARCH64_TLS_TPREL64):
		if err := read(f.mem, address, words[:1]); err != nil {
			return false, err
		}
		v.Model, v.offset = Static, int64(words[0])
	case f.isKind(kind, elf.R_X86_64_DTPMOD64, elf.R_AARCH64_TLS_DTPMOD64) && !anonymous:
		if err := read(f.mem, address, words[:1]); err != nil {
			return false, err
		}
		v.Model, v.id, v.offset = Dynamic, words[0], int64(value)
	case f.isKind(kind, elf.R_X86_64_TLSDESC, elf.R_AARCH64_TLSDESC):
		if err := read(f.mem, address, &words); err != nil {
			return false, err
		}
		// The second word is an offset from the thread pointer. But if the module's block is
		// allocated on demand, the word is the address of two other words: the module's index and
		// the variable's offset.
		v.Model, v.offset = Static, int64(words[1])
		var dynamic struct{ Module, Offset uint64 }
		if words[1] >= 1<<16 && words[1] < math.MaxInt64 && read(f.mem, words[1], &dynamic) == nil &&
			dynamic.Module > 0 && dynamic.Module < 1<<20 && dynamic.Offset == value {
			v.Model, v.id, v.offset = Dynamic, dynamic.Module, int64(value)
		}
	default:
		return false, nil
	}
	return true, nil
}

func (f *image) isKind(kind uint32, amd64 elf.R_X86_64, arm64 elf.R_AARCH64) bool {
	if f.machine == elf.EM_AARCH64 {
		return kind == uint32(arm64)
	}
	return kind == uint32(amd64)
}

// Address returns the address of the variable in the thread with this thread pointer. If the thread
// does not have the variable yet, Address returns 0. The block of a Dynamic variable may be
// allocated only when the thread first uses it.
func (v *Variable) Address(mem io.ReaderAt, threadPointer uint64) (uint64, error) {
	if v.Model != Dynamic {
		return threadPointer + uint64(v.offset), nil
	}
	// The location of the dynamic thread vector and the size of its entries depend on the C
	// library.
	var distance int64
	entry := uint64(16)
	switch {
	case v.musl && v.machine == elf.EM_AARCH64:
		distance = -8
	case v.machine == elf.EM_X86_64:
		distance = 8
	}
	if v.musl {
		entry = 8
	}
	var vector, block uint64
	if err := read(mem, threadPointer+uint64(distance), &vector); err != nil {
		return 0, err
	}
	// The vector may be too short, because glibc extends it only when the thread uses a new module.
	// Its size is stored in front of it (glibc) or in its first entry (musl).
	var size uint64
	sizeAddress := vector - entry
	if v.musl {
		sizeAddress = vector
	}
	if err := read(mem, sizeAddress, &size); err != nil {
		return 0, err
	}
	if v.id > size {
		return 0, nil
	}
	if err := read(mem, vector+entry*v.id, &block); err != nil {
		return 0, err
	}
	if block == 0 || block == math.MaxUint64 { // not allocated: musl stores 0, and glibc the maximum
		return 0, nil
	}
	return block + uint64(v.offset), nil
}

// read fills data, which must have a fixed size, from memory at an address. All supported machines
// are little-endian.
func read(mem io.ReaderAt, address uint64, data any) error {
	buf := make([]byte, binary.Size(data))
	if _, err := mem.ReadAt(buf, int64(address)); err != nil {
		return err
	}
	return binary.Read(bytes.NewReader(buf), binary.LittleEndian, data)
}

func gnuHash(name string) uint32 {
	h := uint32(5381)
	for _, c := range []byte(name) {
		h = h*33 + uint32(c)
	}
	return h
}

func sysvHash(name string) uint32 {
	var h uint32
	for _, c := range []byte(name) {
		h = h<<4 + uint32(c)
		g := h & 0xf0000000
		h = (h ^ g>>24) &^ g
	}
	return h
}
