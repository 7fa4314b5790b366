// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/slots"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Span is what a slot shows: TraceIDHigh and TraceIDLow, SpanID and LocalRootSpanID, each
// a uint64 that is a W3C identifier, or a half of one, read as a big-endian number;
// TraceFlags, a byte; and Attributes, a []byte in the encoding of OTEP 4947. [SpanOf] makes
// one. The zero Span shows nothing.
//
// Of attributes that do not fit into the ring's attribute space all together, those that
// do, one after the other, are shown. They are stored the quicker way if the capacity of
// Attributes is a multiple of 8 bytes, or has room for the rest of the last 8: what is
// there may get into the slot, where readers pass over it.
type Span = slots.Span

// SpanOf returns the Span with these identifiers.
func SpanOf(traceID [16]byte, spanID, localRootSpanID [8]byte, traceFlags byte) Span {
	return Span{
		TraceIDHigh:     binary.BigEndian.Uint64(traceID[:8]),
		TraceIDLow:      binary.BigEndian.Uint64(traceID[8:]),
		SpanID:          binary.BigEndian.Uint64(spanID[:]),
		LocalRootSpanID: binary.BigEndian.Uint64(localRootSpanID[:]),
		TraceFlags:      traceFlags,
	}
}

// Place is a slot that a span was stored in; 0 is none. It is of use to the ring that
// returned it, and any goroutine may keep it and use it.
type Place uint32

// Ring is a ring of slots. [New] makes one. It is safe for concurrent use.
type Ring struct {
	slots *slots.Ring
	info  Info
	// homes has for each goroutine, by its id modulo their number, the place that
	// it showed a span in last: the one to take back when it shows one elsewhere.
	// Goroutines that share a home take back each other's, if it comes to that.
	homes []atomic.Uint32

	mu     sync.Mutex
	region *vma.Region
}

// Info says where and how a ring is laid out, for readers.
type Info struct {
	// Mapping is the name that the ring's mapping was given.
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

// New returns a ring that shows nothing yet. Only those of its pages cost memory
// that spans are stored in. Its addresses stay in use until the process ends.
//
// The error names the option that cannot be met or the system call that failed, or
// wraps [errors.ErrUnsupported]; then nothing is left behind.
func New(opts ...Option) (*Ring, error) {
	if !slots.Supported {
		return nil, fmt.Errorf("ringbuf.New: %w", errors.ErrUnsupported)
	}
	c := newConfig(opts)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("ringbuf: %w", err)
	}
	info := Info{
		Mapping: c.name, Layout: c.layout, Capacity: c.capacity, Index: c.index,
		HeaderSize: wire.RingHeaderSize2, SlotSize: wire.SlotSize2,
	}
	allocate := vma.New
	if c.layout == wire.RingLayout1 {
		info.HeaderSize, info.SlotSize = wire.RingHeaderSize1, wire.SlotSize1
		// Readers of layout 1 look for anonymous memory.
		allocate = vma.NewAnonymous
	} else if c.attributeSpace > 0 {
		info.SlotSize = 1 << bits.Len(uint(wire.SlotAttributes+c.attributeSpace-1))
	}
	region, err := allocate(c.name, info.HeaderSize+info.Capacity*info.SlotSize)
	if err != nil {
		return nil, fmt.Errorf("ringbuf: %w", err)
	}
	info.Address = region.Address()

	header := wire.RingHeaderIn(region.Bytes())
	header.Layout = uint32(info.Layout)
	header.Capacity = uint32(info.Capacity)
	header.SlotSize = uint32(info.SlotSize)
	if c.layout == wire.RingLayout2 {
		header.HeaderSize = uint32(info.HeaderSize)
		header.Index = uint32(info.Index)
	}
	// Last, for it is what readers look for.
	atomic.StoreUint32(&header.Magic, wire.RingMagic)
	if err := region.Announce(); err != nil {
		return nil, errors.Join(fmt.Errorf("ringbuf: %w", err), region.Close())
	}
	r := &Ring{
		slots: slots.New(slots.Config{
			Memory:      region.Bytes()[info.HeaderSize:][:info.Capacity*info.SlotSize],
			SlotSize:    info.SlotSize,
			Layout1:     c.layout == wire.RingLayout1,
			ByGoroutine: c.index == ByGoroutine,
			Runtime:     c.runtime,
		}),
		info:   info,
		region: region,
	}
	if _, err := c.runtime.Offset(goruntime.GGoid); err == nil && c.layout == wire.RingLayout2 && c.index == ByThread {
		r.homes = make([]atomic.Uint32, info.Capacity)
	}
	return r, nil
}

// Info returns how the ring is laid out.
func (r *Ring) Info() Info { return r.info }

// Store shows s in the slot of the calling thread or goroutine, and returns the
// place. A goroutine shows a span on one thread at a time: what it showed on
// another one before is taken back, which needs layout 2 and a runtime whose
// goroutine ids are known.
//
// It returns 0 if another writer held on to the slot just then; the slot shows what
// that one stored, or nothing, and never what the goroutine showed before.
func (r *Ring) Store(s *Span) Place {
	n, goid := r.slots.StoreFast(s)
	if n == slots.Busy {
		place, _ := r.swapSlow(s)
		return place
	}
	place := Place(n + 1)
	if !r.isHome(place, goid) {
		r.move(place, goid)
	}
	return place
}

// Swap is Store, and returns the id of the span that the goroutine showed so far as
// well, see [Ring.Shown], or 0.
func (r *Ring) Swap(s *Span) (place Place, shown uint64) {
	n, goid, shown := r.slots.SwapFast(s, 0)
	if n == slots.Busy {
		return r.swapSlow(s)
	}
	place = Place(n + 1)
	if !r.isHome(place, goid) {
		shown = cmp.Or(r.move(place, goid), shown)
	}
	return place, shown
}

func (r *Ring) swapSlow(s *Span) (place Place, shown uint64) {
	slot, goid, shown, ok := r.slots.Store(s)
	place = Place(slot + 1)
	if !r.isHome(place, goid) {
		shown = cmp.Or(r.move(place, goid), shown)
	}
	if !ok {
		return 0, shown
	}
	return place, shown
}

// SwapOver is Store if the goroutine shows the span with this id, see [Ring.Shown], and
// else does nothing and returns 0.
func (r *Ring) SwapOver(shown uint64, s *Span) Place {
	n, goid, _ := r.slots.SwapFast(s, shown)
	if n == slots.Busy {
		if r.Shown() != shown {
			return 0
		}
		return r.Store(s)
	}
	place := Place(n + 1)
	if !r.isHome(place, goid) {
		r.move(place, goid)
	}
	return place
}

// isHome reports whether a goroutine is known to show what it shows at place.
func (r *Ring) isHome(place Place, goid uint64) bool {
	return len(r.homes) == 0 || r.homes[goid&uint64(len(r.homes)-1)].Load() == uint32(place)
}

// move notes that a goroutine shows a span at another place than it was known to, takes
// back what it shows there, and returns the id of that or 0.
func (r *Ring) move(to Place, goid uint64) (shown uint64) {
	bucket := goid & uint64(len(r.homes)-1)
	if old := r.homes[bucket].Swap(uint32(to)); old != 0 && old != uint32(to) {
		shown = r.slots.ShownBy(old-1, goid)
		r.slots.Evict(old-1, bucket, uint64(len(r.homes)-1))
	}
	return shown
}

// Clear shows nothing in the slot of the calling thread or goroutine.
func (r *Ring) Clear() { r.Store(new(Span)) }

// Replace shows s at place if that still shows the span with this id, and reports
// whether it did. Who is shown to own the slot stays the same. A nil s shows
// nothing. Whatever it returns, place does not show the span any more.
func (r *Ring) Replace(place Place, spanID uint64, s *Span) bool {
	return place != 0 && r.slots.Replace(uint32(place-1), spanID, s)
}

// Shows reports whether place showed the span with this id just now.
func (r *Ring) Shows(place Place, spanID uint64) bool {
	return place != 0 && r.slots.Shows(uint32(place-1), spanID)
}

// ShownBy returns the id of the span that place shows if it is of the goroutine with this
// id, else 0, also while it is being written. In layout 1 it is everybody's.
func (r *Ring) ShownBy(place Place, goid uint64) uint64 {
	if place == 0 {
		return 0
	}
	return r.slots.ShownBy(uint32(place-1), goid)
}

// Shown returns the id of the span that the calling goroutine shows, on whatever
// thread it stored it, or 0. Where goroutine ids are not known, and in layout 1, it
// is the span that the calling thread shows.
func (r *Ring) Shown() uint64 {
	slot, goid := r.slots.Own()
	if r.homes != nil {
		home := r.homes[goid&uint64(len(r.homes)-1)].Load()
		if home == 0 {
			return 0
		}
		slot = home - 1
	}
	return r.slots.ShownBy(slot, goid)
}

// Close takes the ring back: readers do not find it any more. Its addresses stay
// mapped, to memory without a name, so that a writer that comes late, or was in the
// middle of it, still has somewhere to write; nobody will read it. Closing again
// does nothing. The error names the system call that failed: then the mapping is
// still there, but no ring to readers any more.
func (r *Ring) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.region.Bytes(); b != nil {
		// Should the mapping have to stay, it is no ring to anybody.
		atomic.StoreUint32(&wire.RingHeaderIn(b).Magic, 0)
	}
	if err := r.region.Retire(); err != nil {
		return fmt.Errorf("ringbuf: close: %w", err)
	}
	return nil
}
