// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"io"

	"github.com/otelctx/otelctx/internal/remotemem"
)

// image is the ELF file that a mapping is of, opened.
type image struct {
	closer    io.Closer // nil for what is in memory
	elf       *elfFile  // nil if it is none, or cannot be read
	golang    *goTable  // nil if there is none
	functions *elfSymbols
}

// vdso is the path of the code that the kernel maps into each process.
const vdso = "[vdso]"

// maxVDSO is its size, in bytes, that is read.
const maxVDSO = 64 << 10

// open opens the file behind m at the first call. It sets what m says of the file,
// before anybody else has a pointer to m.
func (p *Process) open(m *mapped) {
	if m.image != nil {
		return
	}
	m.image = &image{}
	switch {
	case m.Path == vdso:
		code := make([]byte, min(m.Limit-m.Start, maxVDSO))
		n, _ := remotemem.Of(p.pid).ReadAt(code, int64(m.Start))
		if p.proc.Alive() == nil { // else it was perhaps another process's
			m.image.parse(bytes.NewReader(code[:n]))
		}
	case m.inode != 0:
		f, err := p.openFile(m)
		if err != nil {
			return
		}
		m.image.closer = f
		m.image.parse(f)
	}
	if m.image.elf != nil {
		m.GNUBuildID, m.GoBuildID = m.image.elf.buildIDs()
	}
}

func (i *image) parse(file io.ReaderAt) {
	f, err := parseELF(whole(file))
	if err != nil {
		return // a file of another kind, whose code nothing names
	}
	i.elf = f
	if t, err := f.goTable(); err == nil {
		i.golang = t
	}
}

// close closes the file. What was found in it stays.
func (m *mapped) close() {
	if m.image != nil && m.image.closer != nil {
		_ = m.image.closer.Close() // nothing was written
	}
}

// locate returns what is known about address, which is in m, or in no mapping if that
// is nil.
func (p *Process) locate(m *mapped, address uint64) *Location {
	l := &Location{Address: address}
	if m == nil {
		return l
	}
	p.open(m)
	l.Mapping = &m.Mapping
	if m.image.elf == nil {
		return l
	}
	l.Type = TypeNative
	if at, ok := m.image.elf.address(address - m.Start + m.FileOffset); ok {
		l.Lines, l.Type = m.image.lookup(at)
	}
	return l
}

// lookup returns the functions at address, in the file's own numbers, and their type.
func (i *image) lookup(address uint64) ([]Line, string) {
	if t := i.golang; t != nil && t.text <= address && address < t.limit {
		lines, _ := t.lookup(address)
		return lines, TypeGo
	}
	if i.functions == nil {
		i.functions = i.elf.readSymbols()
	}
	if name, ok := i.functions.lookup(address); ok {
		return []Line{{Function: name}}, TypeNative
	}
	return nil, TypeNative
}
