// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"fmt"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// table is memory with a header and entries of one size behind it, as names and live spans
// are in.
type table struct {
	address                         uint64
	headerSize, entrySize, capacity int
}

// tableBounds are the bounds of what a process may advertise as a table's layout.
type tableBounds struct {
	layout             int64
	entrySizeKey       string
	minEntry, maxEntry int64 // bytes
	maxCapacity        int64
}

// table returns the table whose attributes have a prefix. The error says why there is none.
func (a advertisement) table(prefix string, b tableBounds) (t table, err error) {
	var address, layout, headerSize, entrySize, capacity int64
	for _, f := range []struct {
		key             string
		to              *int64
		lowest, highest int64
	}{
		{wire.RingKeyAddress, &address, 1, addressEnd},
		{wire.RingKeyLayout, &layout, b.layout, b.layout},
		{wire.RingKeyHeaderSize, &headerSize, 32, 4096},
		{b.entrySizeKey, &entrySize, b.minEntry, b.maxEntry},
		{wire.RingKeyCapacity, &capacity, 1, b.maxCapacity},
	} {
		if *f.to, err = a.integer(prefix+f.key, f.lowest, f.highest); err != nil {
			return table{}, err
		}
	}
	return table{uint64(address), int(headerSize), int(entrySize), int(capacity)}, nil
}

// used returns how many entries have been used. The error is the memory's, or says that the
// header is not that of this table, and then wraps wrong.
func (t table) used(memory ringbuf.Memory, magic, layout uint32, wrong error) (int, error) {
	var b [24]byte
	if _, err := memory.ReadParts([]ringbuf.Part{{Address: t.address, Data: b[:]}}); err != nil {
		return 0, err
	}
	for i, want := range []uint32{magic, layout, uint32(t.capacity), uint32(t.entrySize), uint32(t.headerSize)} {
		if is := binary.NativeEndian.Uint32(b[4*i:]); is != want {
			return 0, fmt.Errorf("%w: word %d of the header is %#x instead of %#x", wrong, i, is, want)
		}
	}
	return int(min(binary.NativeEndian.Uint32(b[20:]), uint32(t.capacity))), nil
}
