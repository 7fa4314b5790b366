// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
)

const (
	// maxLocations and maxHeld, in bytes, bound the locations that are kept for a process.
	// Beyond one of them all are forgotten, and found again when asked for.
	maxLocations = 1 << 16
	maxHeld      = 32 << 20
	// maxMappings bounds the executable mappings that are looked at.
	maxMappings = 1 << 16
	// missInterval is the least time between two looks at the mappings because of an
	// address that is in none, and staleInterval is their age from which on they are
	// read again in any case: another program, or another library, may be there now.
	missInterval  = 100 * time.Millisecond
	staleInterval = time.Second
)

// Process finds the code of one process. It is not safe for concurrent use.
type Process struct {
	pid       int
	proc      *procfs.Process
	now       func() time.Time
	mappings  []*mapped // by address
	readAt    time.Time
	locations map[uint64]*Location
	held      int // about how many bytes locations take; some may be gone already
}

// mapped is a mapping with the file behind it.
type mapped struct {
	Mapping
	inode uint64
	image *image // nil before the first look
}

// Open starts with the process with id pid as it is now. It takes the permission to
// read the process's mappings; the error wraps procfs.ErrProcessGone if there is no
// such process. Close releases the files.
func Open(pid int) (*Process, error) {
	proc, err := procfs.NewFS("/proc").Process(pid)
	if err != nil {
		return nil, err
	}
	p := &Process{pid: pid, proc: proc, now: time.Now, locations: map[uint64]*Location{}}
	if err := p.Refresh(); err != nil {
		return nil, errors.Join(err, proc.Close())
	}
	return p, nil
}

// Close releases what p holds. Locations that it gave out stay valid.
func (p *Process) Close() error {
	for _, m := range p.mappings {
		m.close()
	}
	p.mappings, p.locations = nil, nil
	return p.proc.Close()
}

// Locate returns what is known about address in the process: that of the instruction
// at which a thread was interrupted if it is of the leaf, or else a return address,
// which is that of the instruction behind a call; the call itself is looked up. The
// same instruction gives the same pointer for as long as the mappings and the bound
// of the cache allow. It never returns nil.
func (p *Process) Locate(address uint64, leaf bool) *Location {
	if leaf && p.now().Sub(p.readAt) > staleInterval {
		_ = p.Refresh() // a process that has ended keeps what is known of it
	}
	if !leaf && address > 0 {
		address--
	}
	if l, ok := p.locations[address]; ok {
		return l
	}
	m := p.find(address)
	if m == nil && p.now().Sub(p.readAt) > missInterval {
		_ = p.Refresh()
		m = p.find(address)
	}
	l := p.locate(m, address)
	p.keep(l)
	return l
}

// keep keeps l for the next time.
func (p *Process) keep(l *Location) {
	const location, line = 100, 50 // bytes, about
	size := location
	for _, l := range l.Lines {
		size += line + len(l.Function) + len(l.File)
	}
	if len(p.locations) >= maxLocations || p.held+size > maxHeld {
		clear(p.locations)
		p.held = 0
	}
	p.held += size
	p.locations[l.Address] = l
}

// Refresh reads the mappings of the process, and forgets what was known about those
// that are there no more. Locate does so by itself within a second; who learns of an
// exec calls it at once. After an error what was known stays.
func (p *Process) Refresh() error {
	p.readAt = p.now()
	var found []*mapped
	for m, err := range p.proc.Maps(func([]byte) bool { return true }) {
		if err != nil {
			return err
		}
		if m.Perms.Exec && len(found) < maxMappings {
			found = append(found, &mapped{inode: m.Inode, Mapping: Mapping{
				Start: m.Start, Limit: m.End, FileOffset: m.Offset,
				Path: strings.TrimSuffix(m.Name, " (deleted)"),
			}})
		}
	}
	if len(found) == 0 {
		return nil // it is ending: its memory is gone already
	}
	p.replace(found)
	return nil
}

// replace makes found the mappings, and keeps the old ones that are the same.
func (p *Process) replace(found []*mapped) {
	old := p.mappings
	p.mappings = found
	for i, m := range found {
		for _, o := range old {
			if o.Start == m.Start && o.same(m) {
				found[i] = o
			}
		}
	}
	for _, o := range old {
		if slices.Contains(found, o) {
			continue
		}
		o.close()
	}
	for address, l := range p.locations {
		if m := p.find(address); m == nil && l.Mapping != nil || m != nil && l.Mapping != &m.Mapping {
			delete(p.locations, address)
		}
	}
}

func (m *mapped) same(o *mapped) bool {
	return m.Start == o.Start && m.Limit == o.Limit && m.FileOffset == o.FileOffset && m.Path == o.Path && m.inode == o.inode
}

// find returns the mapping that address is in, or nil.
func (p *Process) find(address uint64) *mapped {
	i, exact := slices.BinarySearchFunc(p.mappings, address, func(m *mapped, a uint64) int { return cmp.Compare(m.Start, a) })
	if !exact {
		i--
	}
	if i < 0 || address >= p.mappings[i].Limit {
		return nil
	}
	return p.mappings[i]
}
