// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// NameTable says where a process keeps the names of its spans, see docs/wire-format.md.
type NameTable struct {
	// Address is where the table's header is, and HeaderSize how far behind it the first
	// entry is. EntrySize is the distance between entries, and Capacity their number.
	Address                         uint64
	HeaderSize, EntrySize, Capacity int
}

// Bounds of what a process may advertise as the layout of its name table.
const (
	maxEntrySize    = 1024
	maxNameCapacity = 1 << 16
)

// nameTable returns the name table that is advertised. The error says why there is none.
func (a advertisement) nameTable() (*NameTable, error) {
	t, err := a.table(wire.KeyNames, tableBounds{wire.NamesLayout1, wire.TableKeyEntrySize, 2, maxEntrySize, maxNameCapacity})
	if err != nil {
		return nil, err
	}
	return &NameTable{t.address, t.headerSize, t.entrySize, t.capacity}, nil
}

// errNoNameTable says that there is no name table at the advertised address.
var errNoNameTable = errors.New("not a name table")

// read returns names by their numbers, of which some are known already. The error is the
// memory's, or says that the header is not that of this table; then it returns what is known.
func (t *NameTable) read(memory ringbuf.Memory, known []string) ([]string, error) {
	used, err := table{t.Address, t.HeaderSize, t.EntrySize, t.Capacity}.used(memory, wire.NamesMagic, wire.NamesLayout1, errNoNameTable)
	if err != nil {
		return known, fmt.Errorf("name table: %w", err)
	}
	// The entries are read after the number of those that are complete.
	const batch = 256
	for len(known) < used {
		entries := make([]byte, min(batch, used-len(known))*t.EntrySize)
		address := t.Address + uint64(t.HeaderSize) + uint64(len(known)*t.EntrySize)
		if _, err := memory.ReadParts([]ringbuf.Part{{Address: address, Data: entries}}); err != nil {
			return known, fmt.Errorf("name table: %w", err)
		}
		for ; len(entries) > 0; entries = entries[t.EntrySize:] {
			size := min(int(entries[0]), t.EntrySize-1)
			known = append(known, string(entries[1:1+size]))
		}
	}
	return known, nil
}

// Names returns the names of a process's spans by their numbers. known are the names that the
// caller has read before: names never change, and new ones are appended. t is of this process
// and what it advertises, see [ThreadLayout]. The error wraps [ErrNotPermitted],
// [ErrProcessGone] or [ErrInvalid], or says that the table is not there any more; then Names
// returns what is known.
func (p *Process) Names(t *NameTable, known []string) ([]string, error) {
	names, err := t.read(p.threads.source, known)
	if err != nil {
		return known, p.classify(err)
	}
	// Memory is read by the id: as long as the process lives it was this one's.
	if err := p.checkAlive(); err != nil {
		return known, err
	}
	return names, nil
}

// spanNames are the numbers of the names of a span and of its local root; 0 is none.
type spanNames struct{ name, endpoint uint16 }

// nameSpans returns what finds the names of numbers. It reads the process's names once, if a
// number is not known. What cannot be read has no name.
func (p *Process) nameSpans(v *threadView) func(spanNames) (name, endpoint string) {
	asked := false
	return func(numbers spanNames) (name, endpoint string) {
		most := int(max(numbers.name, numbers.endpoint))
		if v.names == nil || most == 0 {
			return "", ""
		}
		s := &p.threads
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.nameTable != v.names {
			s.nameTable, s.names = v.names, nil
		}
		if most >= len(s.names) && !asked {
			asked = true
			s.names, _ = v.names.read(s.source, s.names)
		}
		find := func(number uint16) string {
			if int(number) < len(s.names) {
				return s.names[number]
			}
			return ""
		}
		return find(numbers.name), find(numbers.endpoint)
	}
}
