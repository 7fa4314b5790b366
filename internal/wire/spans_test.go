// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

const localRoot = 0x99aabbccddeeff01

func TestSpanTableGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/span_table.hex")
	got := mapped(128 + 2*128)
	header, cells := SpansIn(got)
	require.Len(t, cells, 2)
	*header = TableHeader{Magic: SpansMagic, Layout: SpansLayout1, Capacity: 2, EntrySize: CellSize, HeaderSize: SpansHeaderSize, Used: 1}
	cells[0] = Cell{
		Version: 7 * RefGeneration, TraceIDHigh: traceHigh, TraceIDLow: traceLow, SpanID: spanID, LocalRootSpanID: localRoot,
		Goid: 12345, Ancestors: [Ancestors]uint64{RefGeneration | 3<<RefIndexShift, 2*RefGeneration | (1<<RefIndexBits-1)<<RefIndexShift},
		Flags: 1 | CellDispatched, Start: 1e18, G: 0xc02345e000, Previous: 0x300009, Names: 7<<CellGenerationShift | 0x123<<CellEndpointShift | 0x456,
	}
	assert.Equal(t, want, got)
	assert.Equal(t, "OTSP", string(binary.BigEndian.AppendUint32(nil, SpansMagic)))
	assert.Equal(t, "OTELCTX_SPANS", SpansName)
	assert.False(t, IsProcessContextMapping([]byte("/memfd:"+SpansName+" (deleted)")))
}

// TestCellFields checks that the advertised fields of a cell do not overlap, and that a reader that
// uses them finds the values in the golden bytes.
func TestCellFields(t *testing.T) {
	type field struct {
		offset, size uintptr
		value        uint64
	}
	cell := golden.Hex(t, "testdata/span_table.hex")[128:]
	got := map[string]field{}
	end := uintptr(0)
	for _, f := range CellFields() {
		assert.GreaterOrEqual(t, f.Offset, end, "%s overlaps the previous field", f.Name)
		end = f.Offset + f.Size
		var value [24]byte
		copy(value[:], cell[f.Offset:end])
		got[f.Name] = field{f.Offset, f.Size, binary.LittleEndian.Uint64(value[:])}
	}
	assert.Equal(t, map[string]field{
		"version":            {0x00, 8, 0x700000},
		"trace_id_high":      {0x08, 8, traceHigh},
		"trace_id_low":       {0x10, 8, traceLow},
		"span_id":            {0x18, 8, spanID},
		"local_root_span_id": {0x20, 8, localRoot},
		"goid":               {0x28, 8, 12345},
		"ancestors":          {0x30, 24, 0x100006},
		"trace_flags":        {0x48, 1, 1},
		"dispatched":         {0x49, 1, 1},
		"start_unix_ns":      {0x50, 8, 1_000_000_000_000_000_000},
		"g":                  {0x58, 8, 0xc02345e000},
		"tid":                {0x60, 4, 0},
		"name":               {0x68, 2, 0x456},
		"endpoint":           {0x6A, 2, 0x123},
		"previous":           {0x70, 8, 0x300009},
	}, got)
}

func TestRefIndex(t *testing.T) {
	for ref, want := range map[uint64]uint32{
		0: 0, 0x100000: 0, 0x100002: 1, 0x100003: 1, 0x2ffffe: 0x7ffff, 0xfffffffffff00006: 3, 0xffffffffffffffff: 0x7ffff,
	} {
		assert.Equal(t, want, RefIndex(ref), "%#x", ref)
	}
	assert.Equal(t, 1<<20, RefGeneration)
}
