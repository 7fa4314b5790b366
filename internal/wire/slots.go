// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// The slot ring consists of a header and slots, whose number is a power of two. Each thread has the
// slot at its id modulo the capacity; in layout 2 slots may belong to goroutines instead. Layout 1
// equals that of the OTEL-compatible context storage of Datadog's Java profiler, byte for byte. In
// layout 2 each slot begins with the same 25 bytes.
const (
	// RingMagic opens every ring: "OTEL", most significant byte first.
	RingMagic = 0x4F54454C

	RingLayout1 = 1
	RingLayout2 = 2

	// RingHeaderSize1 and RingHeaderSize2 are the offsets of the first slot.
	RingHeaderSize1 = 32
	RingHeaderSize2 = 64
	// SlotSize1 is the size of a slot of layout 1; SlotSize2 is that of layout 2
	// without attributes, a cache line.
	SlotSize1 = 32
	SlotSize2 = 64
	// SlotAttributes is the offset of the attributes in a slot of layout 2.
	SlotAttributes = 64

	// RingName1 names the mapping of a ring of layout 1, ThreadRingName and GoroutineRingName those
	// of layout 2. None may begin with [ProcessContextName], which readers of process contexts
	// search for.
	RingName1         = "DD_OTEL_CTX"
	ThreadRingName    = "OTELCTX_SLOTS"
	GoroutineRingName = "OTELCTX_GSLOTS"
)

// RingHeader is the header of a ring. In layout 1 everything behind SlotSize is
// reserved.
type RingHeader struct {
	_ structs.HostLayout

	Magic    uint32
	Layout   uint32
	Capacity uint32
	SlotSize uint32
	// HeaderSize is the distance from the header to the slots.
	HeaderSize uint32
	// Index tells whose ids select the slots: RingByThread or RingByGoroutine.
	Index uint32
	_     [8]byte
}

// Values of RingHeader.Index.
const (
	RingByThread    = 0
	RingByGoroutine = 1
)

// Slot1 is a slot of layout 1.
type Slot1 struct {
	_ structs.HostLayout

	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	// State holds in_use in its lowest byte. Layout 1 leaves the others 0.
	State uint32
	_     uint32
}

// Slot2 is a slot of layout 2, without its attributes. If all fields but State are zero, it has no
// span.
//
// Identifiers are W3C's, read as big-endian numbers. State is one word, so that a writer claims the
// slot and counts its write in one step.
type Slot2 struct {
	_ structs.HostLayout

	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	// State is, from the lowest bit: in_use u8, 1 while the slot is being written; trace_flags u8;
	// attrs_size u16; seq u32, incremented by every write.
	State uint64
	// Owner is the id of the goroutine that published the span.
	Owner uint64
	// Ref names the span's cell in the span table; 0 if there is none.
	Ref uint64
	// M is the address of the runtime's m of the publishing thread.
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

// Offsets used by readers and the advertisement.
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

// Offsets of the parts of Slot2.State, which readers access as bytes. They are correct only on
// little-endian machines, such as amd64 and arm64, the only Linux ports with a calibrated runtime.
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
