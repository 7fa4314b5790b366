// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// These constants describe the layout of the runtime's table since Go 1.20: the structures pcHeader, functab, _func
// and inlinedCall of package runtime.
const (
	goTableMagic   = 0xfffffff1
	goHeaderSize   = 8 + 8*8
	goFuncSize     = 44
	goFuncTabEntry = 8
	// goPCDataInlTreeIndex and goFuncDataInlTree are indices in the lists of tables that follow a _func.
	goPCDataInlTreeIndex = 2
	goFuncDataInlTree    = 3
	goFuncDataOpenDefers = 4
	goInlinedCallSize    = 16
)

// These limits bound the work and the size of results when an untrusted table is read.
const (
	maxGoFunctions   = 1 << 24
	maxGoSteps       = 1 << 18 // entries of one of a function's pc-value tables
	maxGoInlineDepth = 64
)

var (
	// ErrNoGoTable means that a file has no table of Go functions.
	ErrNoGoTable = errors.New("no table of Go functions")
	// ErrUnreadableGoTable means that a file has a table of Go functions in an unknown format, or that
	// its addresses are unknown. It wraps ErrNoGoTable.
	ErrUnreadableGoTable = fmt.Errorf("%w in a known format", ErrNoGoTable)
)

// GoTable is the table of functions, files and lines that the Go runtime uses for tracebacks. Package debug/gosym is
// not used to read it, because it does not support inlined calls and holds all functions in memory.
type GoTable struct {
	table     Part // the whole table
	functions Part // functab, followed by the _func structures
	names     Part
	units     Part // cutab: file names by compilation unit
	files     Part
	byPC      Part // pctab: tables by program counter
	count     uint64
	quantum   uint64

	// text is the base address of the program counters in the table. limit is the end of the last function.
	text, limit uint64
	// code contains the machine code from text on.
	code Part
	// inlineTrees contains the inline trees of all functions, and the other tables to which goFunction has offsets. It is
	// the zero value if they are unknown.
	inlineTrees Part
}

// goFunction is the runtime's _func.
type goFunction struct {
	entry, limit   uint64
	name           uint32 // offset in names
	pcsp           uint32 // offset in byPC of the table of stack frame sizes
	pcfile, pcline uint32 // offsets in byPC of the tables of files and lines
	unit           uint32 // index in units
	start          int32  // line
	inlineIndex    uint32 // offset in byPC of the table of inlined calls, or 0
	inlineTree     uint64 // offset in inlineTrees
	inlines        bool   // has inlined calls
	defers         uint64 // offset in inlineTrees of a description of its deferred calls
	openDefers     bool   // has such a description
}

// GoTable finds the table of Go functions and its base address. The error wraps [ErrNoGoTable].
func (f *File) GoTable() (*GoTable, error) {
	s := f.Named(".gopclntab", ".data.rel.ro.gopclntab")
	if s == nil {
		return nil, ErrNoGoTable
	}
	t, err := parseGoTable(f.Content(s))
	if err != nil {
		return nil, err
	}
	relocations := f.relocations()
	for _, candidate := range f.moduleCandidates(s, relocations) {
		if words, ok := f.moduleWords(candidate, relocations); ok && t.adopt(s.Addr, words) {
			t.code = f.memory(t.text)
			t.findInlineTrees(f, words)
			return t, nil
		}
	}
	// Without moduledata the base address, and therefore every name, would be a guess.
	return nil, ErrUnreadableGoTable
}

func parseGoTable(content Part) (*GoTable, error) {
	var b [goHeaderSize]byte
	if !content.Read(0, b[:]) || binary.LittleEndian.Uint32(b[:]) != goTableMagic ||
		b[4] != 0 || b[5] != 0 || b[6] != 1 && b[6] != 4 || b[7] != 8 {
		return nil, ErrUnreadableGoTable
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8+8*i:]) }
	t := &GoTable{
		table: content, quantum: uint64(b[6]), count: word(0),
		names: content.from(word(3)), units: content.from(word(4)), files: content.from(word(5)),
		byPC: content.from(word(6)), functions: content.from(word(7)),
	}
	if t.count == 0 || t.count > maxGoFunctions {
		return nil, ErrUnreadableGoTable
	}
	return t, nil
}

// moduleWordCount is the number of words of the runtime's moduledata that are read.
const moduleWordCount = 64

// These are positions of words in moduledata. They have not changed since Go 1.18.
const (
	moduleHeader  = 0
	moduleNames   = 1 // a slice, like the others up to moduleFuncTab
	moduleUnits   = 4
	moduleFiles   = 7
	moduleByPC    = 10
	moduleTable   = 13
	moduleFuncTab = 16
	moduleMinPC   = 20
	moduleMaxPC   = 21
	moduleText    = 22
	moduleEndText = 23
)

// adopt reports whether words are the moduledata of the table at address. They must agree with the table, as the
// runtime itself requires. If they do, adopt takes the base address from them.
func (t *GoTable) adopt(address uint64, words *[moduleWordCount]uint64) bool {
	first, ok := t.functions.uint32(0)
	last, ok2 := t.functions.uint32(t.count * goFuncTabEntry)
	addressOf := func(p Part) uint64 { return address + p.start - t.table.start }
	if !ok || !ok2 || words[moduleHeader] != address ||
		words[moduleNames] != addressOf(t.names) || words[moduleUnits] != addressOf(t.units) ||
		words[moduleFiles] != addressOf(t.files) || words[moduleByPC] != addressOf(t.byPC) ||
		words[moduleTable] != addressOf(t.functions) || words[moduleFuncTab] != addressOf(t.functions) ||
		words[moduleFuncTab+1] != t.count+1 {
		return false
	}
	// If the text is too large for 32 bits, the linker divides it, and a list of sections determines the addresses.
	// Such programs are not supported: the last of the following conditions rejects them.
	text := words[moduleText]
	if words[moduleMinPC] != text+uint64(first) || words[moduleMaxPC] != text+uint64(last) ||
		words[moduleMinPC] >= words[moduleMaxPC] || words[moduleMaxPC] > words[moduleEndText] {
		return false
	}
	t.text, t.limit = text, words[moduleMaxPC]
	return true
}

// moduleCandidates returns the possible addresses of moduledata. Since Go 1.26 moduledata has its own section. In
// older files it begins at one of the places that contain the address of the table's section, s.
func (f *File) moduleCandidates(s *Section, relocations []relocation) []uint64 {
	if module := f.Named(".go.module"); module != nil {
		return []uint64{module.Addr}
	}
	candidates := f.pointersTo(s.Addr)
	for _, r := range relocations {
		if r.addend == s.Addr && len(candidates) < maxModuleCandidates {
			candidates = append(candidates, r.address)
		}
	}
	return candidates
}

const (
	maxModuleCandidates = 64
	// maxModuleSearch is the maximum number of bytes that are searched for moduledata.
	maxModuleSearch = 64 << 20
	// maxRelocations is the maximum number of relocations kept in memory while a file is opened, at 16 bytes each.
	maxRelocations = 1 << 21
)

// pointersTo returns the addresses in data sections that contain target.
func (f *File) pointersTo(target uint64) []uint64 {
	var found []uint64
	left := maxModuleSearch / 8
	for i := range f.Sections {
		s := &f.Sections[i]
		if s.name != ".data" && s.name != ".noptrdata" && s.name != ".data.rel.ro" {
			continue
		}
		content := f.Content(s)
		for offset := uint64(0); left > 0 && len(found) < maxModuleCandidates; offset += 8 {
			left--
			word, ok := content.uint64(offset)
			if !ok {
				break
			}
			if word == target {
				found = append(found, s.Addr+offset)
			}
		}
	}
	return found
}

// relocation tells the loader to store addend plus the load address at address.
type relocation struct{ address, addend uint64 }

// relocations returns the relative relocations of a position-independent file, which only add the load
// address.
func (f *File) relocations() []relocation {
	var found []relocation
	var b [24]byte // elf.Rela64
	left := maxRelocations
	for i := range f.Sections {
		s := &f.Sections[i]
		if elf.SectionType(s.Type) != elf.SHT_RELA || elf.SectionFlag(s.Flags)&elf.SHF_ALLOC == 0 {
			continue
		}
		content := f.Content(s)
		for offset := uint64(0); left > 0 && content.Read(offset, b[:]); offset += uint64(len(b)) {
			left--
			kind := binary.LittleEndian.Uint64(b[8:])
			if kind == uint64(elf.R_X86_64_RELATIVE) || kind == uint64(elf.R_AARCH64_RELATIVE) {
				found = append(found, relocation{binary.LittleEndian.Uint64(b[0:]), binary.LittleEndian.Uint64(b[16:])})
			}
		}
	}
	return found
}

// moduleWords returns the words that start at address, as relocations would set them if the load address were 0.
func (f *File) moduleWords(address uint64, relocations []relocation) (*[moduleWordCount]uint64, bool) {
	words := new([moduleWordCount]uint64)
	content := f.memory(address)
	for i := range words {
		var ok bool
		if words[i], ok = content.uint64(uint64(i) * 8); !ok {
			return nil, false
		}
	}
	for _, r := range relocations {
		if offset := r.address - address; offset < moduleWordCount*8 && offset%8 == 0 {
			words[offset/8] = r.addend
		}
	}
	return words, true
}

const (
	// inlineProbe is the number of functions with inlined calls that are used to test possible inline trees.
	inlineProbe = 32
	// inlineSearch is the maximum number of functions that are searched for functions with inlined calls.
	inlineSearch = 1 << 16
	// maxInlined is the maximum number of inlined calls that are checked in one function.
	maxInlined = 1 << 12
)

// probe is a function whose inlined calls are checked to test possible inline trees.
type probe struct {
	goFunction
	count int32 // number of inlined calls
}

// findInlineTrees finds the address of the inline trees (gofunc) among the words of moduledata. The position of this
// word differs between Go versions: findInlineTrees tries the words after the known ones, and takes the first that
// leads to plausible inline trees. If there is none, inlined calls remain unknown.
func (t *GoTable) findInlineTrees(f *File, words *[moduleWordCount]uint64) {
	var probes []probe
	for i := range min(t.count, inlineSearch) {
		fn, ok := t.function(i)
		if !ok || !fn.inlines {
			continue
		}
		p := probe{goFunction: fn}
		for v := range t.values(fn.inlineIndex, fn.entry) {
			p.count = min(max(p.count, v.value+1), maxInlined)
		}
		if p.count == 0 {
			continue
		}
		if probes = append(probes, p); len(probes) == inlineProbe {
			break
		}
	}
	if len(probes) == 0 {
		return
	}
	for _, word := range words[moduleEndText+1:] {
		trees := f.memory(word)
		if trees.size == 0 {
			continue
		}
		good := true
		for _, p := range probes {
			good = good && t.plausible(p, trees)
		}
		if good {
			t.inlineTrees = trees
			return
		}
	}
}

// plausible reports whether trees could be the inline trees. Each inlined call of p must have a name that begins
// where a name of the table begins, and an offset inside the function.
func (t *GoTable) plausible(p probe, trees Part) bool {
	for i := range p.count {
		call, ok := inlinedCall(p.goFunction, trees, i)
		if !ok || uint64(call.parent) >= p.limit-p.entry {
			return false
		}
		if before, ok := t.names.uint8(uint64(call.name) - 1); call.name != 0 && (!ok || before != 0) {
			return false
		}
		if first, ok := t.names.uint8(uint64(call.name)); !ok || first == 0 {
			return false
		}
	}
	return true
}

// goCall is the runtime's inlinedCall. name is the offset of the called function's name in GoTable.names, and start is
// the function's first line. parent is the position of the call, as an offset in the code of goFunction.
type goCall struct {
	name, parent uint32
	start        int32
}

func inlinedCall(fn goFunction, trees Part, index int32) (goCall, bool) {
	var b [goInlinedCallSize]byte
	if !trees.Read(fn.inlineTree+uint64(index)*goInlinedCallSize, b[:]) || b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return goCall{}, false
	}
	return goCall{
		name: binary.LittleEndian.Uint32(b[4:]), parent: binary.LittleEndian.Uint32(b[8:]),
		start: int32(binary.LittleEndian.Uint32(b[12:])),
	}, true
}

func (t *GoTable) function(i uint64) (goFunction, bool) {
	var pair [goFuncTabEntry + 4]byte
	var b [goFuncSize]byte
	if i >= t.count || !t.functions.Read(i*goFuncTabEntry, pair[:]) {
		return goFunction{}, false
	}
	entry, offset, next := binary.LittleEndian.Uint32(pair[0:]), uint64(binary.LittleEndian.Uint32(pair[4:])), binary.LittleEndian.Uint32(pair[8:])
	if entry >= next || !t.functions.Read(offset, b[:]) || binary.LittleEndian.Uint32(b[0:]) != entry {
		return goFunction{}, false
	}
	word := func(offset int) uint32 { return binary.LittleEndian.Uint32(b[offset:]) }
	fn := goFunction{
		entry: t.text + uint64(entry), limit: t.text + uint64(next),
		name: word(4), pcsp: word(16), pcfile: word(20), pcline: word(24), unit: word(32), start: int32(word(36)),
	}
	tables, data := uint64(word(28)), b[43]
	if tables > goPCDataInlTreeIndex {
		fn.inlineIndex, _ = t.functions.uint32(offset + goFuncSize + goPCDataInlTreeIndex*4)
	}
	if data > goFuncDataInlTree {
		tree, ok := t.functions.uint32(offset + goFuncSize + tables*4 + goFuncDataInlTree*4)
		fn.inlineTree, fn.inlines = uint64(tree), ok && tree != ^uint32(0)
	}
	if data > goFuncDataOpenDefers {
		defers, ok := t.functions.uint32(offset + goFuncSize + tables*4 + goFuncDataOpenDefers*4)
		fn.defers, fn.openDefers = uint64(defers), ok && defers != ^uint32(0)
	}
	return fn, true
}

// find returns the function that contains address.
func (t *GoTable) find(address uint64) (goFunction, bool) {
	if !t.Contains(address) {
		return goFunction{}, false
	}
	offset := address - t.text
	low, high := uint64(0), t.count // invariant: all functions before low begin at or before address
	for low < high {
		middle := (low + high) / 2
		entry, ok := t.functions.uint32(middle * goFuncTabEntry)
		if !ok {
			return goFunction{}, false
		}
		if uint64(entry) <= offset {
			low = middle + 1
		} else {
			high = middle
		}
	}
	fn, ok := t.function(low - 1)
	if !ok || address < fn.entry || address >= fn.limit {
		return goFunction{}, false
	}
	return fn, true
}

// pcValue is an entry of a table by program counter. The value applies from the previous entry's limit up to, but not
// including, limit.
type pcValue struct {
	value int32
	limit uint64
}

// values yields the entries of a table by program counter. The table is at offset in byPC, and belongs to the function
// that begins at entry. Invalid data ends the table.
func (t *GoTable) values(offset uint32, entry uint64) func(yield func(pcValue) bool) {
	return func(yield func(pcValue) bool) {
		if offset == 0 {
			return
		}
		position, pc, value := uint64(offset), entry, int32(-1)
		for step := range maxGoSteps {
			change, n, ok := t.varint(position)
			if !ok || change == 0 && step > 0 {
				return
			}
			position += n
			advance, n, ok := t.varint(position)
			if !ok {
				return
			}
			position += n
			// Zigzag encoding: the sign is the lowest bit.
			value += int32(-(change & 1) ^ (change >> 1))
			pc += uint64(advance) * t.quantum
			if !yield(pcValue{value, pc}) {
				return
			}
		}
	}
}

// varint reads a varint in byPC, and returns its size.
func (t *GoTable) varint(position uint64) (value uint32, n uint64, ok bool) {
	for shift := 0; shift < 32; shift += 7 {
		b, ok := t.byPC.uint8(position + n)
		if !ok {
			return 0, 0, false
		}
		n++
		value |= uint32(b&0x7f) << shift
		if b&0x80 == 0 {
			return value, n, true
		}
	}
	return 0, 0, false
}

// value returns the value at address in the table of a function that begins at entry, or -1 if there is
// none.
func (t *GoTable) value(offset uint32, entry, address uint64) int32 {
	for v := range t.values(offset, entry) {
		if address < v.limit {
			return v.value
		}
	}
	return -1
}

// Contains reports whether the code of the table's functions includes address.
func (t *GoTable) Contains(address uint64) bool { return t.text <= address && address < t.limit }

// FrameSize returns the name of the function that contains address, as it is in the table, and the number of
// bytes by which the stack pointer has moved since the function's entry. ok is false if either is unknown.
func (t *GoTable) FrameSize(address uint64) (function string, size int, ok bool) {
	fn, ok := t.find(address)
	if !ok {
		return "", 0, false
	}
	function, ok = t.names.Text(uint64(fn.name))
	delta := t.value(fn.pcsp, fn.entry, address)
	return function, int(delta), ok && delta >= 0
}

// Line is a function and a position in it.
type Line struct {
	Function string
	// File is empty and Line is 0 if they are unknown.
	File string
	Line int
	// Start is the first line of the function, or 0 if it is unknown.
	Start int
}

// Lookup returns the function that contains address, preceded by the functions inlined there. If the inlined
// functions are unknown, it returns the function without file and line, because the table has these only for the
// innermost function.
func (t *GoTable) Lookup(address uint64) ([]Line, bool) {
	fn, ok := t.find(address)
	if !ok {
		return nil, false
	}
	outer, ok := t.names.Text(uint64(fn.name))
	if !ok || outer == "" {
		return nil, false
	}
	var lines []Line
	for range maxGoInlineDepth {
		index := int32(-1)
		if fn.inlines {
			index = t.value(fn.inlineIndex, fn.entry, address)
		}
		file, line := t.place(fn, address)
		if index < 0 {
			return append(lines, Line{Function: Printable(outer), File: file, Line: line, Start: startLine(fn.start)}), true
		}
		call, ok := goCall{}, t.inlineTrees.pieces != nil
		if ok {
			call, ok = inlinedCall(fn, t.inlineTrees, index)
		}
		name, named := t.names.Text(uint64(call.name))
		if !ok || !named || name == "" || uint64(call.parent) >= fn.limit-fn.entry {
			break
		}
		lines = append(lines, Line{Function: Printable(name), File: file, Line: line, Start: startLine(call.start)})
		address = fn.entry + uint64(call.parent)
	}
	return []Line{{Function: Printable(outer), Start: startLine(fn.start)}}, true
}

// startLine returns line, or 0 if it is negative, which is possible in an untrusted file.
func startLine(line int32) int { return int(max(line, 0)) }

// place returns the file and line of the instruction at address, or "" and 0.
func (t *GoTable) place(fn goFunction, address uint64) (file string, line int) {
	number, lineNumber := t.value(fn.pcfile, fn.entry, address), t.value(fn.pcline, fn.entry, address)
	if number < 0 || lineNumber < 0 {
		return "", 0
	}
	offset, ok := t.units.uint32((uint64(fn.unit) + uint64(number)) * 4)
	if !ok || offset == ^uint32(0) {
		return "", 0
	}
	if file, ok = t.files.Text(uint64(offset)); !ok {
		return "", 0
	}
	return file, int(lineNumber)
}

// Printable returns a function's name as the runtime prints it, with three dots instead of type arguments, which are
// the text between the outermost brackets.
func Printable(name string) string {
	i, j := strings.IndexByte(name, '['), strings.LastIndexByte(name, ']')
	if i < 0 || j <= i {
		return name
	}
	return name[:i] + "[...]" + name[j+1:]
}
