// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// NameTable locates the names of a process's spans. See docs/wire-format.md.
type NameTable struct {
	// Address is the address of the table's header, and HeaderSize the distance from there to the
	// first entry. EntrySize is the distance between entries, and Capacity their number.
	Address                         uint64
	HeaderSize, EntrySize, Capacity int
}

// These constants bound the layout of a name table that a process may advertise.
const (
	maxEntrySize    = 1024
	maxNameCapacity = 1 << 16
)

// nameTable returns the advertised name table, or the reason why there is none.
func (a advertisement) nameTable() (*NameTable, error) {
	t, err := a.table(wire.KeyNames, tableBounds{wire.NamesLayout1, wire.TableKeyEntrySize, 2, maxEntrySize, maxNameCapacity})
	if err != nil {
		return nil, err
	}
	return &NameTable{t.address, t.headerSize, t.entrySize, t.capacity}, nil
}

// errNoNameTable means that the advertised address holds no name table.
var errNoNameTable = errors.New("not a name table")

// read appends the names that have been added since names was read, and returns all names by
// number. The error comes from memory, or says that the header does not match this table. On
// error, read returns the names read so far.
func (t *NameTable) read(memory ringbuf.Memory, names []string) ([]string, error) {
	used, err := table{t.Address, t.HeaderSize, t.EntrySize, t.Capacity}.used(memory, wire.NamesMagic, wire.NamesLayout1, errNoNameTable)
	if err != nil {
		return names, fmt.Errorf("name table: %w", err)
	}
	// The count is read first. It counts only complete entries, so every entry that is read is
	// complete.
	const batch = 256
	for len(names) < used {
		entries := make([]byte, min(batch, used-len(names))*t.EntrySize)
		address := t.Address + uint64(t.HeaderSize) + uint64(len(names)*t.EntrySize)
		if _, err := memory.ReadParts([]ringbuf.Part{{Address: address, Data: entries}}); err != nil {
			return names, fmt.Errorf("name table: %w", err)
		}
		for ; len(entries) > 0; entries = entries[t.EntrySize:] {
			size := min(int(entries[0]), t.EntrySize-1)
			names = append(names, string(entries[1:1+size]))
		}
	}
	return names, nil
}

// Names returns the names of a process's spans by number. known holds the names that the caller has
// read before: names never change, and new ones are appended. t is the table that this process
// advertises; see [ThreadLayout]. The error wraps [ErrNotPermitted], [ErrProcessGone] or
// [ErrInvalid], or says that the table no longer exists. On error, Names returns known.
func (p *Process) Names(t *NameTable, known []string) ([]string, error) {
	names, err := t.read(p.threads.source, known)
	if err != nil {
		return known, p.classify(err)
	}
	// Memory is read by pid. If the process is still alive now, the pid referred to it during
	// the whole read.
	if err := p.checkAlive(); err != nil {
		return known, err
	}
	return names, nil
}

// spanNames holds the numbers of the names of a span and of its local root. The number 0 means
// no name.
type spanNames struct{ name, endpoint uint16 }

// nameSpans returns a function that looks up names by number. At the first unknown number, the
// function reads the process's name table, once. It returns "" for names that cannot be read.
func (p *Process) nameSpans(v *threadView) func(spanNames) (name, endpoint string) {
	refreshed := false
	return func(numbers spanNames) (name, endpoint string) {
		highest := int(max(numbers.name, numbers.endpoint))
		if v.names == nil || highest == 0 {
			return "", ""
		}
		s := &p.threads
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.nameTable != v.names {
			s.nameTable, s.names = v.names, nil
		}
		if highest >= len(s.names) && !refreshed {
			refreshed = true
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
