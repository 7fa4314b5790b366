// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// The slot ring: a header and slots. The number of slots is a power of two; only other publishers
// of layout 1 may use any number. A thread uses the slot at its id modulo the capacity. In layout
// 2, slots can belong to goroutines instead of threads. Layout 1 is identical to the
// OTEL-compatible context storage of Datadog's Java profiler. The first 25 bytes of a slot are the
// same in both layouts.
const (
	// RingMagic is the first word of every ring: "OTEL", most significant byte first.
	RingMagic = 0x4F54454C

	RingLayout1 = 1
	RingLayout2 = 2

	// RingHeaderSize1 and RingHeaderSize2 are the offsets of the first slot.
	RingHeaderSize1 = 32
	RingHeaderSize2 = 64
	// SlotSize1 is the size of a slot of layout 1. SlotSize2 is the size of a slot of layout 2
	// without attributes: one cache line.
	SlotSize1 = 32
	SlotSize2 = 64
	// SlotAttributes is the offset of the attributes in a slot of layout 2.
	SlotAttributes = 64

	// RingName1 is the name of mappings with rings of layout 1. ThreadRingName and
	// GoroutineRingName are the names for layout 2. None may begin with [ProcessContextName], the
	// prefix by which readers find process contexts.
	RingName1         = "DD_OTEL_CTX"
	ThreadRingName    = "OTELCTX_SLOTS"
	GoroutineRingName = "OTELCTX_GSLOTS"
)

// RingHeader is the header of a ring. Layout 1 reserves the fields after SlotSize.
type RingHeader struct {
	_ structs.HostLayout

	Magic    uint32
	Layout   uint32
	Capacity uint32
	SlotSize uint32
	// HeaderSize is the offset of the first slot from the start of the header.
	HeaderSize uint32
	// Index is RingByThread or RingByGoroutine: whether thread ids or goroutine ids select the
	// slots.
	Index uint32
	_     [8]byte
}

// Values of RingHeader.Index.
const (
	RingByThread    = 0
	RingByGoroutine = 1
)

// MaxRingCapacity limits the address space that a ring occupies.
const MaxRingCapacity = 1 << 24

// Slot1 is a slot of layout 1.
type Slot1 struct {
	_ structs.HostLayout

	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	// State holds in_use in its lowest byte. The other bytes are 0.
	State uint32
	_     uint32
}

// Slot2 is a slot of layout 2, without its attributes. If the trace ID or the span ID is zero,
// there is no active span.
//
// Trace and span IDs are W3C identifiers, read as big-endian numbers.
type Slot2 struct {
	_ structs.HostLayout

	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	// State has these parts, from the lowest bit: in_use u8, which is 1 while the slot is being
	// written; trace_flags u8; attrs_size u16; seq u32, which every write increments. They share a
	// word, so that a writer can set in_use and increment seq in one step.
	State uint64
	// Owner is the id of the goroutine that published the span.
	Owner uint64
	// Ref is the reference to the span's cell in the span table, or 0 if the span has no cell.
	Ref uint64
	// M is the address of the m (the Go runtime's struct for a thread) of the thread that published
	// the span.
	M   uint64
	TID uint32
	_   uint32
}

// The parts of Slot2.State.
const (
	SlotInUse           = 1
	SlotTraceFlagsShift = 8
	SlotAttrsSizeShift  = 16
	SlotSeqShift        = 32
)

// Offsets of the fields of a slot, for readers and for the advertised attributes.
const (
	OffsetTraceIDHigh = unsafe.Offsetof(Slot2{}.TraceIDHigh)
	OffsetTraceIDLow  = unsafe.Offsetof(Slot2{}.TraceIDLow)
	OffsetSpanID      = unsafe.Offsetof(Slot2{}.SpanID)
	OffsetInUse       = unsafe.Offsetof(Slot2{}.State)
	OffsetTraceFlags  = OffsetInUse + 1
	OffsetAttrsSize   = OffsetInUse + 2
	OffsetSeq         = OffsetInUse + 4
	OffsetOwner       = unsafe.Offsetof(Slot2{}.Owner)
	OffsetRef         = unsafe.Offsetof(Slot2{}.Ref)
	OffsetM           = unsafe.Offsetof(Slot2{}.M)
	OffsetTID         = unsafe.Offsetof(Slot2{}.TID)
)

// The offsets of the parts of Slot2.State are correct only on little-endian machines. That
// suffices, because amd64 and arm64 are the only Linux ports on which otelctx calibrates the Go
// runtime.
const (
	_ = -(unsafe.Sizeof(RingHeader{}) ^ 32)
	_ = -(unsafe.Offsetof(RingHeader{}.Layout) ^ 4)
	_ = -(unsafe.Offsetof(RingHeader{}.Capacity) ^ 8)
	_ = -(unsafe.Offsetof(RingHeader{}.SlotSize) ^ 12)
	_ = -(unsafe.Offsetof(RingHeader{}.HeaderSize) ^ 16)
	_ = -(unsafe.Offsetof(RingHeader{}.Index) ^ 20)
	_ = -(unsafe.Sizeof(Slot1{}) ^ SlotSize1)
	_ = -(unsafe.Offsetof(Slot1{}.TraceIDLow) ^ 0x08)
	_ = -(unsafe.Offsetof(Slot1{}.SpanID) ^ 0x10)
	_ = -(unsafe.Offsetof(Slot1{}.State) ^ 0x18)
	_ = -(unsafe.Sizeof(Slot2{}) ^ SlotSize2)
	_ = -OffsetTraceIDHigh
	_ = -(OffsetTraceIDLow ^ 0x08)
	_ = -(OffsetSpanID ^ 0x10)
	_ = -(OffsetInUse ^ 0x18)
	_ = -(OffsetTraceFlags ^ 0x19)
	_ = -(OffsetAttrsSize ^ 0x1A)
	_ = -(OffsetSeq ^ 0x1C)
	_ = -(OffsetOwner ^ 0x20)
	_ = -(OffsetRef ^ 0x28)
	_ = -(OffsetM ^ 0x30)
	_ = -(OffsetTID ^ 0x38)
)

// RingHeaderIn returns the header at the start of b, which the caller has mapped. It
// panics if b is too short or not 8-byte aligned.
func RingHeaderIn(b []byte) *RingHeader {
	return (*RingHeader)(headerIn(b, unsafe.Sizeof(RingHeader{})))
}
