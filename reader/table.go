// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"fmt"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// Table is the location and layout of a table in the memory of a process: a header, followed by
// entries of one size. docs/wire-format.md describes the entries of each table.
type Table struct {
	// Mapping is the name of the mapping that contains the table, or "" if it is unknown.
	Mapping string
	// Address is the address of the header. Entry number i, from 0 to Capacity-1, is at Address +
	// HeaderSize + i*EntrySize.
	Address                         uint64
	HeaderSize, EntrySize, Capacity int
	// Layout is the version of the table's format.
	Layout int
	// Fields maps the advertised names of an entry's fields, such as span_id, to their offsets in
	// the entry. It is nil if they are unknown or not advertised.
	Fields map[string]int
}

// tableBounds are the requirements for an advertised table.
type tableBounds struct {
	layout             int64
	entrySizeKey       string
	minEntry, maxEntry int64 // bytes
	maxCapacity        int64
}

// table returns the table that the attributes with this prefix describe. The error is the reason
// why there is none.
func (a advertisement) table(prefix string, b tableBounds) (*Table, error) {
	var address, layout, headerSize, entrySize, capacity int64
	for _, f := range []struct {
		key             string
		value           *int64
		lowest, highest int64
	}{
		{wire.RingKeyAddress, &address, 1, addressEnd},
		{wire.RingKeyLayout, &layout, b.layout, b.layout},
		{wire.RingKeyHeaderSize, &headerSize, 32, 4096},
		{b.entrySizeKey, &entrySize, b.minEntry, b.maxEntry},
		{wire.RingKeyCapacity, &capacity, 1, b.maxCapacity},
	} {
		var err error
		if *f.value, err = a.integer(prefix+f.key, f.lowest, f.highest); err != nil {
			return nil, err
		}
	}
	mapping, _ := a.text(prefix + wire.RingKeyMapping)
	return &Table{
		Mapping: mapping, Address: uint64(address), HeaderSize: int(headerSize), EntrySize: int(entrySize),
		Capacity: int(capacity), Layout: int(layout),
	}, nil
}

// used reads the table's header and returns the number of entries in use. If the header does not
// match the advertisement, the error wraps mismatch and says how. Any other error comes from
// memory.
func (t *Table) used(memory remotemem.Reader, magic uint32, mismatch error) (int, error) {
	var b [24]byte
	if _, err := memory.ReadParts([]remotemem.Part{{Address: t.Address, Data: b[:]}}); err != nil {
		return 0, err
	}
	for i, want := range []uint32{magic, uint32(t.Layout), uint32(t.Capacity), uint32(t.EntrySize), uint32(t.HeaderSize)} {
		if got := binary.NativeEndian.Uint32(b[4*i:]); got != want {
			return 0, fmt.Errorf("%w: word %d of the header is %#x instead of %#x", mismatch, i, got, want)
		}
	}
	return int(min(binary.NativeEndian.Uint32(b[20:]), uint32(t.Capacity))), nil
}
