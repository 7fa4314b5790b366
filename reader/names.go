// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// Limits for the layout of an advertised name table.
const (
	maxEntrySize    = 1024
	maxNameCapacity = 1 << 16
)

// nameTable returns the advertised name table. The error is the reason why there is none.
func (a advertisement) nameTable() (*Table, error) {
	return a.table(wire.KeyNames, tableBounds{wire.NamesLayout1, wire.TableKeyEntrySize, 2, maxEntrySize, maxNameCapacity})
}

// errNoNameTable means that there is no name table at the advertised address.
var errNoNameTable = errors.New("not a name table")

// readNames returns all names in the table by number. names holds the names that earlier calls have
// returned; readNames appends the new ones. If there is an error, it returns the names read so far. The
// error comes from memory, or says that the header does not match t.
func readNames(t *Table, memory remotemem.Reader, names []string) ([]string, error) {
	used, err := t.used(memory, wire.NamesMagic, errNoNameTable)
	if err != nil {
		return names, fmt.Errorf("name table: %w", err)
	}
	// used counts only complete entries and was read first, so the following reads find complete
	// entries.
	const batch = 256
	for len(names) < used {
		entries := make([]byte, min(batch, used-len(names))*t.EntrySize)
		address := t.Address + uint64(t.HeaderSize) + uint64(len(names)*t.EntrySize)
		if _, err := memory.ReadParts([]remotemem.Part{{Address: address, Data: entries}}); err != nil {
			return names, fmt.Errorf("name table: %w", err)
		}
		for ; len(entries) > 0; entries = entries[t.EntrySize:] {
			size := min(int(entries[0]), t.EntrySize-1)
			names = append(names, string(entries[1:1+size]))
		}
	}
	return names, nil
}

// Names returns the names of the process's spans by number. t is [ThreadLayout.Names]. known is the result of an earlier call for the same table, or
// nil: existing names never change, so Names reads only new ones and appends them to known.
//
// The error wraps [ErrNotPermitted], [ErrProcessGone] or [ErrInvalid], or says that the table no
// longer exists. If there is an error, Names returns known.
func (p *Process) Names(t *Table, known []string) ([]string, error) {
	names, err := readNames(t, p.threads.source, known)
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

// spanNames holds the numbers of two names: that of a span and that of its local root. A number of
// 0 means that there is no name.
type spanNames struct{ name, endpoint uint16 }

// nameSpans returns a function that looks up names by number in the cached names. At the first
// number that the cache lacks, the function updates the cache from the process's name table. It
// does so only once. It returns "" for numbers that are still unknown.
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
			s.names, _ = readNames(v.names, s.source, s.names)
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
