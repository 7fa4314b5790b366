// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
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
	buckets []bucket
	entries []entry
	// records has for each entry the span's record. They are apart because the
	// garbage collector looks through memory that has pointers.
	records []atomic.Pointer[gorecord.Record]
}

// bucket says which spans are in its entries.
type bucket struct {
	// keys are the spans' ids; 0 is none.
	keys [ways]uint64
	// versions count the changes of the entries, above which is the tick of the
	// last one.
	versions [ways]atomic.Uint64
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
	// resumes is the id of the parent if the goroutine was showing that when it
	// started the span, and so will go back to it; else 0.
	resumes uint64
	// origin is the id of the goroutine that started the span, 0 if that is not
	// known, above the trace flags, which are the lowest byte.
	origin uint64
}

func origin(goid uint64, flags uint8) uint64 { return goid<<8 | uint64(flags) }

func (s *state) goid() uint64 { return s.origin >> 8 }

// places are those of a ring where a span may be shown; 0 is none.
type places [maxPlaces]uint32

// live is a span that the table has, as of a version.
type live struct {
	// state is a copy of the entry's.
	state
	entry *entry

	key     *uint64
	version *atomic.Uint64
	record  *atomic.Pointer[gorecord.Record]
	id, at  uint64
}

// span returns what slots show of l.
func (l *live) span() ringbuf.Span {
	return ringbuf.Span{
		TraceIDHigh: l.traceIDHigh, TraceIDLow: l.traceIDLow, SpanID: l.id,
		LocalRootSpanID: l.localRoot, TraceFlags: uint8(l.origin),
	}
}

// ended reports whether the span is over, or was evicted.
func (l *live) ended() bool { return l.version.Load() != l.at }

func newTable() *table {
	return &table{small: newHalf(smallBuckets), large: newHalf(largeBuckets)}
}

func newHalf(buckets int) half {
	return half{
		buckets: make([]bucket, buckets),
		entries: make([]entry, buckets*ways),
		records: make([]atomic.Pointer[gorecord.Record], buckets*ways),
	}
}

// find returns the span with this id, if it is live.
func (t *table) find(id uint64) (l live, ok bool) {
	if l, ok = t.small.find(id); !ok && t.spilled.Load() {
		l, ok = t.large.find(id)
	}
	return l, ok
}

// add makes a span live that is shown at these places. ok is false if all entries
// that it may be in are being changed just now. evict is called for a span that has to
// give way, with its entry claimed.
func (t *table) add(id uint64, s state, at [numRings]ringbuf.Place, evict func(*live)) (l live, ok bool) {
	now := t.tick.Load()
	if id%tickEvery == 0 {
		now = t.tick.Add(1)
	}
	if l, ok := t.small.add(id, s, at, now, nil); ok {
		return l, true
	}
	if !t.spilled.Load() {
		t.spilled.Store(true)
	}
	return t.large.add(id, s, at, now, evict)
}

// all calls f for every live span.
func (t *table) all(f func(*live)) {
	for _, h := range []*half{&t.small, &t.large} {
		for i := range h.buckets {
			for way := range ways {
				if l, ok := h.at(uint64(i), way); ok {
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

// entry returns an entry as it is.
func (h *half) entry(b uint64, way int) live {
	bucket, n := &h.buckets[b], b*ways+uint64(way)
	return live{
		entry: &h.entries[n], record: &h.records[n],
		key: &bucket.keys[way], version: &bucket.versions[way],
		id: atomic.LoadUint64(&bucket.keys[way]), at: bucket.versions[way].Load(),
	}
}

// at returns the span in an entry, if there is one.
func (h *half) at(b uint64, way int) (l live, ok bool) {
	l = h.entry(b, way)
	if l.id == 0 || l.at&1 != 0 {
		return live{}, false
	}
	l.state = l.entry.load()
	return l, atomic.LoadUint64(l.key) == l.id && !l.ended()
}

func (h *half) find(id uint64) (l live, ok bool) {
	b := h.bucket(id)
	for way := range ways {
		if atomic.LoadUint64(&h.buckets[b].keys[way]) == id {
			if l, ok := h.at(b, way); ok && l.id == id {
				return l, true
			}
		}
	}
	return live{}, false
}

// add is the table's. Without evict nothing gives way.
func (h *half) add(id uint64, s state, places [numRings]ringbuf.Place, now uint64, evict func(*live)) (live, bool) {
	b := h.bucket(id)
	for range ways {
		l := h.entry(b, h.oldest(b))
		if l.id != 0 && evict == nil {
			return live{}, false
		}
		if !l.claim() {
			continue
		}
		if l.id = atomic.LoadUint64(l.key); l.id != 0 {
			if evict == nil {
				l.release(now)
				return live{}, false
			}
			// A copy, for what a function gets that is not known is allocated.
			victim := l
			victim.state = l.entry.load()
			evict(&victim)
		}
		l.id, l.state = id, s
		l.set(places)
		l.release(now)
		return l, true
	}
	return live{}, false
}

// oldest returns the entry of a bucket for a new span: a free one, or that of the
// oldest span.
func (h *half) oldest(b uint64) int {
	bucket, oldest := &h.buckets[b], 0
	for way := range ways {
		if atomic.LoadUint64(&bucket.keys[way]) == 0 {
			return way
		}
		if bucket.versions[way].Load()>>32 < bucket.versions[oldest].Load()>>32 {
			oldest = way
		}
	}
	return oldest
}

// claim gives the caller the entry to itself, unless it has changed.
func (l *live) claim() bool { return l.at&1 == 0 && l.version.CompareAndSwap(l.at, l.at|1) }

// release gives a claimed entry to all, with the span that it holds now.
func (l *live) release(now uint64) {
	l.at = now<<32 | uint64(uint32(l.at)+2)
	l.version.Store(l.at)
}

// free gives a claimed entry back, without a span.
func (l *live) free() {
	if l.record.Load() != nil {
		l.record.Store(nil)
	}
	put(l.key, 0)
	l.release(l.at >> 32)
}

// note adds a place to the list of a ring, in the stead of one that does not show the
// span any more. It returns false if there is none.
func (l *live) note(ring int, r *ringbuf.Ring, place ringbuf.Place) bool {
	in := &l.entry.places[ring]
	for i := range in {
		for {
			p := atomic.LoadUint32(&in[i])
			if p == uint32(place) {
				return true
			}
			if r.Shows(ringbuf.Place(p), l.id) {
				break
			}
			if atomic.CompareAndSwapUint32(&in[i], p, uint32(place)) {
				return true
			}
		}
	}
	return false
}

func (e *entry) load() state {
	return state{
		traceIDHigh: atomic.LoadUint64(&e.traceIDHigh), traceIDLow: atomic.LoadUint64(&e.traceIDLow),
		localRoot: atomic.LoadUint64(&e.localRoot), resumes: atomic.LoadUint64(&e.resumes),
		origin: atomic.LoadUint64(&e.origin),
	}
}

// set fills the claimed entry with l.
func (l *live) set(at [numRings]ringbuf.Place) {
	e := l.entry
	put(&e.traceIDHigh, l.traceIDHigh)
	put(&e.traceIDLow, l.traceIDLow)
	put(&e.localRoot, l.localRoot)
	put(&e.resumes, l.resumes)
	put(&e.origin, l.origin)
	for ring := range e.places {
		put32(&e.places[ring][0], uint32(at[ring]))
		for i := 1; i < maxPlaces; i++ {
			put32(&e.places[ring][i], 0)
		}
	}
	put(l.key, l.id)
}
