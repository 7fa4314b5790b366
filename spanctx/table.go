// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/ringbuf"
)

// table knows the spans that are shown, by their id: what the end of a span, which
// may come on any goroutine, needs to take it back from all places. It has room for
// so many and no more, allocates nothing and has no locks.
//
// It is two tables, for the sake of the processor's caches: a small one that most
// services never fill, and a large one for what does not fit. Where that has no room
// either, the oldest of the spans that are in question is shown no more: spans that
// are never ended cost others nothing.
type table struct {
	small, large half
	evict        func(*live)
	// spilled is set once the large one has been used.
	spilled atomic.Bool
	// tick is the age of the table, in units of about tickEvery spans.
	tick atomic.Uint64
}

const (
	smallBuckets = 1 << 8
	largeBuckets = 1 << 13
	ways         = 8
	tickEvery    = 64

	// maxPlaces is at how many places of a ring a span may be shown at a time.
	maxPlaces = 3
)

// half is one of the two tables. A span's id tells the bucket that it is in.
//
// An entry's version, its lower half, is odd while one goroutine has it to itself, which it gets by
// compare-and-swap: to take it, to give it back or to evict. All others read the
// fields and then look whether the version is still the same. The lists of places are
// open to all: to note a place in an entry that has meanwhile passed to another span
// does no harm, since a place is taken back only from the span that it shows.
type half struct {
	// first is the number of the first entry, of those of both tables.
	first   uint64
	buckets []bucket
	entries []entry
	// pointers are those of the entries. They are apart because the garbage collector
	// looks through memory that has pointers.
	pointers []pointers
}

// pointers are those of an entry.
type pointers struct {
	// record is the span's, or nil.
	record gorecord.Ref
	// attributes are what slots show with the span, unless its record says that. They
	// are dropped when it is shown with others, since it is not known where.
	attributes atomic.Pointer[gorecord.Attributes]
}

// bucket says which spans are in its entries.
type bucket [ways]cell

// cell is the half of an entry that is looked for.
type cell struct {
	// key is the span's id; 0 is none.
	key uint64
	// version counts the changes of the entry, above which is the tick of the last one.
	version uint64
}

// entry takes one cache line.
type entry struct {
	state
	places [numRings]places
}

// state is what the table knows of a span.
type state struct {
	traceIDHigh, traceIDLow uint64
	localRoot               uint64
	// resumes is the parent's ref if the goroutine was showing the parent when it
	// started the span, and so will go back to it; else 0.
	resumes ref
	// origin is the id of the goroutine that started the span, 0 if that is not
	// known, above the trace flags, which are the lowest byte.
	origin uint64
}

func origin(goid uint64, flags uint8) uint64 { return goid<<8 | uint64(flags) }

func (s *state) goid() uint64 { return s.origin >> 8 }

func (s *state) flags() uint8 { return uint8(s.origin) }

// places are those of a ring where a span may be shown; 0 is none. A place is noted as
// a word: the place, whether it is a guest's, see show, and the last bits of the
// version, so that who comes late to an entry that has passed to another span cannot
// take that one's for its own.
type places [maxPlaces]uint32

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

// ref finds the entry of a span again, as long as it is that one's: the number of the entry
// is its lower bits, from 1 on, and above are as many as fit of the version. 0 is none.
type ref uint64

const (
	refBits = 17
	refMask = 1<<refBits - 1

	_ = uint(refMask - (smallBuckets+largeBuckets)*ways)
)

// live is a span that the table has, as of a version.
type live struct {
	// state is a copy of the entry's. Who has claimed the entry looks there.
	state
	entry *entry
	*cell
	*pointers

	id, at, number uint64
}

// ref returns what finds l again.
func (l *live) ref() ref { return ref(l.at<<refBits | l.number) }

// show fills a zero Span with what slots show of l, but for the attributes.
func (l *live) show(s *ringbuf.Span) {
	s.TraceIDHigh, s.TraceIDLow = l.traceIDHigh, l.traceIDLow
	s.SpanID, s.LocalRootSpanID, s.TraceFlags = l.id, l.localRoot, l.flags()
}

// ended reports whether the span is over, or was evicted.
func (l *live) ended() bool { return atomic.LoadUint64(&l.version) != l.at }

// shownWith returns the attributes that a goroutine shows with l when it goes back to it,
// where r is the record that is installed, or nil. They are none if that cannot be told.
func (l *live) shownWith(r *gorecord.Record) []byte {
	if r.Shows(l.id) {
		return r.Attributes()
	}
	if own := l.record.Get(); own != nil {
		if !own.Shows(l.id) || own.Attached() {
			return nil
		}
		return own.Attributes()
	}
	a := l.attributes.Load()
	if a == nil || l.ended() {
		return nil
	}
	return a.Encoded()
}

// showWith notes that slots are about to show l with attributes, and returns those that
// it was known to be shown with so far, unless a record says that.
func (l *live) showWith(a *gorecord.Attributes) *gorecord.Attributes {
	own := l.attributes.Load()
	if own == nil || l.ended() {
		return nil
	}
	if !bytes.Equal(own.Encoded(), a.Encoded()) {
		// Should the entry be another span's by now, that one's are missing.
		l.attributes.CompareAndSwap(own, nil)
	}
	return own
}

// newTable returns a table that has so many buckets, each a power of two. evict takes a
// span back that has to give way, whose entry is claimed.
func newTable(small, large int, evict func(*live)) *table {
	t := &table{small: newHalf(1, small), evict: evict}
	t.large = newHalf(t.small.first+uint64(len(t.small.entries)), large)
	return t
}

func newHalf(first uint64, buckets int) half {
	return half{
		first:    first,
		buckets:  make([]bucket, buckets),
		entries:  make([]entry, buckets*ways),
		pointers: make([]pointers, buckets*ways),
	}
}

// find looks for the span with this id, fills l with it, and reports whether it is
// live. If it is not, what l holds means nothing.
func (t *table) find(id uint64, l *live) bool { return t.findIn(0, 0, id, l) }

// findIn is find for the span with this id in a trace: nothing keeps a span id from
// being used by two. A trace whose id is 0 stands for all.
func (t *table) findIn(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return t.small.find(traceIDHigh, traceIDLow, id, l) ||
		t.spilled.Load() && t.large.find(traceIDHigh, traceIDLow, id, l)
}

// take is findIn and claim in one. What l holds is the entry's, but for the state.
func (t *table) take(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return t.small.take(traceIDHigh, traceIDLow, id, l) ||
		t.spilled.Load() && t.large.take(traceIDHigh, traceIDLow, id, l)
}

// follow fills l with the span that has a ref, and reports whether it is live.
func (t *table) follow(r ref, l *live) bool {
	h, n := &t.small, uint64(r)&refMask
	if n >= t.large.first {
		h = &t.large
	}
	n -= h.first
	h.point(n/ways, int(n%ways), l)
	l.id = atomic.LoadUint64(&l.key)
	if l.ref() != r || l.at&1 != 0 {
		return false
	}
	l.entry.load(&l.state)
	return !l.ended()
}

// claimed calls f for entries that hold the span with this id and that somebody has
// claimed, with no more than what there is to know of those from the outside.
func (t *table) claimed(id uint64, f func(*live)) {
	for _, h := range []*half{&t.small, &t.large} {
		b := h.bucket(id)
		for way := range ways {
			bucket := &h.buckets[b]
			if atomic.LoadUint64(&bucket[way].key) != id || atomic.LoadUint64(&bucket[way].version)&1 == 0 {
				continue
			}
			l := live{id: id}
			h.point(b, way, &l)
			f(&l)
		}
	}
}

// add makes the span live whose id and state l holds, with its pointers, shown at these
// places, and fills l with the rest. It returns false if all entries that it may be in
// are being changed just now.
func (t *table) add(l *live, with carried, at *[numRings]ringbuf.Place) bool {
	now := t.tick.Load()
	if l.id%tickEvery == 0 {
		now = t.tick.Add(1)
	}
	if t.small.add(l, with, at, now) {
		return true
	}
	if !t.spilled.Load() {
		t.spilled.Store(true)
	}
	return t.large.add(l, with, at, now) || t.large.displace(l, with, at, now, t.evict)
}

// all calls f for every live span.
func (t *table) all(f func(*live)) {
	for _, h := range []*half{&t.small, &t.large} {
		for i := range h.buckets {
			for way := range ways {
				var l live
				if l.id = atomic.LoadUint64(&h.buckets[i][way].key); l.id != 0 && h.read(uint64(i), way, &l) {
					f(&l)
				}
			}
		}
	}
}

// bucket returns the number of the bucket that an id may be in.
func (h *half) bucket(id uint64) uint64 {
	// Ids are random, as W3C asks; multiplying serves generators that count.
	const spread = 0x9E3779B97F4A7C15
	return id * spread >> 32 & uint64(len(h.buckets)-1)
}

// point has l be about an entry, as of its version now.
func (h *half) point(b uint64, way int, l *live) {
	n := b*ways + uint64(way)
	l.cell, l.entry, l.pointers = &h.buckets[b][way], &h.entries[n], &h.pointers[n]
	l.number = h.first + n
	l.at = atomic.LoadUint64(&l.version)
}

// read fills l, which has an id, with the span in an entry, and reports whether it is
// that with the id and is live.
func (h *half) read(b uint64, way int, l *live) bool {
	h.point(b, way, l)
	if l.at&1 != 0 || atomic.LoadUint64(&l.key) != l.id {
		return false
	}
	l.entry.load(&l.state)
	return !l.ended()
}

func (h *half) find(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	if id == 0 {
		return false
	}
	b := h.bucket(id)
	l.id = id
	for way := range ways {
		if atomic.LoadUint64(&h.buckets[b][way].key) == id && h.read(b, way, l) &&
			(l.traceIDLow == traceIDLow && l.traceIDHigh == traceIDHigh || traceIDHigh|traceIDLow == 0) {
			return true
		}
	}
	return false
}

// take is the table's.
func (h *half) take(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	if id == 0 {
		return false
	}
	b := h.bucket(id)
	l.id = id
	for way := range ways {
		if atomic.LoadUint64(&h.buckets[b][way].key) != id {
			continue
		}
		h.point(b, way, l)
		// If the version is still the same then, all of this was the span's.
		if atomic.LoadUint64(&l.key) == id && atomic.LoadUint64(&l.entry.traceIDLow) == traceIDLow &&
			atomic.LoadUint64(&l.entry.traceIDHigh) == traceIDHigh && l.claim() {
			return true
		}
	}
	return false
}

// add is the table's, as long as there is a free entry.
func (h *half) add(l *live, with carried, places *[numRings]ringbuf.Place, now uint64) bool {
	b := h.bucket(l.id)
	for way := range ways {
		if atomic.LoadUint64(&h.buckets[b][way].key) != 0 {
			continue
		}
		h.point(b, way, l)
		if !l.claim() {
			continue
		}
		free := atomic.LoadUint64(&l.key) == 0
		if free {
			l.set(with, places)
		}
		l.release(now)
		if free {
			return true
		}
	}
	return false
}

// displace is add in the stead of the oldest span.
func (h *half) displace(l *live, with carried, places *[numRings]ringbuf.Place, now uint64, evict func(*live)) bool {
	b := h.bucket(l.id)
	for range ways {
		h.point(b, h.oldest(b), l)
		if !l.claim() {
			continue
		}
		if id := atomic.LoadUint64(&l.key); id != 0 {
			// A copy, for what a function gets that is not known is allocated.
			victim := *l
			victim.id = id
			victim.entry.load(&victim.state)
			evict(&victim)
		}
		l.set(with, places)
		l.release(now)
		return true
	}
	return false
}

// oldest returns the entry of a bucket for a new span: a free one, or that of the
// oldest span.
func (h *half) oldest(b uint64) int {
	bucket, oldest := &h.buckets[b], 0
	for way := range ways {
		if atomic.LoadUint64(&bucket[way].key) == 0 {
			return way
		}
		if atomic.LoadUint64(&bucket[way].version)>>32 < atomic.LoadUint64(&bucket[oldest].version)>>32 {
			oldest = way
		}
	}
	return oldest
}

// claim gives the caller the entry to itself, unless it has changed.
func (l *live) claim() bool {
	return l.at&1 == 0 && atomic.CompareAndSwapUint64(&l.version, l.at, l.at|1)
}

// release gives a claimed entry to all, with the span that it holds now.
func (l *live) release(now uint64) {
	l.at = now<<32 | uint64(uint32(l.at)+2)
	ordered.PutLast(&l.version, l.at)
}

// free gives a claimed entry back, without a span.
func (l *live) free() {
	l.carry(carried{})
	ordered.Put(&l.key, 0)
	ordered.PutLast(&l.version, l.at>>32<<32|uint64(uint32(l.at)+2))
}

// note adds a place, which shows the span already, to the list of a ring, in the stead
// of one that does not show the span any more. It returns false if there is none, or
// the span is over.
//
// Each way to succeed is a compare-and-swap. It is what orders the caller's store to
// the slot before whatever the caller and others look at next; stores alone may be
// seen late.
func (l *live) note(ring int, r *ringbuf.Ring, place ringbuf.Place, guest bool) bool {
	in, noted := &l.entry.places[ring], word(place, guest, l.at)
	for i := range in {
		if w := atomic.LoadUint32(&in[i]); (w^noted)&^guestPlace == 0 && atomic.CompareAndSwapUint32(&in[i], w, noted) {
			return true
		}
	}
	for i := range in {
		for {
			w := atomic.LoadUint32(&in[i])
			if l.ended() {
				// The list may be another span's by now, whose places are not to be
				// displaced.
				return false
			}
			old, oldGuest := placeOf(w)
			if r.Shows(old, l.id) {
				break
			}
			if !atomic.CompareAndSwapUint32(&in[i], w, noted) {
				continue
			}
			// Somebody may have shown the span there since, and have found the place
			// noted: that was before it was displaced, and so is seen now.
			if r.Shows(old, l.id) {
				l.keep(ring, r, old, oldGuest)
			}
			return true
		}
	}
	return false
}

// keep notes a place that l is shown at, or if its end would not find it there takes it
// back.
//
// It may be that the end looks at the places before this one is noted. The end changes
// the version first and then looks; those who show the span show and note it first and
// then look at the version: one of them sees the other.
func (l *live) keep(ring int, r *ringbuf.Ring, place ringbuf.Place, guest bool) {
	if !l.note(ring, r, place, guest) || l.ended() {
		r.Replace(place, l.id, nil)
	}
}

func (e *entry) load(s *state) {
	s.traceIDHigh, s.traceIDLow = atomic.LoadUint64(&e.traceIDHigh), atomic.LoadUint64(&e.traceIDLow)
	s.localRoot, s.resumes = atomic.LoadUint64(&e.localRoot), ref(atomic.LoadUint64((*uint64)(&e.resumes)))
	s.origin = atomic.LoadUint64(&e.origin)
}

// carried is what the pointers of an entry point at.
type carried struct {
	record     *gorecord.Record
	attributes *gorecord.Attributes
}

// carry sets the pointers of the claimed entry.
func (l *live) carry(c carried) {
	l.record.Put(c.record)
	if l.attributes.Load() != c.attributes {
		l.attributes.Store(c.attributes)
	}
}

// set fills the claimed entry with l.
func (l *live) set(with carried, at *[numRings]ringbuf.Place) {
	e := l.entry
	ordered.Put(&e.traceIDHigh, l.traceIDHigh)
	ordered.Put(&e.traceIDLow, l.traceIDLow)
	ordered.Put(&e.localRoot, l.localRoot)
	ordered.Put((*uint64)(&e.resumes), uint64(l.resumes))
	ordered.Put(&e.origin, l.origin)
	for ring := range e.places {
		ordered.Put32(&e.places[ring][0], word(at[ring], false, l.at+2))
		for i := 1; i < maxPlaces; i++ {
			ordered.Put32(&e.places[ring][i], 0)
		}
	}
	l.carry(with)
	ordered.Put(&l.key, l.id)
}
