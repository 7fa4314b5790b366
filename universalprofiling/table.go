// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/apmlib"
	"github.com/otelctx/otelctx/internal/ordered"
)

// table knows the spans that are shown, and the transactions that have ended and are
// not exported yet, by their id. It has room for so many and no more, allocates nothing
// and has no locks.
//
// It is two tables, for the sake of the processor's caches: a small one that most
// services never fill, and a large one for what does not fit. Where that has no room
// either, a transaction that has ended gives way, and else the oldest span: it is shown
// no more.
type table struct {
	small, large half
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
)

// half is one of the two tables. A span's id tells the bucket that it is in.
type half struct {
	buckets []bucket
	entries []entry
}

// bucket has the ids of the spans in its entries; 0 is none.
type bucket [ways]uint64

// entry takes one cache line.
//
// Its version, the lower half of that word, is odd while one goroutine has the entry to
// itself, which it gets by compare-and-swap: to take it, to give it back or to evict.
// The upper half is the tick of the last change. All others read the fields and then
// look whether the version is still the same.
type entry struct {
	version uint64
	state
	// at is where the span is shown, above the last bits of the version as of which
	// it was noted, so that nothing is noted in an entry that has passed to another
	// span.
	at uint64
	// exports is for how many exporters a transaction that has ended waits. Its users
	// hold the lock of the correlations.
	exports uint64
}

// state is what the table knows of a span.
type state struct {
	traceIDHigh, traceIDLow uint64
	transaction             uint64
	// resumes is the id of the parent if the goroutine was showing that when it
	// started the span, and so will go back to it; else 0. Once a transaction has
	// ended it is when, in nanoseconds since the package began.
	resumes uint64
	// origin is the id of the goroutine that started the span, above the flags.
	origin uint64
}

// The parts of state.origin. The lowest byte is the trace flags.
const (
	ended     = 1 << 8
	localRoot = 1 << 9
	goidShift = 10
)

func (s *state) goid() uint64 { return s.origin >> goidShift }

// live is a span that the table has, as of a version.
type live struct {
	// state is a copy of the entry's.
	state
	entry *entry
	key   *uint64
	id    uint64
	as    uint64 // the version
}

func newTable() *table {
	return &table{small: newHalf(smallBuckets), large: newHalf(largeBuckets)}
}

func newHalf(buckets int) half {
	return half{buckets: make([]bucket, buckets), entries: make([]entry, buckets*ways)}
}

// find looks for the span with this id in a trace, fills l with it, and reports whether
// it is there; it may have ended. If it is not, what l holds means nothing.
func (t *table) find(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return t.small.find(traceIDHigh, traceIDLow, id, l) ||
		t.spilled.Load() && t.large.find(traceIDHigh, traceIDLow, id, l)
}

// findLive is find for a span that has not ended.
func (t *table) findLive(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return t.find(traceIDHigh, traceIDLow, id, l) && l.origin&ended == 0
}

// findRoot is find for a local root.
func (t *table) findRoot(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return t.find(traceIDHigh, traceIDLow, id, l) && l.origin&localRoot != 0
}

// claimed calls f for entries that have the span with this id and are claimed.
func (t *table) claimed(id uint64, f func(apmlib.Place)) {
	for _, h := range []*half{&t.small, &t.large} {
		b := h.bucket(id)
		for way := range ways {
			e := &h.entries[b*ways+uint64(way)]
			if atomic.LoadUint64(&h.buckets[b][way]) == id && atomic.LoadUint64(&e.version)&1 != 0 {
				f(placeOf(atomic.LoadUint64(&e.at)))
			}
		}
	}
}

// add makes the span live whose id and state l holds, shown at a place, and fills l with
// the rest. It returns false if all entries that it may be in are being changed just
// now. evict is called for what has to give way, with its entry claimed.
func (t *table) add(l *live, at apmlib.Place, evict func(*live)) bool {
	now := t.tick.Load()
	if l.id%tickEvery == 0 {
		now = t.tick.Add(1)
	}
	if t.small.add(l, at, now, nil) {
		return true
	}
	if !t.spilled.Load() {
		t.spilled.Store(true)
	}
	return t.large.add(l, at, now, evict)
}

// all calls f for every span that there is.
func (t *table) all(f func(*live)) {
	for _, h := range []*half{&t.small, &t.large} {
		for i := range h.buckets {
			for way := range ways {
				var l live
				if l.id = atomic.LoadUint64(&h.buckets[i][way]); l.id != 0 && h.read(uint64(i), way, &l) {
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
	l.entry, l.key = &h.entries[b*ways+uint64(way)], &h.buckets[b][way]
	l.as = atomic.LoadUint64(&l.entry.version)
}

// read fills l, which has an id, with the span in an entry, and reports whether it is
// that with the id and not being changed.
func (h *half) read(b uint64, way int, l *live) bool {
	h.point(b, way, l)
	if l.as&1 != 0 || atomic.LoadUint64(l.key) != l.id {
		return false
	}
	l.entry.load(&l.state)
	return !l.changed()
}

func (h *half) find(traceIDHigh, traceIDLow, id uint64, l *live) bool {
	if id == 0 {
		return false
	}
	b := h.bucket(id)
	l.id = id
	for way := range ways {
		if atomic.LoadUint64(&h.buckets[b][way]) == id && h.read(b, way, l) &&
			l.traceIDLow == traceIDLow && l.traceIDHigh == traceIDHigh {
			return true
		}
	}
	return false
}

// add is the table's. Without evict nothing gives way.
func (h *half) add(l *live, at apmlib.Place, now uint64, evict func(*live)) bool {
	b := h.bucket(l.id)
	for range ways {
		h.point(b, h.victim(b), l)
		if evict == nil && atomic.LoadUint64(l.key) != 0 {
			return false
		}
		if !l.claim() {
			continue
		}
		if id := atomic.LoadUint64(l.key); id != 0 {
			if evict == nil {
				l.release(now)
				return false
			}
			// A copy, for what a function gets that is not known is allocated.
			victim := *l
			victim.id = id
			victim.entry.load(&victim.state)
			evict(&victim)
		}
		l.set(at)
		l.release(now)
		return true
	}
	return false
}

// victim returns the entry of a bucket for a new span: a free one, or that of the oldest
// transaction that has ended, or that of the oldest span.
func (h *half) victim(b uint64) int {
	victim, least := 0, ^uint64(0)
	for way := range ways {
		if atomic.LoadUint64(&h.buckets[b][way]) == 0 {
			return way
		}
		e := &h.entries[b*ways+uint64(way)]
		rank := atomic.LoadUint64(&e.version) >> 32
		if atomic.LoadUint64(&e.origin)&ended == 0 {
			rank |= 1 << 32
		}
		if rank < least {
			victim, least = way, rank
		}
	}
	return victim
}

// changed reports whether the span is over, or gave way, or ended while it was not.
func (l *live) changed() bool { return atomic.LoadUint64(&l.entry.version) != l.as }

// claim gives the caller the entry to itself, unless it has changed.
func (l *live) claim() bool {
	return l.as&1 == 0 && atomic.CompareAndSwapUint64(&l.entry.version, l.as, l.as|1)
}

// release gives a claimed entry to all, with the span that it holds now.
func (l *live) release(now uint64) {
	l.as = now<<32 | uint64(uint32(l.as)+2)
	ordered.PutLast(&l.entry.version, l.as)
}

// free gives a claimed entry back, without a span.
func (l *live) free() {
	ordered.Put(l.key, 0)
	l.release(l.as >> 32)
}

// end has a claimed entry say that the transaction has ended, at a time, and waits for
// so many exporters, and gives it to all.
func (l *live) end(at, exports uint64) {
	ordered.Put(&l.entry.resumes, at)
	ordered.Put(&l.entry.exports, exports)
	ordered.Put(&l.entry.origin, l.origin|ended)
	l.release(l.as >> 32)
}

// word returns a place as it is noted for a span as of a version.
func word(at apmlib.Place, version uint64) uint64 {
	return uint64(at)<<32 | uint64(uint32(version))
}

func placeOf(word uint64) apmlib.Place { return apmlib.Place(word >> 32) }

// place returns where l is shown.
func (l *live) place() apmlib.Place { return placeOf(atomic.LoadUint64(&l.entry.at)) }

// note notes a place, which shows the span already, and reports whether the end of the
// span will find it there.
//
// The end changes the version first and then looks; this notes first, by
// compare-and-swap, which orders it, and then looks at the version: one of them sees the
// other.
func (l *live) note(at apmlib.Place) bool {
	for {
		w := atomic.LoadUint64(&l.entry.at)
		if uint32(w) != uint32(l.as) {
			return false
		}
		if atomic.CompareAndSwapUint64(&l.entry.at, w, word(at, l.as)) {
			return !l.changed()
		}
	}
}

func (e *entry) load(s *state) {
	s.traceIDHigh, s.traceIDLow = atomic.LoadUint64(&e.traceIDHigh), atomic.LoadUint64(&e.traceIDLow)
	s.transaction, s.resumes = atomic.LoadUint64(&e.transaction), atomic.LoadUint64(&e.resumes)
	s.origin = atomic.LoadUint64(&e.origin)
}

// set fills the claimed entry with l.
func (l *live) set(at apmlib.Place) {
	e := l.entry
	ordered.Put(&e.traceIDHigh, l.traceIDHigh)
	ordered.Put(&e.traceIDLow, l.traceIDLow)
	ordered.Put(&e.transaction, l.transaction)
	ordered.Put(&e.resumes, l.resumes)
	ordered.Put(&e.origin, l.origin)
	ordered.Put(&e.at, word(at, l.as+2))
	ordered.Put(l.key, l.id)
}
