// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

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

// Span is what a slot shows. The zero Span shows nothing.
type Span struct {
	// TraceIDHigh, TraceIDLow and SpanID are W3C identifiers, or halves of them, read as
	// big-endian numbers.
	TraceIDHigh, TraceIDLow, SpanID uint64
	// Ref names the span's cell in the span table of the process, 0 if it has none.
	Ref        uint64
	TraceFlags uint8
	// Attributes are in the encoding of OTEP 4947. If they do not all fit into a slot, it
	// shows those for which there is room, in their order.
	Attributes []byte
}

// Bounds of a ring, and the capacity of rings for which none is chosen.
const (
	DefaultCapacity = 65536
	MaxCapacity     = 1 << 24 // a ring is address space
	MaxSpace        = wire.MaxThreadContextRecord - wire.ThreadContextRecordSize
)

// Check returns what is wrong with a capacity or with room for attributes, or nil.
func Check(capacity, attributeSpace int) error {
	if capacity < 1 || capacity > MaxCapacity || capacity&(capacity-1) != 0 {
		return fmt.Errorf("capacity %d is not a power of two up to %d", capacity, MaxCapacity)
	}
	if attributeSpace < 0 || attributeSpace > MaxSpace {
		return fmt.Errorf("attribute space of %d bytes, at most %d", attributeSpace, MaxSpace)
	}
	return nil
}

// Config says how a ring is laid out. [Check] has accepted it.
type Config struct {
	// Name is that of the mapping; "" is what readers look for.
	Name     string
	Capacity int // a power of two
	Layout   int
	Index    int // wire.RingByThread or wire.RingByGoroutine
	// AttributeSpace is for how many bytes of attributes each slot has room at least.
	AttributeSpace int
	// Heap has the ring in memory that no other process finds, for tests.
	Heap bool
}

// Layout says where and how a ring is laid out.
type Layout struct {
	Name                                   string
	Address                                uint64 // of the header
	Layout, Capacity, HeaderSize, SlotSize int
}

// Ring is a ring of slots. [New] makes one. It is safe for concurrent use.
type Ring struct {
	base       unsafe.Pointer
	mask       uint64
	shift      uint64
	claimed    uint64 // what a claim adds to a slot's state
	layout1    bool
	attributes int

	layout Layout

	mu     sync.Mutex
	region *vma.Region
}

// New returns a ring that shows nothing yet. Pages that nobody stores to cost no memory.
// Its addresses stay in use until the process ends, because writers do not check whether
// the ring is closed.
//
// The error names the system call that failed; then nothing is left behind.
func New(c Config) (*Ring, error) {
	r := &Ring{layout1: c.Layout == wire.RingLayout1, claimed: wire.SlotInUse}
	if c.Name == "" {
		switch {
		case r.layout1:
			c.Name = wire.RingName1
		case c.Index == wire.RingByGoroutine:
			c.Name = wire.GoroutineRingName
		default:
			c.Name = wire.ThreadRingName
		}
	}
	l := Layout{Name: c.Name, Layout: c.Layout, Capacity: c.Capacity, HeaderSize: wire.RingHeaderSize2, SlotSize: wire.SlotSize2}
	allocate := vma.New
	if r.layout1 {
		l.HeaderSize, l.SlotSize = wire.RingHeaderSize1, wire.SlotSize1
		allocate = vma.NewAnonymous // which readers of layout 1 look for
	} else {
		r.claimed |= 1 << wire.SlotSeqShift
		if c.AttributeSpace > 0 {
			l.SlotSize = 1 << bits.Len(uint(wire.SlotAttributes+c.AttributeSpace-1))
		}
		r.attributes = l.SlotSize - wire.SlotAttributes
	}
	size := l.HeaderSize + c.Capacity*l.SlotSize
	var err error
	if c.Heap {
		// Room behind the last slot of layout 1, which is looked at as one of layout 2.
		r.region = vma.NewHeap(size + wire.SlotSize2)
	} else if r.region, err = allocate(c.Name, size); err != nil {
		return nil, err
	}
	memory := r.region.Bytes()
	header := wire.RingHeaderIn(memory)
	header.Layout = uint32(c.Layout)
	header.Capacity = uint32(c.Capacity)
	header.SlotSize = uint32(l.SlotSize)
	if !r.layout1 {
		header.HeaderSize = uint32(l.HeaderSize)
		header.Index = uint32(c.Index)
	}
	if err := r.region.Publish(wire.RingMagic); err != nil {
		return nil, errors.Join(err, r.region.Close())
	}
	l.Address = r.region.Address()
	r.base = unsafe.Pointer(unsafe.SliceData(memory[l.HeaderSize:]))
	r.mask = uint64(c.Capacity - 1)
	r.shift = uint64(bits.TrailingZeros(uint(l.SlotSize)))
	r.layout = l
	return r, nil
}

// Layout returns how the ring is laid out.
func (r *Ring) Layout() Layout { return r.layout }

// Close withdraws the ring: readers no longer find it. Its addresses stay mapped, to memory
// without a name, so that a writer that comes late still has somewhere to write. Closing
// again does nothing. The error names the system call that failed: then the mapping is
// still there, but to readers it is no ring any more. It does nothing if r is nil.
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

// slot returns the slot of a thread or goroutine. Layouts 1 and 2 begin with the same
// fields.
func (r *Ring) slot(id uint64) *wire.Slot2 {
	// Sound: the index is at most mask, and the memory never goes away. That the shift is
	// less than 64 spares the check that Go's shifts have.
	return (*wire.Slot2)(unsafe.Add(r.base, (id&r.mask)<<(r.shift&63)))
}

// attempts is how often a writer tries to claim a slot. A claim is held for nanoseconds,
// unless the kernel takes the processor away just then.
const attempts = 64

// Store shows s in the slot of a thread or goroutine with this id, for the running
// goroutine, which self describes. If another writer holds the slot, the slot shows that
// writer's span or nothing. The caller is pinned. Store does nothing if r is nil.
func (r *Ring) Store(id uint64, s *Span, self *goruntime.Self) {
	if r == nil {
		return
	}
	at := r.slot(id)
	state, ok := r.claim(at)
	if !ok {
		// The one store that needs no claim: to have the slot show nothing. What the
		// holder of the claim stores afterwards counts. If it lets go without having
		// stored, what the slot showed before must not be shown again.
		atomic.StoreUint64(&at.SpanID, 0)
		return
	}
	ordered.Put(&at.TraceIDHigh, s.TraceIDHigh)
	ordered.Put(&at.TraceIDLow, s.TraceIDLow)
	ordered.Put(&at.SpanID, s.SpanID)
	if r.layout1 {
		ordered.PutLast(&at.State, state&^wire.SlotInUse)
		return
	}
	state = state>>wire.SlotSeqShift<<wire.SlotSeqShift | uint64(s.TraceFlags)<<wire.SlotTraceFlagsShift
	if len(s.Attributes) > 0 && r.attributes > 0 {
		state |= uint64(r.putAttributes(at, s.Attributes)) << wire.SlotAttrsSizeShift
	}
	ordered.Put(&at.Owner, self.Goid)
	ordered.Put(&at.Ref, s.Ref)
	ordered.Put(&at.M, uint64(self.M))
	ordered.Put32(&at.TID, self.TID)
	ordered.PutLast(&at.State, state)
}

// claim claims a slot and returns the state that it has then.
func (r *Ring) claim(at *wire.Slot2) (state uint64, ok bool) {
	for range attempts {
		state := atomic.LoadUint64(&at.State)
		if state&wire.SlotInUse == 0 && atomic.CompareAndSwapUint64(&at.State, state, state+r.claimed) {
			return state + r.claimed, true
		}
	}
	return 0, false
}

// putAttributes stores encoded attributes, those for which there is room, and returns how
// many bytes that is.
func (r *Ring) putAttributes(at *wire.Slot2, attributes []byte) int {
	if len(attributes) > r.attributes {
		return r.putFitting(at, attributes)
	}
	// Word by word: like the fields they must not be seen before the claim. Sound: the slot
	// goes on for r.attributes bytes behind its fields, which is a multiple of 8.
	to, whole := unsafe.Add(unsafe.Pointer(at), wire.SlotAttributes), len(attributes)&^7
	for i := 0; i < whole; i += 8 {
		ordered.Put((*uint64)(unsafe.Add(to, i)), binary.NativeEndian.Uint64(attributes[i:]))
	}
	if whole < len(attributes) {
		var word [8]byte
		copy(word[:], attributes[whole:])
		ordered.Put((*uint64)(unsafe.Add(to, whole)), binary.NativeEndian.Uint64(word[:]))
	}
	return len(attributes)
}

// putFitting is putAttributes for attributes that do not fit all together.
//
//go:noinline
func (r *Ring) putFitting(at *wire.Slot2, attributes []byte) int {
	var room [wire.MaxThreadContextRecord]byte
	n := 0
	for len(attributes) >= 2 {
		size := 2 + int(attributes[1])
		if size > len(attributes) {
			break
		}
		if size <= min(r.attributes, len(room))-n {
			n += copy(room[n:], attributes[:size])
		}
		attributes = attributes[size:]
	}
	return r.putAttributes(at, room[:n])
}

// Shown returns what the slot with this id, of a thread or goroutine, shows for the
// goroutine goid. That is the id of the span and its Ref. owned is false if the slot is
// not that goroutine's, or is being written. In layout 1, which does not say whose slots
// are, it always is, and there is no Ref.
func (r *Ring) Shown(id, goid uint64) (spanID, ref uint64, owned bool) {
	at := r.slot(id)
	if r.layout1 {
		return atomic.LoadUint64(&at.SpanID), 0, true
	}
	for range attempts {
		state := atomic.LoadUint64(&at.State)
		owner := atomic.LoadUint64(&at.Owner)
		if state&wire.SlotInUse != 0 {
			continue
		}
		if spanID, ref = atomic.LoadUint64(&at.SpanID), atomic.LoadUint64(&at.Ref); atomic.LoadUint64(&at.State) == state {
			// If the last write was given up, the span's id was taken back and its Ref was not.
			return spanID, ref, owner == goid && (spanID != 0 || ref == 0)
		}
	}
	return 0, 0, false
}
