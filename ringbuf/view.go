// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"io"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ringview"
	"github.com/otelctx/otelctx/internal/wire"
)

// Errors of a [View]. All other errors come from the memory that it reads.
var (
	// ErrNotRing means that there is no valid ring at the address.
	ErrNotRing = ringview.ErrNotRing
	// ErrBusy means that a slot was being written at every attempt.
	ErrBusy = ringview.ErrBusy
	// ErrEmpty means that the slot has no span, or that it belongs to another thread or goroutine.
	ErrEmpty = ringview.ErrEmpty
)

// View reads a ring in the memory of another process. It trusts nothing that it finds there, and
// never writes. It is safe for concurrent use if its memory is.
//
// A View shows what is in a slot. It does not know whether a span published by package spanctx has
// ended, or whether the thread still runs the goroutine that published the span. Package reader does,
// and it also finds the ring of a process.
type View struct{ view *ringview.View }

// NewView returns a view of the ring whose header is at this address: see [Info]. Offsets in memory
// are addresses of the process, as in /proc/PID/mem.
//
// The error wraps [ErrNotRing] if there is no valid ring. Any other error comes from memory.
func NewView(memory io.ReaderAt, address uint64) (*View, error) {
	v, err := ringview.Find(memoryReader{memory}, address)
	if err != nil {
		return nil, err
	}
	return &View{v}, nil
}

// Info returns the layout of the ring.
func (v *View) Info() Info {
	i := v.view.Info()
	return Info{
		Address: i.Address, Layout: i.Layout, Capacity: i.Capacity, HeaderSize: i.HeaderSize, SlotSize: i.SlotSize,
		Index: indexOf(i.Index),
	}
}

func indexOf(ring int) Index {
	if ring == wire.RingByGoroutine {
		return ByGoroutine
	}
	return ByThread
}

// Slot is a snapshot of a slot that has a span.
type Slot struct {
	// Span is the published span. Its TraceFlags are always 0 in layout 1.
	Span
	// Ref is the reference to the cell in the span table that tells whether the span is live. It is
	// 0 if the span has no cell, as in rings that this package writes.
	Ref uint64
	// Goroutine is the id of the goroutine that published the span. TID is the id of the thread on
	// which it ran, in the process's own PID namespace, and M is the address of that thread's m, the Go
	// runtime's struct for a thread. Each is 0 if unknown, as always in layout 1.
	Goroutine uint64
	TID       uint32
	M         uint64
}

// Read returns the slot of the thread or goroutine with this id. Slots of layout 1 do not record
// their owner, so the span may come from another thread whose id is equal modulo the capacity.
//
// Read only the slots of threads or goroutines that exist. Other slots may be in pages that were
// never written, and reading such a page makes the kernel allocate it in the process.
//
// The error wraps [ErrEmpty] if the slot has no span or belongs to another thread or goroutine, and
// [ErrBusy] if it was being written at every attempt. Any other error comes from the memory.
func (v *View) Read(id uint64) (Slot, error) {
	s, err := v.view.Read(id)
	if err != nil {
		return Slot{}, err
	}
	return Slot{
		Span: Span{TraceID: s.TraceID, SpanID: s.SpanID, TraceFlags: s.TraceFlags, Attributes: s.Attributes},
		Ref:  s.Ref, Goroutine: s.Owner, TID: s.TID, M: s.M,
	}, nil
}

// memoryReader reads parts of memory one after the other.
type memoryReader struct{ memory io.ReaderAt }

// ReadParts implements [remotemem.Reader].
func (m memoryReader) ReadParts(parts []remotemem.Part) (int, error) {
	for i, p := range parts {
		if n, err := m.memory.ReadAt(p.Data, int64(p.Address)); n < len(p.Data) {
			return i, err
		}
	}
	return len(parts), nil
}
