// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spantable knows spans by their id: what the end of a span, which may come on any
// goroutine, needs to find what its start has left. A [Table] has room for so many spans
// and no more, allocates nothing once it is there, and has no locks.
//
// It is several tables, for the sake of the processor's caches: a small one that fits into
// the first of them, and larger ones for what does not fit there. A span's id tells the
// bucket that it is in. Where the last one has no room either, the span that matters
// least of those in question gives way: spans that are never ended cost others nothing.
//
// # Who may do what
//
// An entry's version is odd while one goroutine has the entry to itself, which it gets by
// compare-and-swap: to take it, to give it back or to have it give way. That one stores by
// [internal/ordered]. All others load atomically, and look afterwards whether the version
// is still the same ([Span.Changed]).
package spantable

import (
	"math/bits"
	"runtime"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// Buckets returns how many each of the tables has that [New] makes for a service: for 32
// spans for each processor, as far as that is no more than for 2,048, for so many, and for
// 65,536.
func Buckets() [levels]int {
	procs := uint(runtime.GOMAXPROCS(0))
	return [levels]int{min(4<<bits.Len(procs-1), 1<<8), 1 << 8, 1 << 13}
}

const (
	// Room is for how many spans there is room then, at least.
	Room = (1<<8 + 1<<13) * ways

	levels    = 3
	ways      = 8
	tickEvery = 64
)

// Table knows spans by their id: of each an E, which has no pointers, and a P, which has
// those that there are. They are apart because the garbage collector looks through memory
// that has pointers. [New] makes one. It is safe for concurrent use.
type Table[E, P any] struct {
	levels [levels]level[E, P]
	// used is how many of them have been used.
	used  atomic.Int32
	evict func(*Span[E, P])
	spare func(*E) bool
	// tick is the age of the table, in units of about tickEvery spans.
	tick atomic.Uint64
}

// New returns a table whose levels have so many buckets, each a power of two. A span that
// has to give way to another one is told to evict, with its entry claimed. Of several the
// oldest does, or if spare is not nil the oldest of those of which it says that they can be
// spared.
func New[E, P any](buckets [levels]int, evict func(*Span[E, P]), spare func(*E) bool) *Table[E, P] {
	t := &Table[E, P]{evict: evict, spare: spare}
	first := uint64(ways) // so that an entry's number tells its way, and is not 0
	for i, n := range buckets {
		t.levels[i] = level[E, P]{
			first:    first,
			buckets:  make([]bucket[E], n),
			pointers: make([]P, n*ways),
		}
		first += uint64(n * ways)
	}
	t.used.Store(1)
	return t
}

// level is one of the tables.
type level[E, P any] struct {
	// first is the number of the first entry, of those of all levels.
	first    uint64
	buckets  []bucket[E]
	pointers []P
}

// bucket is some entries, and before them which spans are in them.
type bucket[E any] struct {
	cells   [ways]cell
	entries [ways]entry[E]
}

// cell is the part of an entry that is looked for.
type cell struct {
	// key is the span's id; 0 is none.
	key uint64
	// version counts the changes of the entry in its lower half. The upper is the tick
	// of when the span came.
	version uint64
}

// entry takes one cache line, if E leaves it that.
type entry[E any] struct {
	traceIDHigh, traceIDLow uint64
	data                    E
}

// Span is a span that a table has, or an entry that is claimed for one.
type Span[E, P any] struct {
	level *level[E, P]
	cell  *cell
	entry *entry[E]
	// number is that of the entry, of those of all levels.
	number uint64
	// ID is the span's.
	ID uint64
	// At is the version as of which this is about the entry: that which the entry has,
	// or if it was reserved that which it will have.
	At uint64
}

// Data is what is known of the span. It may be another one's by now: see Changed.
func (s *Span[E, P]) Data() *E { return &s.entry.data }

// Pointers is the rest.
func (s *Span[E, P]) Pointers() *P { return &s.level.pointers[s.number-s.level.first] }

// TraceID returns that of the span, under the same condition.
func (s *Span[E, P]) TraceID() (high, low uint64) { return s.entry.traceID() }

func (e *entry[E]) traceID() (high, low uint64) {
	return atomic.LoadUint64(&e.traceIDHigh), atomic.LoadUint64(&e.traceIDLow)
}

// Ref finds the entry of a span again, as long as it is that one's: the number of the entry
// is its lower bits, and above are as many as fit of the version. 0 is none.
type Ref uint64

const (
	refBits = 17
	refMask = 1<<refBits - 1

	_ = uint(refMask - (ways + 1<<8*ways + Room))
)

// Ref returns what finds s again.
func (s *Span[E, P]) Ref() Ref { return Ref(s.At<<refBits | s.number) }

// Changed reports whether the span is not there any more, or was released since.
func (s *Span[E, P]) Changed() bool { return atomic.LoadUint64(&s.cell.version) != s.At }

// Claim gives the caller the entry to itself, unless it has changed. It is a full memory
// barrier if it does.
func (s *Span[E, P]) Claim() bool {
	return s.cell.claim(s.At)
}

// Release gives a claimed entry to all, with the same span.
func (s *Span[E, P]) Release() {
	s.At = s.next()
	ordered.PutLast(&s.cell.version, s.At)
}

// Free gives a claimed entry back, without a span. What the pointers point at is the
// caller's to drop.
func (s *Span[E, P]) Free() {
	ordered.Put(&s.cell.key, 0)
	s.Release()
}

// Commit gives a reserved entry, whose data the caller has stored, to all.
func (s *Span[E, P]) Commit(traceIDHigh, traceIDLow uint64) {
	ordered.Put(&s.entry.traceIDHigh, traceIDHigh)
	ordered.Put(&s.entry.traceIDLow, traceIDLow)
	ordered.Put(&s.cell.key, s.ID)
	ordered.PutLast(&s.cell.version, s.At)
}

func (s *Span[E, P]) next() uint64 { return s.At>>32<<32 | uint64(uint32(s.At)+2) }

// Find looks for a span, has s be about it, and reports whether it is there. If it is not,
// what s holds means nothing. Nothing keeps a span id from being used in two traces; a trace
// whose id is 0 stands for all.
func (t *Table[E, P]) Find(k *sdkspan.Key, s *Span[E, P]) bool {
	return t.levels[0].find(k, s) || t.findFurther(k, s)
}

// findFurther is for a span that is not in the first level.
func (t *Table[E, P]) findFurther(k *sdkspan.Key, s *Span[E, P]) bool {
	for i := 1; i < int(t.used.Load()); i++ {
		if t.levels[i].find(k, s) {
			return true
		}
	}
	return false
}

// Take is Find and Claim in one.
func (t *Table[E, P]) Take(k *sdkspan.Key, s *Span[E, P]) bool {
	// That it has the version still means that all of this was the span's.
	return (t.levels[0].find(k, s) || t.findFurther(k, s)) && s.Claim()
}

// Follow is Find for a Ref.
func (t *Table[E, P]) Follow(r Ref, s *Span[E, P]) bool {
	n := uint64(r) & refMask
	l := &t.levels[0]
	if n >= t.levels[1].first {
		l = &t.levels[1]
	}
	if n >= t.levels[2].first {
		l = &t.levels[2]
	}
	l.point((n-l.first)/ways, n%ways, s)
	s.ID = atomic.LoadUint64(&s.cell.key)
	return s.Ref() == r
}

// Reserve claims an entry for a new span with this id, for Commit or Free. It returns
// false if all entries that it may be in are being changed just now, or the id is 0.
func (t *Table[E, P]) Reserve(id uint64, s *Span[E, P]) bool {
	now := t.tick.Load()
	if id%tickEvery == 0 {
		if id == 0 {
			return false // no entry could be told from a free one
		}
		now = t.tick.Add(1)
	}
	if !t.levels[0].reserve(id, s) && !t.reserveFurther(id, s) {
		return false
	}
	s.At = now<<32 | uint64(uint32(s.At)+2)
	return true
}

// reserveFurther is for who finds the first level full.
func (t *Table[E, P]) reserveFurther(id uint64, s *Span[E, P]) bool {
	for i := 1; i < levels; i++ {
		for used := t.used.Load(); used <= int32(i); used = t.used.Load() {
			t.used.CompareAndSwap(used, used+1)
		}
		if t.levels[i].reserve(id, s) {
			return true
		}
	}
	return t.levels[levels-1].displace(t, id, s)
}

// Claimed calls f for entries that hold the span with this id and that somebody has
// claimed: what they hold may be about to be another span's.
func (t *Table[E, P]) Claimed(id uint64, f func(*Span[E, P])) {
	for i := range t.levels {
		l := &t.levels[i]
		n := l.bucket(id)
		for way := range uint64(ways) {
			if c := &l.buckets[n].cells[way]; atomic.LoadUint64(&c.key) != id || atomic.LoadUint64(&c.version)&1 == 0 {
				continue
			}
			s := Span[E, P]{ID: id}
			l.point(n, way, &s)
			f(&s)
		}
	}
}

// All calls f for every span that there is.
func (t *Table[E, P]) All(f func(*Span[E, P])) {
	for i := range t.levels {
		l := &t.levels[i]
		for n := range uint64(len(l.pointers)) {
			var s Span[E, P]
			l.point(n/ways, n%ways, &s)
			if s.ID = atomic.LoadUint64(&s.cell.key); s.ID != 0 && s.At&1 == 0 {
				f(&s)
			}
		}
	}
}

// bucket returns the number of the bucket that an id may be in.
func (l *level[E, P]) bucket(id uint64) uint64 {
	// Ids are random, as W3C asks; multiplying serves generators that count.
	const spread = 0x9E3779B97F4A7C15
	return id * spread >> 32 & uint64(len(l.buckets)-1)
}

// point has s be about an entry, as of its version now.
func (l *level[E, P]) point(n, way uint64, s *Span[E, P]) {
	b := &l.buckets[n]
	s.level, s.cell, s.entry, s.number = l, &b.cells[way], &b.entries[way], l.first+n*ways+way
	s.At = atomic.LoadUint64(&s.cell.version)
}

// claim makes a version odd, if it is even and still this one.
func (c *cell) claim(version uint64) bool {
	return version&1 == 0 && atomic.CompareAndSwapUint64(&c.version, version, version|1)
}

func (l *level[E, P]) find(k *sdkspan.Key, s *Span[E, P]) bool {
	if s.ID = k.SpanID; s.ID == 0 {
		return false
	}
	n := l.bucket(s.ID)
	b := &l.buckets[n]
	// Most often it is the first one, which is quicker to look at by itself.
	if s.is(&b.cells[0], &b.entries[0], k) {
		s.level, s.number = l, l.first+n*ways
		return true
	}
	for way := uint64(1); way < ways; way++ {
		if s.is(&b.cells[way], &b.entries[way], k) {
			s.level, s.number = l, l.first+n*ways+way
			return true
		}
	}
	return false
}

// is has s be about an entry if that is of the span with a key and s.ID.
func (s *Span[E, P]) is(c *cell, e *entry[E], k *sdkspan.Key) bool {
	if atomic.LoadUint64(&c.key) != s.ID {
		return false
	}
	// As of its version now it is that span's.
	s.cell, s.entry, s.At = c, e, atomic.LoadUint64(&c.version)
	if s.At&1 != 0 || atomic.LoadUint64(&c.key) != s.ID {
		return false
	}
	high, low := e.traceID()
	return low == k.TraceIDLow && high == k.TraceIDHigh || k.TraceIDHigh|k.TraceIDLow == 0
}

// reserve claims a free entry for a span with this id, if there is one.
func (l *level[E, P]) reserve(id uint64, s *Span[E, P]) bool {
	n := l.bucket(id)
	b := &l.buckets[n]
	s.ID = id
	if s.claimFree(&b.cells[0], &b.entries[0]) {
		s.level, s.number = l, l.first+n*ways
		return true
	}
	for way := uint64(1); way < ways; way++ {
		if s.claimFree(&b.cells[way], &b.entries[way]) {
			s.level, s.number = l, l.first+n*ways+way
			return true
		}
	}
	return false
}

// claimFree has s be about an entry, and claims it, if that is free.
func (s *Span[E, P]) claimFree(c *cell, e *entry[E]) bool {
	// It is claimed as of a version that it was free in: a span that has come since
	// is nobody's to claim, not even for a moment.
	version := atomic.LoadUint64(&c.version)
	if atomic.LoadUint64(&c.key) != 0 || !c.claim(version) {
		return false
	}
	s.cell, s.entry, s.At = c, e, version
	return true
}

// displace claims the entry of a span that has to give way.
func (l *level[E, P]) displace(t *Table[E, P], id uint64, s *Span[E, P]) bool {
	s.ID = id
	n := l.bucket(id)
	for range ways {
		l.point(n, l.victim(n, t.spare), s)
		if !s.Claim() {
			continue
		}
		if old := atomic.LoadUint64(&s.cell.key); old != 0 {
			// A copy, for what a function gets that is not known is allocated.
			victim := *s
			victim.ID = old
			t.evict(&victim)
		}
		return true
	}
	return false
}

// victim returns which entry of a bucket is for a new span: a free one, or that of the
// oldest span, or of the oldest that can be spared.
func (l *level[E, P]) victim(n uint64, spare func(*E) bool) (victim uint64) {
	b, least := &l.buckets[n], ^uint64(0)
	for way := range b.cells {
		c := &b.cells[way]
		if atomic.LoadUint64(&c.key) == 0 {
			return uint64(way)
		}
		rank := atomic.LoadUint64(&c.version) >> 32
		if spare != nil && !spare(&b.entries[way].data) {
			rank |= 1 << 32
		}
		if rank < least {
			victim, least = uint64(way), rank
		}
	}
	return victim
}
