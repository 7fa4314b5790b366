// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"fmt"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// table is the location and layout of a name, span or goroutine table: a header followed by entries
// of one size.
type table struct {
	address                         uint64
	headerSize, entrySize, capacity int
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
func (a advertisement) table(prefix string, b tableBounds) (t table, err error) {
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
		if *f.value, err = a.integer(prefix+f.key, f.lowest, f.highest); err != nil {
			return table{}, err
		}
	}
	return table{uint64(address), int(headerSize), int(entrySize), int(capacity)}, nil
}

// used reads the table's header and returns the number of entries in use. If the header does not
// match the advertisement, the error wraps mismatch and says how. Any other error comes from
// memory.
func (t table) used(memory ringbuf.Memory, magic, layout uint32, mismatch error) (int, error) {
	var b [24]byte
	if _, err := memory.ReadParts([]ringbuf.Part{{Address: t.address, Data: b[:]}}); err != nil {
		return 0, err
	}
	for i, want := range []uint32{magic, layout, uint32(t.capacity), uint32(t.entrySize), uint32(t.headerSize)} {
		if got := binary.NativeEndian.Uint32(b[4*i:]); got != want {
			return 0, fmt.Errorf("%w: word %d of the header is %#x instead of %#x", mismatch, i, got, want)
		}
	}
	return int(min(binary.NativeEndian.Uint32(b[20:]), uint32(t.capacity))), nil
}
