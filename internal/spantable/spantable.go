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
	levels [levels]level
	// buckets are those of all levels, and pointers those of their entries, by number.
	buckets  []bucket[E]
	pointers []P
	// used is how many levels have been used.
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
	var all uint64
	for i, n := range buckets {
		t.levels[i] = level{first: all, mask: uint64(n - 1)}
		all += uint64(n)
	}
	t.buckets = make([]bucket[E], all)
	t.pointers = make([]P, number(all, 0))
	t.used.Store(1)
	return t
}

// level is one of the tables.
type level struct {
	// first is the number of its first bucket, and mask that of its last one, counted from
	// there.
	first, mask uint64
}

// bucket returns the number of the bucket that an id may be in.
func (l *level) bucket(id uint64) uint64 {
	// Ids are random, as W3C asks; multiplying serves generators that count.
	const spread = 0x9E3779B97F4A7C15
	return l.first + id*spread>>32&l.mask
}

// number returns that of an entry; 0 is none.
func number(bucket, way uint64) uint64 { return bucket*ways + ways + way }

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
	table *Table[E, P]
	cell  *cell
	entry *entry[E]
	// number is that of the entry.
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
func (s *Span[E, P]) Pointers() *P { return &s.table.pointers[s.number] }

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
	s.At = next(s.At>>32, s.At)
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

// Find looks for a span, has s be about it, and reports whether it is there. If it is not,
// what s holds means nothing. Nothing keeps a span id from being used in two traces; a trace
// whose id is 0 stands for all.
func (t *Table[E, P]) Find(k sdkspan.Key, s *Span[E, P]) (found bool) {
	s.table = t
	s.cell, s.entry, found = t.find(k, s)
	return found
}

// Follow is Find for a Ref.
func (t *Table[E, P]) Follow(r Ref, s *Span[E, P]) bool {
	n := uint64(r)&refMask - ways
	s.table = t
	s.cell, s.entry = t.point(n/ways, n%ways, s)
	return s.Ref() == r
}

// Reserve claims an entry for a new span with this id, for Commit or Free. It returns
// false if all entries that it may be in are being changed just now, or the id is 0.
func (t *Table[E, P]) Reserve(id uint64, s *Span[E, P]) (reserved bool) {
	s.table = t
	s.cell, s.entry, reserved = t.reserve(id, s)
	return reserved
}

// Claimed calls f for entries that hold the span with this id and that somebody has
// claimed: what they hold may be about to be another span's.
func (t *Table[E, P]) Claimed(id uint64, f func(*Span[E, P])) {
	for i := range t.levels {
		n := t.levels[i].bucket(id)
		for way := range uint64(ways) {
			if c := &t.buckets[n].cells[way]; atomic.LoadUint64(&c.key) != id || atomic.LoadUint64(&c.version)&1 == 0 {
				continue
			}
			s := Span[E, P]{table: t}
			s.cell, s.entry = t.point(n, way, &s)
			s.ID = id
			f(&s)
		}
	}
}

// All calls f for every span that there is.
func (t *Table[E, P]) All(f func(*Span[E, P])) {
	for n := range uint64(len(t.buckets)) {
		for way := range uint64(ways) {
			s := Span[E, P]{table: t}
			if s.cell, s.entry = t.point(n, way, &s); s.ID != 0 && s.At&1 == 0 {
				f(&s)
			}
		}
	}
}

// What follows returns the pointers of a Span, for who knows that it is on a stack to store
// them without the garbage collector's barrier. The rest of it is set.

// point has s be about an entry, as of its version now.
func (t *Table[E, P]) point(bucket, way uint64, s *Span[E, P]) (*cell, *entry[E]) {
	c, e := &t.buckets[bucket].cells[way], &t.buckets[bucket].entries[way]
	s.number, s.At = number(bucket, way), atomic.LoadUint64(&c.version)
	s.ID = atomic.LoadUint64(&c.key)
	return c, e
}

// find is Find.
func (t *Table[E, P]) find(k sdkspan.Key, s *Span[E, P]) (*cell, *entry[E], bool) {
	if k.SpanID == 0 {
		return nil, nil, false
	}
	s.ID = k.SpanID
	// Most often it is the first one, which is quicker to look at by itself.
	n := t.levels[0].bucket(k.SpanID)
	b := &t.buckets[n]
	if c, e := &b.cells[0], &b.entries[0]; s.is(c, e, k) {
		s.number = number(n, 0)
		return c, e, true
	}
	return t.findFurther(k, s)
}

// findFurther is for a span that is not in the first way of the first level.
func (t *Table[E, P]) findFurther(k sdkspan.Key, s *Span[E, P]) (*cell, *entry[E], bool) {
	way := uint64(1)
	for i := range t.used.Load() {
		n := t.levels[i].bucket(k.SpanID)
		b := &t.buckets[n]
		for ; way < ways; way++ {
			if c, e := &b.cells[way], &b.entries[way]; s.is(c, e, k) {
				s.number = number(n, way)
				return c, e, true
			}
		}
		way = 0
	}
	return nil, nil, false
}

// is reports whether an entry is of the span with a key, and has s be about its version.
func (s *Span[E, P]) is(c *cell, e *entry[E], k sdkspan.Key) bool {
	// As long as it has this version, what is looked at afterwards is of one span.
	s.At = atomic.LoadUint64(&c.version)
	if atomic.LoadUint64(&c.key) != k.SpanID || s.At&1 != 0 {
		return false
	}
	high, low := e.traceID()
	return low == k.TraceIDLow && high == k.TraceIDHigh || k.TraceIDHigh|k.TraceIDLow == 0
}

// reserve is Reserve.
func (t *Table[E, P]) reserve(id uint64, s *Span[E, P]) (*cell, *entry[E], bool) {
	now := t.tick.Load()
	if id%tickEvery == 0 {
		if id == 0 {
			return nil, nil, false // no entry could be told from a free one
		}
		now = t.tick.Add(1)
	}
	s.ID = id
	n := t.levels[0].bucket(id)
	b := &t.buckets[n]
	if c := &b.cells[0]; s.claimFree(c, now) {
		s.number = number(n, 0)
		return c, &b.entries[0], true
	}
	return t.reserveFurther(now, s)
}

// reserveFurther is for who finds the first way of the first level taken.
func (t *Table[E, P]) reserveFurther(now uint64, s *Span[E, P]) (*cell, *entry[E], bool) {
	way := uint64(1)
	for i := range int32(levels) {
		for used := t.used.Load(); used <= i; used = t.used.Load() {
			t.used.CompareAndSwap(used, used+1)
		}
		n := t.levels[i].bucket(s.ID)
		b := &t.buckets[n]
		for ; way < ways; way++ {
			if c := &b.cells[way]; s.claimFree(c, now) {
				s.number = number(n, way)
				return c, &b.entries[way], true
			}
		}
		way = 0
	}
	return t.displace(t.levels[levels-1].bucket(s.ID), now, s)
}

// claimFree claims an entry, for a span that comes at a tick, if it is free.
func (s *Span[E, P]) claimFree(c *cell, now uint64) bool {
	// It is claimed as of a version that it was free in: a span that has come since
	// is nobody's to claim, not even for a moment.
	version := atomic.LoadUint64(&c.version)
	s.At = next(now, version)
	return atomic.LoadUint64(&c.key) == 0 && c.claim(version)
}

// displace is reserve for the entry of a span that has to give way.
func (t *Table[E, P]) displace(bucket, now uint64, s *Span[E, P]) (*cell, *entry[E], bool) {
	for range ways {
		// A variable of its own each time, for what a function gets that is not known is
		// allocated.
		victim := Span[E, P]{table: t}
		victim.cell, victim.entry = t.point(bucket, t.victim(bucket), &victim)
		if !victim.Claim() {
			continue
		}
		if victim.ID = atomic.LoadUint64(&victim.cell.key); victim.ID != 0 {
			t.evict(&victim)
		}
		s.number, s.At = victim.number, next(now, victim.At)
		return victim.cell, victim.entry, true
	}
	return nil, nil, false
}

// victim returns which entry of a bucket is for a new span: a free one, or that of the
// oldest span, or of the oldest that can be spared.
func (t *Table[E, P]) victim(bucket uint64) (victim uint64) {
	b, least := &t.buckets[bucket], ^uint64(0)
	for way := range b.cells {
		c := &b.cells[way]
		if atomic.LoadUint64(&c.key) == 0 {
			return uint64(way)
		}
		rank := atomic.LoadUint64(&c.version) >> 32
		if t.spare != nil && !t.spare(&b.entries[way].data) {
			rank |= 1 << 32
		}
		if rank < least {
			victim, least = uint64(way), rank
		}
	}
	return victim
}

// claim makes a version odd, if it is even and still this one.
func (c *cell) claim(version uint64) bool {
	return version&1 == 0 && atomic.CompareAndSwapUint64(&c.version, version, version|1)
}

// next returns the version after one, of a span that came at a tick.
func next(tick, version uint64) uint64 { return tick<<32 | uint64(uint32(version)+2) }
