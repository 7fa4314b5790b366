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

// mapped returns size bytes that are page-aligned.
func mapped(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
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

// Slots of both layouts begin with the same 25 bytes.
func TestSlotLayoutsSharePrefix(t *testing.T) {
	one, two := golden.Hex(t, "testdata/ring_layout1.hex"), golden.Hex(t, "testdata/ring_layout2.hex")
	assert.Equal(t, one[32:][:25], two[64:][:25])
	assert.Equal(t, one[:4], two[:4], "magic")
}

// Constants of the formats that the golden files do not cover.
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

func TestRingHeaderIn(t *testing.T) {
	page := mapped(64)
	for _, size := range []int{32, 33, 64} {
		h := RingHeaderIn(page[:size])
		assert.Equal(t, unsafe.Pointer(&page[0]), unsafe.Pointer(h), "the result must share the memory")
	}
	for name, b := range map[string][]byte{
		"nil": nil, "empty": page[:0], "a byte short": page[:31], "unaligned": page[1:40], "half aligned": page[4:40],
	} {
		assert.Panics(t, func() { RingHeaderIn(b) }, name)
	}
}

// The advertised fields of a slot match the golden bytes.
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
