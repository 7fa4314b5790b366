// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ring writes the active span of each thread or goroutine to a slot of a ring. Readers
// never see a half-written slot.
//
// A writer claims a slot with one compare-and-swap of its state word, which changes in_use from 0
// to 1 and increments seq. It then stores the fields. A last store of the state word sets in_use to
// 0 again and releases the slot. A writer that finds the slot claimed retries a few times and then
// gives up: a missing span is better than a wrong one, and writers must not wait.
//
// A reader reads the state word, the fields, and the state word again. If in_use is 0 and seq is
// unchanged, the fields come from a single write. There is one exception: a writer that gives up
// clears the span id without a claim. Layout 1 has no seq, so its readers read the fields twice
// instead.
//
// Callers of [Ring.Store] must be pinned ([goruntime.Pin]). Otherwise the goroutine could move to
// another thread after it has read its thread id, and would then write to the slot of a thread that
// it no longer runs on.
//
// The package does not depend on the SDK.
package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Span is the content of a slot. The zero Span means that there is no active span.
type Span struct {
	// TraceIDHigh and TraceIDLow are the halves of the W3C trace ID, and SpanID is the W3C span ID,
	// all read as big-endian numbers.
	TraceIDHigh, TraceIDLow, SpanID uint64
	// Ref is the reference to the span's cell in the span table, or 0 if the span has no cell.
	Ref        uint64
	TraceFlags uint8
	// Attributes are encoded according to OTEP 4947. Store leaves out the attributes that do not
	// fit into the slot.
	Attributes []byte
}

// The default number of slots, and the maximum attribute space of a slot in bytes.
const (
	DefaultCapacity = 65536
	MaxSpace        = wire.MaxThreadContextRecord - wire.ThreadContextRecordSize
)

// Check returns an error if the capacity or the attribute space is invalid.
func Check(capacity, attributeSpace int) error {
	if capacity < 1 || capacity > wire.MaxRingCapacity || capacity&(capacity-1) != 0 {
		return fmt.Errorf("capacity %d is not a power of two up to %d", capacity, wire.MaxRingCapacity)
	}
	if attributeSpace < 0 || attributeSpace > MaxSpace {
		return fmt.Errorf("attribute space of %d bytes, at most %d", attributeSpace, MaxSpace)
	}
	return nil
}

// Config describes a ring to create. Capacity and AttributeSpace must be valid according to
// [Check].
type Config struct {
	Capacity int // a power of two
	Layout   int
	Index    int // wire.RingByThread or wire.RingByGoroutine
	// AttributeSpace is the minimum number of bytes that each slot reserves for attributes.
	AttributeSpace int
	// Heap allocates the ring on the heap, where no other process can find it. It is meant for
	// tests.
	Heap bool
}

// name returns the name of the mapping, by which readers find the ring.
func (c Config) name() string {
	switch {
	case c.Layout == wire.RingLayout1:
		return wire.RingName1
	case c.Index == wire.RingByGoroutine:
		return wire.GoroutineRingName
	default:
		return wire.ThreadRingName
	}
}

// Description says where a ring is and how it is laid out.
type Description struct {
	Name                                   string
	Address                                uint64 // address of the header
	Layout, Capacity, HeaderSize, SlotSize int
}

// Ring is a ring of slots, created by [New]. It is safe for concurrent use.
type Ring struct {
	base       unsafe.Pointer
	mask       uint64
	shift      uint64
	claimed    uint64 // added to a slot's state to claim it
	layout1    bool
	attributes int

	description Description

	mu     sync.Mutex
	region *vma.Region
}

// New returns an empty ring. Pages that are never written use no memory. The ring's address range
// stays mapped until the process ends, even after [Ring.Close], because writers do not check
// whether the ring is closed.
//
// The error names the system call that failed. If New fails, it leaves nothing mapped.
func New(c Config) (*Ring, error) {
	r := &Ring{layout1: c.Layout == wire.RingLayout1, claimed: wire.SlotInUse}
	d := Description{Name: c.name(), Layout: c.Layout, Capacity: c.Capacity, HeaderSize: wire.RingHeaderSize2, SlotSize: wire.SlotSize2}
	allocate := vma.New
	if r.layout1 {
		d.HeaderSize, d.SlotSize = wire.RingHeaderSize1, wire.SlotSize1
		allocate = vma.NewAnonymous // readers of layout 1 search anonymous memory
	} else {
		r.claimed |= 1 << wire.SlotSeqShift
		if c.AttributeSpace > 0 {
			d.SlotSize = 1 << bits.Len(uint(wire.SlotAttributes+c.AttributeSpace-1))
		}
		r.attributes = d.SlotSize - wire.SlotAttributes
	}
	size := d.HeaderSize + c.Capacity*d.SlotSize
	var err error
	if c.Heap {
		// Slots of layout 1 are accessed through the longer Slot2, so the allocation must extend
		// past the last slot.
		r.region = vma.NewHeap(size + wire.SlotSize2)
	} else if r.region, err = allocate(d.Name, size); err != nil {
		return nil, err
	}
	memory := r.region.Bytes()
	header := wire.RingHeaderIn(memory)
	header.Layout = uint32(c.Layout)
	header.Capacity = uint32(c.Capacity)
	header.SlotSize = uint32(d.SlotSize)
	if !r.layout1 {
		header.HeaderSize = uint32(d.HeaderSize)
		header.Index = uint32(c.Index)
	}
	if err := r.region.Publish(wire.RingMagic); err != nil {
		return nil, errors.Join(err, r.region.Close())
	}
	d.Address = r.region.Address()
	r.base = unsafe.Pointer(unsafe.SliceData(memory[d.HeaderSize:]))
	r.mask = uint64(c.Capacity - 1)
	r.shift = uint64(bits.TrailingZeros(uint(d.SlotSize)))
	r.description = d
	return r, nil
}

// Description says where the ring is and how it is laid out.
func (r *Ring) Description() Description { return r.description }

// Close unpublishes the ring: readers no longer find it. Close replaces the memory with unnamed
// memory at the same addresses, so that late writers do not crash. The error names the system call
// that failed. The old mapping then remains, but readers no longer recognize it as a ring. Closing
// a ring twice, or a nil ring, does nothing.
func (r *Ring) Close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.region.Withdraw(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// slot returns the slot of a thread or goroutine. In layout 1 callers may access only the fields
// from TraceIDHigh through State, which both layouts have at the same offsets.
func (r *Ring) slot(id uint64) *wire.Slot2 {
	// Sound: the index is at most mask, and the memory is never unmapped. The mask of 63 tells the
	// compiler that the shift is in range, which saves a check.
	return (*wire.Slot2)(unsafe.Add(r.base, (id&r.mask)<<(r.shift&63)))
}

// attempts is the maximum number of attempts to claim or read a slot. Writers hold a slot for
// nanoseconds only, unless the kernel preempts them.
const attempts = 64

// Store publishes s in the slot of the thread or goroutine with this id. self describes the calling
// goroutine, which must be pinned. If another writer holds the slot, Store does not publish s; the
// slot ends up with the other writer's span or with none. Store does nothing if r is nil.
func (r *Ring) Store(id uint64, s *Span, self *goruntime.Self) {
	if r == nil {
		return
	}
	slot := r.slot(id)
	state, ok := r.claim(slot)
	if !ok {
		// This is the only store without a claim. It clears the span id, so that the previous span
		// does not reappear when the holder releases the slot. If the holder stores its span id
		// later, the holder's span becomes visible.
		atomic.StoreUint64(&slot.SpanID, 0)
		return
	}
	ordered.Store(&slot.TraceIDHigh, s.TraceIDHigh)
	ordered.Store(&slot.TraceIDLow, s.TraceIDLow)
	ordered.Store(&slot.SpanID, s.SpanID)
	if r.layout1 {
		ordered.StoreRelease(&slot.State, state&^wire.SlotInUse)
		return
	}
	state = state>>wire.SlotSeqShift<<wire.SlotSeqShift | uint64(s.TraceFlags)<<wire.SlotTraceFlagsShift
	if len(s.Attributes) > 0 && r.attributes > 0 {
		state |= uint64(r.putAttributes(slot, s.Attributes)) << wire.SlotAttrsSizeShift
	}
	ordered.Store(&slot.Owner, self.Goid)
	ordered.Store(&slot.Ref, s.Ref)
	ordered.Store(&slot.M, uint64(self.M))
	ordered.Store32(&slot.TID, self.TID)
	ordered.StoreRelease(&slot.State, state)
}

// claim tries to claim a slot and returns its new state. ok is false if other writers held it at
// every attempt.
func (r *Ring) claim(slot *wire.Slot2) (state uint64, ok bool) {
	for range attempts {
		state := atomic.LoadUint64(&slot.State)
		if state&wire.SlotInUse == 0 && atomic.CompareAndSwapUint64(&slot.State, state, state+r.claimed) {
			return state + r.claimed, true
		}
	}
	return 0, false
}

// putAttributes stores the attributes that fit into the slot and returns their encoded size in
// bytes.
func (r *Ring) putAttributes(slot *wire.Slot2, attributes []byte) int {
	if len(attributes) > r.attributes {
		return r.putFitting(slot, attributes)
	}
	// The stores of the attributes, like those of the fields, must not become visible before the
	// claim, so they are ordered stores of whole words. Sound: r.attributes bytes follow the fields
	// of the slot, and r.attributes is a multiple of 8.
	target, whole := unsafe.Add(unsafe.Pointer(slot), wire.SlotAttributes), len(attributes)&^7
	for i := 0; i < whole; i += 8 {
		ordered.Store((*uint64)(unsafe.Add(target, i)), binary.NativeEndian.Uint64(attributes[i:]))
	}
	if whole < len(attributes) {
		var word [8]byte
		copy(word[:], attributes[whole:])
		ordered.Store((*uint64)(unsafe.Add(target, whole)), binary.NativeEndian.Uint64(word[:]))
	}
	return len(attributes)
}

// putFitting stores only those attributes that fit, and returns their encoded size in bytes.
//
//go:noinline
func (r *Ring) putFitting(slot *wire.Slot2, attributes []byte) int {
	var buffer [wire.MaxThreadContextRecord]byte
	n := 0
	for len(attributes) >= 2 {
		size := 2 + int(attributes[1])
		if size > len(attributes) {
			break
		}
		if size <= min(r.attributes, len(buffer))-n {
			n += copy(buffer[n:], attributes[:size])
		}
		attributes = attributes[size:]
	}
	return r.putAttributes(slot, buffer[:n])
}

// Layout1 reports whether slots are of layout 1.
func (r *Ring) Layout1() bool { return r.layout1 }

// Load returns the span in the slot for this id, without attributes, and the goroutine and thread
// that published it. ok is false if the slot has no span or is being written. In layout 1, which
// records neither goroutine nor thread, owner and tid are 0.
//
// In layout 2 all results come from a single write, which Load verifies with the slot's write
// counter. Layout 1 has none, so Load reads the fields twice, which makes a mixture of two writes
// unlikely but not impossible.
func (r *Ring) Load(id uint64) (s Span, owner uint64, tid uint32, ok bool) {
	slot := r.slot(id)
	for range attempts {
		state := atomic.LoadUint64(&slot.State)
		if state&wire.SlotInUse != 0 {
			continue
		}
		s.TraceIDHigh, s.TraceIDLow = atomic.LoadUint64(&slot.TraceIDHigh), atomic.LoadUint64(&slot.TraceIDLow)
		s.SpanID = atomic.LoadUint64(&slot.SpanID)
		if r.layout1 {
			ok = s.TraceIDHigh == atomic.LoadUint64(&slot.TraceIDHigh) && s.TraceIDLow == atomic.LoadUint64(&slot.TraceIDLow) &&
				s.SpanID == atomic.LoadUint64(&slot.SpanID)
		} else {
			s.Ref, s.TraceFlags = atomic.LoadUint64(&slot.Ref), uint8(state>>wire.SlotTraceFlagsShift)
			owner, tid, ok = atomic.LoadUint64(&slot.Owner), atomic.LoadUint32(&slot.TID), true
		}
		if ok && atomic.LoadUint64(&slot.State) == state {
			// A writer that could not claim the slot may have cleared only the span id.
			return s, owner, tid, s.SpanID != 0
		}
	}
	return Span{}, 0, 0, false
}
