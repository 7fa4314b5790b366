// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"maps"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

// mapped returns size zero bytes with 8-byte alignment, in place of a mapping.
func mapped(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
}

// TestViewsOfMemory checks that the functions that return views of memory return as many whole
// entries as fit, and panic if the memory is too small for the header or not aligned.
func TestViewsOfMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		header, entry int // sizes; 0 for a header alone
		view          func([]byte) (header unsafe.Pointer, entries int)
	}{
		"process context": {ProcessContextHeaderSize, 0, func(b []byte) (unsafe.Pointer, int) { return unsafe.Pointer(ProcessContextHeaderIn(b)), 0 }},
		"ring":            {RingHeaderSize1, 0, func(b []byte) (unsafe.Pointer, int) { return unsafe.Pointer(RingHeaderIn(b)), 0 }},
		"spans": {SpansHeaderSize, CellSize, func(b []byte) (unsafe.Pointer, int) {
			header, entries := SpansIn(b)
			return unsafe.Pointer(header), len(entries)
		}},
		"names": {NamesHeaderSize, NameEntrySize, func(b []byte) (unsafe.Pointer, int) {
			header, entries := NamesIn(b)
			return unsafe.Pointer(header), len(entries)
		}},
		"goroutines": {GoroutinesHeaderSize, GoroutineEntrySize, func(b []byte) (unsafe.Pointer, int) {
			header, entries := GoroutinesIn(b)
			return unsafe.Pointer(header), len(entries)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			page := mapped(2048)
			for size, want := range map[int]int{0: 0, 1: 0, tt.entry - 1: 0, tt.entry: 1, 3*tt.entry - 1: 2, 3 * tt.entry: 3} {
				if tt.entry == 0 {
					size, want = max(0, size), 0
				}
				header, entries := tt.view(page[:tt.header+size])
				assert.Equal(t, unsafe.Pointer(&page[0]), header)
				assert.Equal(t, want, entries, "%d bytes behind the header", size)
			}
			for _, b := range [][]byte{nil, page[:0], page[:tt.header-1], page[1:1024], page[4:1024], page[7:1024]} {
				assert.Panics(t, func() { tt.view(b) }, "%d bytes", len(b))
			}
		})
	}
}

const (
	traceHigh = 0x0123456789abcdef
	traceLow  = 0xfedcba9876543210
	spanID    = 0x1122334455667788
	ref       = 0x0099aabbccddee02
)

func TestRingLayout1Golden(t *testing.T) {
	want := golden.Hex(t, "testdata/ring_layout1.hex")
	got := mapped(32 + 2*32)
	*RingHeaderIn(got) = RingHeader{Magic: RingMagic, Layout: RingLayout1, Capacity: 2, SlotSize: SlotSize1}
	slots := (*[2]Slot1)(unsafe.Pointer(&got[RingHeaderSize1]))
	slots[0] = Slot1{TraceIDHigh: traceHigh, TraceIDLow: traceLow, SpanID: spanID}
	slots[1].State = SlotInUse
	assert.Equal(t, want, got)
}

func TestRingLayout2Golden(t *testing.T) {
	want := golden.Hex(t, "testdata/ring_layout2.hex")
	const slotSize = 128
	got := mapped(64 + 2*slotSize)
	*RingHeaderIn(got) = RingHeader{
		Magic: RingMagic, Layout: RingLayout2, Capacity: 2, SlotSize: slotSize,
		HeaderSize: RingHeaderSize2, Index: RingByGoroutine,
	}
	slot := func(n int) *Slot2 { return (*Slot2)(unsafe.Pointer(&got[RingHeaderSize2+n*slotSize])) }
	*slot(0) = Slot2{
		TraceIDHigh: traceHigh, TraceIDLow: traceLow, SpanID: spanID,
		State: 0x01020304<<SlotSeqShift | 5<<SlotAttrsSizeShift | 1<<SlotTraceFlagsShift,
		Owner: 12345, Ref: ref, M: 0xc02345e000, TID: 1234,
	}
	copy(got[RingHeaderSize2+SlotAttributes:], "\x00\x03GET")
	slot(1).State = 2<<SlotSeqShift | SlotInUse
	assert.Equal(t, want, got)
}

func TestThreadContextRecordGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/threadcontext_record.hex")
	got := mapped(ThreadContextRecordSize + 7)
	r := (*ThreadContextRecord)(unsafe.Pointer(&got[0]))
	binary.BigEndian.PutUint64(r.TraceID[:8], traceHigh)
	binary.BigEndian.PutUint64(r.TraceID[8:], traceLow)
	binary.BigEndian.PutUint64(r.SpanID[:], spanID)
	r.Valid, r.TraceFlags, r.AttrsDataSize = 1, 1, 7
	copy(got[ThreadContextRecordSize:], "\x00\x03GET\x02\x00")
	assert.Equal(t, want, got)
	assert.LessOrEqual(t, len(got), MaxThreadContextRecord)
}

func TestRingConstants(t *testing.T) {
	assert.Equal(t, "OTEL", string(binary.BigEndian.AppendUint32(nil, RingMagic)))
	assert.Equal(t, "DD_OTEL_CTX", RingName1)
	assert.Equal(t, "OTELCTX_SLOTS", ThreadRingName)
	assert.Equal(t, "OTELCTX_GSLOTS", GoroutineRingName)
	assert.Equal(t, 0, RingByThread)
	assert.Equal(t, 640, MaxThreadContextRecord)
	for _, name := range []string{RingName1, ThreadRingName, GoroutineRingName} {
		assert.LessOrEqual(t, len(name), 79, "the kernel's limit for names of mappings")
		for _, found := range []string{"/memfd:" + name + " (deleted)", "[anon:" + name + "]", "[anon_shmem:" + name + "]"} {
			assert.False(t, IsProcessContextMapping([]byte(found)), "readers of process contexts would examine %s", found)
		}
	}
}

// TestSlotFields checks that the advertised fields of a slot do not overlap, and that a reader that
// uses them finds the values in the golden bytes.
func TestSlotFields(t *testing.T) {
	type field struct {
		offset, size uintptr
		value        uint64
	}
	want := map[string]field{
		"trace_id_high": {0x00, 8, traceHigh},
		"trace_id_low":  {0x08, 8, traceLow},
		"span_id":       {0x10, 8, spanID},
		"in_use":        {0x18, 1, 0},
	}
	check := func(layout int, slot []byte) {
		taken, got := map[uintptr]string{}, map[string]field{}
		for _, f := range SlotFields(layout) {
			assert.NotContains(t, got, f.Name)
			value := bytes.Clone(slot[f.Offset:][:f.Size])
			got[f.Name] = field{f.Offset, f.Size, binary.LittleEndian.Uint64(append(value, make([]byte, 8)...))}
			for i := range f.Size {
				assert.NotContains(t, taken, f.Offset+i, "%s overlaps %s", f.Name, taken[f.Offset+i])
				taken[f.Offset+i] = f.Name
			}
		}
		assert.Equal(t, want, got, "layout %d", layout)
	}
	check(RingLayout1, golden.Hex(t, "testdata/ring_layout1.hex")[RingHeaderSize1:])
	maps.Copy(want, map[string]field{
		"trace_flags": {0x19, 1, 1},
		"attrs_size":  {0x1A, 2, 5},
		"seq":         {0x1C, 4, 0x01020304},
		"owner_goid":  {0x20, 8, 12345},
		"span_ref":    {0x28, 8, ref},
		"m":           {0x30, 8, 0xc02345e000},
		"tid":         {0x38, 4, 1234},
		"attrs":       {0x40, 0, 0},
	})
	check(RingLayout2, golden.Hex(t, "testdata/ring_layout2.hex")[RingHeaderSize2:])

	SlotFields(RingLayout1)[0].Name = "changed"
	assert.Equal(t, "trace_id_high", SlotFields(RingLayout1)[0].Name, "each call returns a new slice")
}
