// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/ringbuf"
)

// maxPlaces is at how many places of a ring a span may be shown at a time.
const maxPlaces = 3

// table knows the spans that are shown. When a span has to give way to another one it is
// shown no more.
//
// The lists of places in its entries are open to all: to note a place in an entry that
// has meanwhile passed to another span does no harm, since a place is taken back only
// from the span that it shows.
type table = spantable.Table[entry, pointers]

type span = spantable.Span[entry, pointers]

func newTable(evict func(*span)) *table {
	return spantable.New(spantable.Buckets(), evict, nil)
}

// entry is what the table knows of a span, beside its ids. With those it takes one cache
// line.
type entry struct {
	localRoot uint64
	// resumes is the parent if the goroutine was showing that when it started the span,
	// and so will go back to it; else 0.
	resumes spantable.Ref
	// origin is the id of the goroutine that started the span, 0 if that is not
	// known, above the trace flags, which are the lowest byte.
	origin origin
	places [numRings]places
}

// pointers are those of an entry.
type pointers struct {
	// record is the span's, or nil.
	record gorecord.Ref
	// attributes are what slots show with the span, unless its record says that. They
	// are dropped when it is shown with others, since it is not known where.
	attributes atomic.Pointer[gorecord.Attributes]
}

// origin is the id of the goroutine that started a span, 0 if that is not known, above
// the trace flags, which are the lowest byte.
type origin uint64

func originOf(goid uint64, flags uint8) origin { return origin(goid<<8 | uint64(flags)) }

func (o origin) goid() uint64 { return uint64(o >> 8) }

func (o origin) flags() uint8 { return uint8(o) }

// places are those of a ring where a span may be shown; 0 is none. A place is noted as
// a word: the place, whether it is a guest's, see show, and the last bits of the
// version, so that who comes late to an entry that has passed to another span cannot
// take that one's for its own.
type places [maxPlaces]uint32

// begin has the place of a word be the only one.
func (p *places) begin(word uint32) {
	ordered.Put32(&p[0], word)
	ordered.Put32(&p[1], 0)
	ordered.Put32(&p[2], 0)
}

// clear has no place of a ring show a span.
func (p *places) clear(r *ringbuf.Ring, id uint64) {
	for i := range p {
		place, _ := placeOf(atomic.LoadUint32(&p[i]))
		if place == 0 {
			return // they are noted in their order
		}
		r.Replace(place, id, nil)
	}
}

const (
	placeBits  = 25 // of a ring's capacity at most, and one for no place
	placeMask  = 1<<placeBits - 1
	guestPlace = 1 << placeBits
	// versionShift is where the version's bits are, but for the one that claims.
	versionShift = placeBits + 1
)

// word returns a place as it is noted for a span as of a version.
func word(place ringbuf.Place, guest bool, version uint64) uint32 {
	w := uint32(place) | uint32(version>>1)<<versionShift
	if guest {
		w |= guestPlace
	}
	return w
}

func placeOf(word uint32) (place ringbuf.Place, guest bool) {
	return ringbuf.Place(word & placeMask), word&guestPlace != 0
}

// live is a span that the table has, with a copy of what that knows of it.
type live struct {
	span

	// shows is what slots show of it.
	shows  ringbuf.Span
	origin origin
	// resumes is what the entry has, of a span that starts.
	resumes spantable.Ref
}

// load copies what the table knows of l, and reports whether it still is that span's. Of
// attributes it does not know.
func (l *live) load() bool {
	e := l.Data()
	l.shows.TraceIDHigh, l.shows.TraceIDLow = l.TraceID()
	l.shows.SpanID, l.shows.LocalRootSpanID = l.ID, atomic.LoadUint64(&e.localRoot)
	l.origin = origin(atomic.LoadUint64((*uint64)(&e.origin)))
	l.shows.TraceFlags = l.origin.flags()
	return !l.Changed()
}

// shownWith returns the attributes that a goroutine shows with l when it goes back to it,
// where r is the record that is installed, or nil. They are none if that cannot be told.
func (l *live) shownWith(r *gorecord.Record) []byte {
	if r.Shows(l.ID) {
		return r.Attributes()
	}
	if own := l.Pointers().record.Get(); own != nil {
		if !own.Shows(l.ID) || own.Attached() {
			return nil
		}
		return own.Attributes()
	}
	a := l.Pointers().attributes.Load()
	if a == nil || l.Changed() {
		return nil
	}
	return a.Encoded()
}

// showWith notes that slots are about to show l with attributes, and returns those that
// it was known to be shown with so far, unless a record says that.
func (l *live) showWith(a *gorecord.Attributes) *gorecord.Attributes {
	own := l.Pointers().attributes.Load()
	if own == nil || l.Changed() {
		return nil
	}
	if !bytes.Equal(own.Encoded(), a.Encoded()) {
		// Should the entry be another span's by now, that one's are missing.
		l.Pointers().attributes.CompareAndSwap(own, nil)
	}
	return own
}

// note adds a place, by its word, to the list of a ring, in the stead of one that does not
// show the span any more. The place shows the span already. It returns false if there is
// none, or the span is over.
//
// Each way to succeed, and keep's own, is a compare-and-swap. It is what orders the caller's
// store to the slot before whatever the caller and others look at next; stores alone may be
// seen late.
func (l *live) note(ring int, r *ringbuf.Ring, noted uint32) bool {
	in := &l.Data().places[ring]
	for i := range in {
		if w := atomic.LoadUint32(&in[i]); (w^noted)&^guestPlace == 0 && atomic.CompareAndSwapUint32(&in[i], w, noted) {
			return true
		}
	}
	return l.displace(in, r, ring, noted)
}

// displace is note for a place that the list does not have.
func (l *live) displace(in *places, r *ringbuf.Ring, ring int, noted uint32) bool {
	for i := range in {
		for {
			w := atomic.LoadUint32(&in[i])
			if l.Changed() {
				// The list may be another span's by now, whose places are not to be
				// displaced.
				return false
			}
			old, oldGuest := placeOf(w)
			if r.Shows(old, l.ID) {
				break
			}
			if !atomic.CompareAndSwapUint32(&in[i], w, noted) {
				continue
			}
			// Somebody may have shown the span there since, and have found the place
			// noted: that was before it was displaced, and so is seen now.
			if r.Shows(old, l.ID) {
				l.keep(ring, r, old, oldGuest)
			}
			return true
		}
	}
	return false
}

// keep notes a place that l is shown at, or if its end would not find it there takes it
// back and returns false.
//
// It may be that the end looks at the places before this one is noted. The end changes
// the version first and then looks; those who show the span show and note it first and
// then look at the version: one of them sees the other.
func (l *live) keep(ring int, r *ringbuf.Ring, place ringbuf.Place, guest bool) bool {
	// Most often it is the first one and noted already. To look at that by itself makes a
	// span inside of another one quicker by a hundredth.
	first, noted := &l.Data().places[ring][0], word(place, guest, l.At)
	again := atomic.LoadUint32(first) == noted && atomic.CompareAndSwapUint32(first, noted, noted)
	if !again && !l.note(ring, r, noted) || l.Changed() {
		r.Replace(place, l.ID, nil)
		return false
	}
	return true
}

// keepHere is keep for a place where the calling goroutine has just shown l. Before a
// guest's place is noted, the end of l may take it for one of the goroutine that started
// l, and go on there to the parent, which the guest is not in.
func (l *live) keepHere(ring int, r *ringbuf.Ring, place ringbuf.Place, guest bool) {
	if !l.keep(ring, r, place, guest) && guest {
		r.Clear()
	}
}

// carried is what the pointers of an entry point at.
type carried struct {
	record     *gorecord.Record
	attributes *gorecord.Attributes
}

// carry sets the pointers of a reserved entry, which are nil.
func (p *pointers) carry(c carried) {
	if c.record != nil {
		p.record.Put(c.record)
	}
	if c.attributes != nil {
		p.attributes.Store(c.attributes)
	}
}

// drop has the pointers of a claimed entry be nil.
func (p *pointers) drop() {
	p.record.Put(nil)
	if p.attributes.Load() != nil {
		p.attributes.Store(nil)
	}
}

// store stores l, which is shown at these places, into the entry that is reserved for it.
func (l *live) store(with carried, at *[numRings]ringbuf.Place) {
	e := l.Data()
	ordered.Put(&e.localRoot, l.shows.LocalRootSpanID)
	ordered.Put((*uint64)(&e.resumes), uint64(l.resumes))
	ordered.Put((*uint64)(&e.origin), uint64(l.origin))
	e.places[threadRing].begin(word(at[threadRing], false, l.At))
	e.places[goroutineRing].begin(word(at[goroutineRing], false, l.At))
	if with.record != nil || with.attributes != nil {
		l.Pointers().carry(with)
	}
	l.Commit(l.shows.TraceIDHigh, l.shows.TraceIDLow)
}
