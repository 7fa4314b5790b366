// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"unicode"
)

// These limits for ELF files are far beyond anything that linkers produce.
const (
	MaxSegments = 256 // program headers
	maxSections = 1 << 14
	maxNotes    = 64 << 10 // bytes of one segment or section

	maxNoteSections = 64
)

// ErrNotELF means that a file is not ELF, or is for a machine that this package does not support.
var ErrNotELF = errors.New("not an ELF file of a 64-bit little-endian machine")

// File holds the headers of an ELF file. Package debug/elf is not used, because it allocates as much memory as
// the headers of an untrusted file claim.
type File struct {
	// Machine is the architecture.
	Machine  elf.Machine
	file     Part
	headers  uint64 // offset of the program headers
	Segments []elf.Prog64
	Sections []Section
}

// Section is a section header. name is set only if it is in sectionNames.
type Section struct {
	elf.Section64
	name string
}

// sectionNames lists the sections that are looked up by name.
var sectionNames = map[string]bool{
	".gopclntab": true, ".data.rel.ro.gopclntab": true, ".go.module": true,
	".data": true, ".noptrdata": true, ".data.rel.ro": true,
	".gnu_debuglink": true,
}

// Parse reads the headers of file.
func Parse(file Part) (*File, error) {
	var ident [elf.EI_NIDENT]byte
	if !file.Read(0, ident[:]) || !bytes.HasPrefix(ident[:], []byte(elf.ELFMAG)) ||
		elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, ErrNotELF
	}
	var header elf.Header64
	if !decode(file, 0, &header) {
		return nil, ErrNotELF
	}
	switch elf.Machine(header.Machine) {
	case elf.EM_X86_64, elf.EM_AARCH64:
	default:
		return nil, fmt.Errorf("%w: %v", ErrNotELF, elf.Machine(header.Machine))
	}
	f := &File{Machine: elf.Machine(header.Machine), file: file, headers: header.Phoff}
	for i := range min(uint64(header.Phnum), MaxSegments) {
		var s elf.Prog64
		if !decode(file, header.Phoff+i*uint64(header.Phentsize), &s) {
			return nil, errors.New("program headers are cut off")
		}
		f.Segments = append(f.Segments, s)
	}
	f.readSections(&header)
	return f, nil
}

// readSections reads as many section headers as possible, up to maxSections. Section headers that are cut off are
// treated as missing.
func (f *File) readSections(header *elf.Header64) {
	if header.Shoff == 0 {
		return
	}
	count, names := uint64(header.Shnum), uint64(header.Shstrndx)
	var first elf.Section64
	if !decode(f.file, header.Shoff, &first) {
		return
	}
	if count == 0 { // the number is too large for the field and is in the first section header
		count = first.Size
	}
	if names == uint64(elf.SHN_XINDEX) {
		names = uint64(first.Link)
	}
	for i := range min(count, maxSections) {
		var s elf.Section64
		if !decode(f.file, header.Shoff+i*uint64(header.Shentsize), &s) {
			break
		}
		f.Sections = append(f.Sections, Section{Section64: s})
	}
	if names >= uint64(len(f.Sections)) {
		return
	}
	table := f.Content(&f.Sections[names])
	for i := range f.Sections {
		if name, ok := table.Text(uint64(f.Sections[i].Name)); ok && sectionNames[name] {
			f.Sections[i].name = name
		}
	}
}

// decode decodes the ELF structure at offset. It returns false if p ends before the structure does.
func decode(p Part, offset uint64, to any) bool {
	b := make([]byte, binary.Size(to))
	if !p.Read(offset, b) {
		return false
	}
	_, err := binary.Decode(b, binary.LittleEndian, to)
	return err == nil
}

// Content returns the contents of a section. They are empty if the section is compressed, or takes no space in the
// file.
func (f *File) Content(s *Section) Part {
	if elf.SectionType(s.Type) == elf.SHT_NOBITS || elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 {
		return f.file.sub(0, 0)
	}
	return f.file.sub(s.Off, s.Size)
}

// Named returns the first section with one of these names, or nil.
func (f *File) Named(names ...string) *Section {
	for i := range f.Sections {
		if slices.Contains(names, f.Sections[i].name) {
			return &f.Sections[i]
		}
	}
	return nil
}

// Address converts the file offset of code to its virtual address.
func (f *File) Address(offset uint64) (uint64, bool) {
	for _, s := range f.Segments {
		if elf.ProgType(s.Type) == elf.PT_LOAD && elf.ProgFlag(s.Flags)&elf.PF_X != 0 && offset >= s.Off && offset-s.Off < s.Filesz {
			return offset - s.Off + s.Vaddr, true
		}
	}
	return 0, false
}

// ProgramHeaders returns the virtual address of the program headers, or false if they are not loaded.
func (f *File) ProgramHeaders() (uint64, bool) {
	for _, s := range f.Segments {
		if elf.ProgType(s.Type) == elf.PT_LOAD && f.headers >= s.Off && f.headers-s.Off < s.Filesz {
			return f.headers - s.Off + s.Vaddr, true
		}
	}
	return 0, false
}

// memory returns the file's contents for the memory from address to the end of its segment, or an empty part if no
// segment has contents there.
func (f *File) memory(address uint64) Part {
	for _, s := range f.Segments {
		if elf.ProgType(s.Type) == elf.PT_LOAD && address >= s.Vaddr && address-s.Vaddr < s.Filesz {
			return f.file.sub(s.Off, s.Filesz).from(address - s.Vaddr)
		}
	}
	return f.file.sub(0, 0)
}

// BuildIDs returns the GNU build id in hexadecimal, and the Go build id. A missing id is "". It searches sections,
// too, because no segment contains the GNU build id of a program linked by Go's own linker.
func (f *File) BuildIDs() (gnu, golang string) {
	add := func(offset, size, align uint64) {
		// Notes aligned to 8 bytes have a different layout and contain no build ids.
		content := make([]byte, min(size, maxNotes))
		if align == 8 || !f.file.Read(offset, content) {
			return
		}
		g, o := ParseNotes(content)
		gnu, golang = max(gnu, g), max(golang, o)
	}
	for _, s := range f.Segments {
		if elf.ProgType(s.Type) == elf.PT_NOTE {
			add(s.Off, s.Filesz, s.Align)
		}
	}
	notes := 0
	for i := range f.Sections {
		if s := &f.Sections[i]; gnu == "" && elf.SectionType(s.Type) == elf.SHT_NOTE && notes < maxNoteSections {
			notes++
			add(s.Off, s.Size, s.Addralign)
		}
	}
	return gnu, golang
}

const (
	noteGNUBuildID = 3
	noteGoBuildID  = 4
	maxGNUBuildID  = 64  // bytes
	maxGoBuildID   = 256 // bytes
)

// ParseNotes returns the build ids among notes.
func ParseNotes(notes []byte) (gnu, golang string) {
	const header = 12
	for len(notes) >= header {
		nameSize, size := uint64(binary.LittleEndian.Uint32(notes)), uint64(binary.LittleEndian.Uint32(notes[4:]))
		kind := binary.LittleEndian.Uint32(notes[8:])
		start := header + (nameSize+3)&^3
		end := start + size
		if end > uint64(len(notes)) {
			break
		}
		name, content := notes[header:header+nameSize], notes[start:end]
		switch {
		case string(name) == "GNU\x00" && kind == noteGNUBuildID && size <= maxGNUBuildID:
			gnu = hex.EncodeToString(content)
		case string(name) == "Go\x00\x00" && kind == noteGoBuildID && size <= maxGoBuildID && isPrintable(content):
			golang = string(content)
		}
		notes = notes[min((end+3)&^3, uint64(len(notes))):]
	}
	return gnu, golang
}

func isPrintable(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) })
}
