// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ringview"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/wire"
)

const reference = "../docs/wire-format.md"

// TestReferenceBounds checks that the bounds in docs/wire-format.md are those of the
// implementation.
func TestReferenceBounds(t *testing.T) {
	bounds := map[string]int{}
	for _, row := range golden.Rows(t, reference, "bounds") {
		n, err := strconv.Atoi(row[1])
		require.NoError(t, err, row)
		bounds[row[0]] = n
	}
	ring := func(change func(*ringview.Info)) error {
		info := ringview.Info{Address: 4096, Layout: wire.RingLayout2, Capacity: 1, HeaderSize: wire.RingHeaderSize2, SlotSize: wire.SlotSize2}
		change(&info)
		// Use only the required fields, at offsets that fit into the smallest slot.
		_, err := ringview.New(nil, info, map[string]int{"trace_id_high": 0, "trace_id_low": 8, "span_id": 16, "in_use": 24, "seq": 28})
		return err
	}
	const (
		capacity               = "capacity of a ring"
		headerLeast, header    = "size of a ring's header in bytes, least", "size of a ring's header in bytes, most"
		slotSizeLeast, slotMax = "size of a slot in bytes, least", "size of a slot in bytes, most"
	)
	assert.NoError(t, ring(func(i *ringview.Info) { i.Capacity = bounds[capacity] }))
	assert.Error(t, ring(func(i *ringview.Info) { i.Capacity = 2 * bounds[capacity] }))
	for name, size := range map[string]func(*ringview.Info, int){
		headerLeast:   func(i *ringview.Info, n int) { i.HeaderSize = n },
		slotSizeLeast: func(i *ringview.Info, n int) { i.SlotSize = n },
	} {
		most := map[string]string{headerLeast: header, slotSizeLeast: slotMax}[name]
		for n, ok := range map[int]bool{bounds[name] - 1: false, bounds[name]: true, bounds[most]: true, bounds[most] + 1: false} {
			assert.Equal(t, ok, ring(func(i *ringview.Info) { size(i, n) }) == nil, "%s: %d", name, n)
		}
	}
	busy := &busyMemory{}
	view, err := ringview.New(busy, ringview.Info{Address: 4096, Layout: wire.RingLayout2, Capacity: 1, HeaderSize: wire.RingHeaderSize2, SlotSize: wire.SlotSize2}, nil)
	require.NoError(t, err)
	_, err = view.Slot(0)
	require.ErrorIs(t, err, ringview.ErrBusy)

	assert.Equal(t, map[string]int{
		"payload in bytes": wire.MaxProcessContextPayload,
		"mappings with a context's name that are looked at": maxCandidates,
		"attempts to read a context":                        maxAttempts,
		"arrays and maps that a value is inside of":         wire.MaxValueNesting,
		capacity:                              bounds[capacity],
		headerLeast:                           bounds[headerLeast],
		header:                                bounds[header],
		slotSizeLeast:                         bounds[slotSizeLeast],
		slotMax:                               bounds[slotMax],
		"attempts to read a slot by itself":   busy.reads,
		"offset in g and m in bytes":          maxRuntimeOffset,
		"offset of a record in bytes, least":  labelListSize,
		"offset of a record in bytes, most":   maxRecordOffset,
		"record with its attributes in bytes": wire.MaxThreadContextRecord,
		"attributes of a record in bytes":     wire.MaxThreadContextRecord - wire.ThreadContextRecordSize,
		"labels in front of a record":         maxLabels,
		"keys in the key map":                 maxKeys,
		"readings for a thread":               maxReads,
		"threads of a process":                maxThreads,
	}, bounds)
}

// busyMemory is memory in which every slot is always being written.
type busyMemory struct{ reads int }

func (m *busyMemory) ReadParts(parts []remotemem.Part) (int, error) {
	m.reads++
	for _, p := range parts {
		for i := range p.Data {
			p.Data[i] = 1
		}
	}
	return len(parts), nil
}
