// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
)

// Span is an active span. If its trace ID or its span ID is zero, there is none.
type Span struct {
	// TraceID and SpanID are in the byte order of W3C Trace Context. TraceFlags are the W3C trace
	// flags, in which 1 means sampled.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// Attributes are attributes of the span, encoded according to OTEP 4947 as entries {key u8,
	// length u8, value}.
	Attributes []byte
}

// Ring is a ring of slots, created by [New]. It is safe for concurrent use. The methods of a nil or
// zero Ring do nothing.
type Ring struct {
	ring    *ring.Ring
	index   Index
	runtime *goruntime.Runtime
}

// Info describes the location and layout of a ring, for readers: see [NewView].
type Info struct {
	// Mapping is the name of the ring's mapping. It is empty in the Info of a [View].
	Mapping string
	// Address is the address of the ring's header in the process.
	Address uint64
	// Layout is 1 or 2. Capacity is the number of slots.
	Layout, Capacity int
	// HeaderSize is the distance in bytes from Address to the first slot. SlotSize is the distance
	// in bytes from one slot to the next.
	HeaderSize, SlotSize int
	// Index says whether slots are indexed by thread or by goroutine.
	Index Index
}

// New returns an empty ring. Pages use no memory until a span is stored in them. The ring's address
// range stays occupied until the process ends.
//
// The error names the invalid option or the system call that failed, or wraps
// [errors.ErrUnsupported]. If New fails, it leaves nothing mapped.
func New(opts ...Option) (*Ring, error) {
	if !goruntime.Supported {
		return nil, fmt.Errorf("ringbuf.New: %w", errors.ErrUnsupported)
	}
	c := newConfig(opts)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("ringbuf: %w", err)
	}
	r, err := ring.New(ring.Config{
		Capacity: c.capacity, Layout: c.layout, Index: c.index.ring(), AttributeSpace: c.attributeSpace,
	})
	if err != nil {
		return nil, fmt.Errorf("ringbuf: %w", err)
	}
	return &Ring{r, c.index, c.runtime}, nil
}

// Info returns the location and layout of the ring.
func (r *Ring) Info() Info {
	if r.isNil() {
		return Info{}
	}
	d := r.ring.Description()
	return Info{
		Mapping: d.Name, Address: d.Address, Layout: d.Layout, Capacity: d.Capacity,
		HeaderSize: d.HeaderSize, SlotSize: d.SlotSize, Index: r.index,
	}
}

// Store publishes s in the slot of the calling thread or goroutine, without the attributes that do not
// fit into the slot. If another writer holds the slot at that moment, the slot ends up with that
// writer's span or empty, but never with the previous span. If s is nil, Store does nothing.
//
// In a ring indexed by thread, a goroutine that moves to another thread leaves its span in the slot
// of the previous thread. In layout 2 readers notice this, because the slot records the goroutine.
func (r *Ring) Store(s *Span) {
	if r.isNil() || s == nil {
		return
	}
	r.store(&ring.Span{
		TraceIDHigh: binary.BigEndian.Uint64(s.TraceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(s.TraceID[8:]),
		SpanID:      binary.BigEndian.Uint64(s.SpanID[:]),
		TraceFlags:  s.TraceFlags,
		Attributes:  s.Attributes,
	})
}

func (r *Ring) store(s *ring.Span) {
	goruntime.Pin()
	self := r.runtime.Self()
	r.ring.Store(r.id(&self), s, &self)
	goruntime.Unpin()
}

// Clear removes the span from the slot of the calling thread or goroutine.
func (r *Ring) Clear() {
	if !r.isNil() {
		r.store(&ring.Span{})
	}
}

// Get returns the span that the calling goroutine has published, without attributes, and whether
// there is one. It looks in the slot of the goroutine or, in a ring indexed by thread, of the
// current thread. If goroutine ids are unknown, or in layout 1, it returns the span in that slot
// even if another goroutine published it. Get allocates nothing and takes no lock.
func (r *Ring) Get() (Span, bool) {
	if r.isNil() {
		return Span{}, false
	}
	goruntime.Pin()
	self := r.runtime.Self()
	s, owner, _, ok := r.ring.Load(r.id(&self))
	goruntime.Unpin()
	if !ok || !r.ring.Layout1() && owner != self.Goid {
		return Span{}, false
	}
	span := Span{TraceFlags: s.TraceFlags}
	binary.BigEndian.PutUint64(span.TraceID[:8], s.TraceIDHigh)
	binary.BigEndian.PutUint64(span.TraceID[8:], s.TraceIDLow)
	binary.BigEndian.PutUint64(span.SpanID[:], s.SpanID)
	return span, true
}

// isNil reports whether r is nil or zero.
func (r *Ring) isNil() bool { return r == nil || r.ring == nil }

func (r *Ring) id(self *goruntime.Self) uint64 {
	if r.index == ByGoroutine {
		return self.Goid
	}
	return uint64(self.TID)
}

// Close unpublishes the ring: readers no longer find it. Close replaces the memory with unnamed
// memory at the same addresses, so that writes during and after Close do no harm. The error names
// the system call that failed. In that case the old mapping remains, but readers no longer
// recognize it as a ring. Closing a ring twice does nothing.
func (r *Ring) Close() error {
	if r.isNil() {
		return nil
	}
	if err := r.ring.Close(); err != nil {
		return fmt.Errorf("ringbuf: %w", err)
	}
	return nil
}
