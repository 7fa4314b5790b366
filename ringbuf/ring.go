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

// Span is what a slot shows. [SpanOf] makes one. The zero Span shows nothing.
//
//   - TraceIDHigh, TraceIDLow and SpanID are uint64: a W3C identifier, or a half of one,
//     read as a big-endian number.
//   - Ref, a uint64, names the span's cell in a span table. It is 0 without one.
//   - TraceFlags is a byte.
//   - Attributes is a []byte in the encoding of OTEP 4947. If they do not all fit into the
//     ring's attribute space, those are shown, one after the other, for which there is room.
type Span = ring.Span

// SpanOf returns the Span with these identifiers.
func SpanOf(traceID [16]byte, spanID [8]byte, traceFlags byte) Span {
	return Span{
		TraceIDHigh: binary.BigEndian.Uint64(traceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(traceID[8:]),
		SpanID:      binary.BigEndian.Uint64(spanID[:]),
		TraceFlags:  traceFlags,
	}
}

// Ring is a ring of slots. [New] makes one. It is safe for concurrent use. A nil or zero Ring shows
// nothing: its methods do nothing.
type Ring struct {
	ring    *ring.Ring
	index   Index
	runtime *goruntime.Runtime
}

// Info says where and how a ring is laid out, for readers.
type Info struct {
	// Mapping is the name that the ring's mapping was given. That of a view from [FindView] is empty.
	Mapping string
	// Address is where in the process the ring's header is.
	Address uint64
	// Layout is 1 or 2, Capacity the number of slots.
	Layout, Capacity int
	// HeaderSize is how far behind Address the slots start, SlotSize how far they
	// are apart, in bytes.
	HeaderSize, SlotSize int
	// Index is by what a slot is found.
	Index Index
}

// New returns a ring that shows nothing yet. Only those of its pages cost memory that
// spans are stored in. Its addresses stay in use until the process ends.
//
// The error names the option that cannot be met or the system call that failed, or
// wraps [errors.ErrUnsupported]; then nothing is left behind.
func New(opts ...Option) (*Ring, error) {
	if !goruntime.Supported {
		return nil, fmt.Errorf("ringbuf.New: %w", errors.ErrUnsupported)
	}
	c := newConfig(opts)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("ringbuf: %w", err)
	}
	r, err := ring.New(ring.Config{
		Name: c.name, Capacity: c.capacity, Layout: c.layout, Index: int(c.index), AttributeSpace: c.attributeSpace,
	})
	if err != nil {
		return nil, fmt.Errorf("ringbuf: %w", err)
	}
	return &Ring{r, c.index, c.runtime}, nil
}

// Info returns how the ring is laid out.
func (r *Ring) Info() Info {
	if r.none() {
		return Info{}
	}
	l := r.ring.Layout()
	return Info{
		Mapping: l.Name, Address: l.Address, Layout: l.Layout, Capacity: l.Capacity,
		HeaderSize: l.HeaderSize, SlotSize: l.SlotSize, Index: r.index,
	}
}

// Store shows s in the slot of the calling thread or goroutine. If another writer holds on
// to the slot just then, it shows what that one stores, or nothing, and never what it
// showed before. If s is nil, it does nothing.
//
// A goroutine that has moved to another thread leaves behind what it showed on the one
// before, as its owner says.
func (r *Ring) Store(s *Span) {
	if r.none() || s == nil {
		return // A panic while pinned would end the process.
	}
	goruntime.Pin()
	self := r.runtime.Self()
	r.ring.Store(r.id(&self), s, &self)
	goruntime.Unpin()
}

// Clear shows nothing in the slot of the calling thread or goroutine.
func (r *Ring) Clear() { r.Store(new(Span)) }

// Shown returns the id of the span that the slot of the calling thread or goroutine shows
// for the calling goroutine, or 0. Where goroutine ids are not known, and in layout 1, it
// is that of whichever goroutine.
func (r *Ring) Shown() uint64 {
	if r.none() {
		return 0
	}
	goruntime.Pin()
	self := r.runtime.Self()
	spanID, _, owned := r.ring.Shown(r.id(&self), self.Goid)
	goruntime.Unpin()
	if !owned {
		return 0
	}
	return spanID
}

// Get returns the span, without attributes, that the slot of the calling thread or goroutine shows for
// the calling goroutine, and whether it shows one. Where goroutine ids are not known, and in layout
// 1, the span is that of whichever goroutine. It allocates nothing and takes no lock.
func (r *Ring) Get() (Span, bool) {
	if r.none() {
		return Span{}, false
	}
	goruntime.Pin()
	self := r.runtime.Self()
	s, owner, _, ok := r.ring.Load(r.id(&self))
	goruntime.Unpin()
	if !ok || !r.ring.Layout1() && owner != self.Goid {
		return Span{}, false
	}
	return s, true
}

// GetByID returns the span, without attributes, that the slot of the thread or goroutine with this id
// shows, and whether it shows one. A thread id is one of the process's own PID namespace. In layout 1
// the slot may be that of another thread with an id that is equal modulo the capacity. The goroutine
// may have moved to another thread since. It allocates nothing and takes no lock.
func (r *Ring) GetByID(id uint64) (Span, bool) {
	if r.none() {
		return Span{}, false
	}
	s, owner, tid, ok := r.ring.Load(id)
	switch {
	case !ok:
	case r.ring.Layout1():
		return s, true
	case r.index == ByGoroutine && owner == id, r.index == ByThread && uint64(tid) == id:
		return s, true
	}
	return Span{}, false
}

// none reports whether r is no ring.
func (r *Ring) none() bool { return r == nil || r.ring == nil }

func (r *Ring) id(self *goruntime.Self) uint64 {
	if r.index == ByGoroutine {
		return self.Goid
	}
	return uint64(self.TID)
}

// Close takes the ring back: readers do not find it any more. Its addresses stay mapped, to
// memory without a name. So a writer that comes late, or was in the middle of writing,
// still has somewhere to write; nobody reads that. Closing again does nothing. The error
// names the system call that failed: then the mapping is still there, but no ring to
// readers any more.
func (r *Ring) Close() error {
	if r.none() {
		return nil
	}
	if err := r.ring.Close(); err != nil {
		return fmt.Errorf("ringbuf: %w", err)
	}
	return nil
}
