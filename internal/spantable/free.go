// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/wire"
)

// minQueued is the length that the free queue must exceed before its cells are reused. Once all
// cells have been used, cells are reused from a shorter queue, too.
const minQueued = 1024

// takeWarm pops a cell from the stack of a P. The caller must be pinned to that P.
func (t *Table) takeWarm(p int) (uint32, bool) {
	if p >= len(t.locals) {
		return 0, false
	}
	l := &t.locals[p]
	n := atomic.LoadUint32(&l.n) - 1
	if n >= localFree {
		return 0, false
	}
	ordered.Store32(&l.n, n)
	return atomic.LoadUint32(&l.free[n]), true
}

// FreeWarm pushes the cell of an ended span on the stack of P number p, so that the next span
// started on the P reuses it. The caller must be pinned to the P. If the stack is full, FreeWarm
// does nothing and returns false.
func (t *Table) FreeWarm(p int, r Ref) bool {
	t.checkEnded(r)
	if p >= len(t.locals) {
		return false
	}
	l := &t.locals[p]
	t.forget(l, r)
	n := atomic.LoadUint32(&l.n)
	if n >= localFree {
		return false
	}
	ordered.Store32(&l.free[n], r.Index())
	ordered.Store32(&l.n, n+1)
	return true
}

// Release frees the cell of a reserved Ref that is not committed. The caller must still be pinned to
// P number p.
func (t *Table) Release(p int, r Ref) {
	if !t.FreeWarm(p, r) {
		t.free.push(r.Index())
	}
}

// take returns a cell from the free queue, or an unused one. If there is neither, it evicts a span.
func (t *Table) take() (uint32, bool) {
	if t.free.len() > minQueued {
		if i, ok := t.free.pop(); ok {
			return i, true
		}
	}
	for {
		used := t.Used()
		if used >= t.limit {
			break
		}
		if atomic.CompareAndSwapUint32(&t.header.Used, used, used+1) {
			return used, true
		}
	}
	if i, ok := t.free.pop(); ok {
		return i, true
	}
	return t.evictOldest()
}

const (
	// bucketSize is the number of entries in a bucket of the shared index. It is also the number of
	// spans that are compared to evict one.
	bucketSize = 8
	// evictAttempts limits the search for a span to evict.
	evictAttempts = 16
)

// evictOldest ends the oldest span in a group of eight cells and returns its cell. If all spans of
// the group are still published by the goroutines that started them, it tries another group, except
// on the last attempt.
func (t *Table) evictOldest() (uint32, bool) {
	for attempt := range evictAttempts {
		first := t.hand.Add(bucketSize)
		victim, least := Ref(0), ^uint64(0)
		for i := range uint32(bucketSize) {
			r := Ref(atomic.LoadUint64(&t.cells[(first+i)%Capacity].Version))
			if r == 0 || r&wire.CellOver != 0 {
				continue
			}
			if age := t.age(r); age < least {
				victim, least = r, age
			}
		}
		if least&publishedBit != 0 && attempt < evictAttempts-1 {
			continue
		}
		if victim != 0 && t.evict(victim) {
			return victim.Index(), true
		}
	}
	return 0, false
}

// publishedBit is set in the age of a span that is still published by the goroutine that started
// it, so that the span is evicted last.
const publishedBit = 1 << 63

// age determines the order of eviction: the span with the lowest age is evicted first. The age is
// the start time, with publishedBit set if the goroutine that started the span still publishes it.
func (t *Table) age(r Ref) uint64 {
	c := t.cell(r)
	age := atomic.LoadUint64(&c.Start) &^ publishedBit
	if t.isPublished(r, atomic.LoadUint64(&c.Goid), uintptr(atomic.LoadUint64(&c.G))) {
		age |= publishedBit
	}
	return age
}

// queue is a bounded FIFO queue of numbers for concurrent producers and consumers, based on Dmitry
// Vyukov's MPMC queue. The sequence number of an entry tells whether the entry is empty or full.
//
// Zeroed entries are an empty queue, and entries that were never used are not touched.
type queue struct {
	entries []queueEntry
	// If spans end on other goroutines, many CPUs change head and tail. Each has a cache line of its
	// own.
	_    [64]byte
	head atomic.Uint64
	_    [56]byte
	tail atomic.Uint64
	_    [56]byte
	// closed is true once the entries may have been zeroed.
	closed atomic.Bool
}

// queueEntry holds a number, and the sequence number of the entry minus the entry's index.
type queueEntry struct{ sequence, number atomic.Uint32 }

// len returns the approximate number of entries in use.
func (q *queue) len() uint64 { return q.tail.Load() - q.head.Load() }

// push adds a number. The queue cannot overflow: it has an entry for each cell number, and no number
// is in it twice. The next entry is thus empty, or will be once a goroutine that is popping a number
// has finished. If the queue is closed, push may drop the number.
func (q *queue) push(number uint32) {
	for {
		tail := q.tail.Load()
		i := tail % uint64(len(q.entries))
		p := &q.entries[i]
		if p.sequence.Load() == uint32(tail-i) && q.tail.CompareAndSwap(tail, tail+1) {
			p.number.Store(number)
			p.sequence.Store(uint32(tail-i) + 1)
			return
		}
		if q.closed.Load() {
			return // The zeroed entries never become right.
		}
	}
}

// pop removes and returns the oldest number. It returns false if the queue is empty.
func (q *queue) pop() (uint32, bool) {
	for {
		head := q.head.Load()
		i := head % uint64(len(q.entries))
		p := &q.entries[i]
		if sequence := p.sequence.Load(); sequence != uint32(head-i)+1 {
			if q.head.Load() == head {
				return 0, false // The queue is empty, or the next push has not finished yet.
			}
			continue
		}
		if q.head.CompareAndSwap(head, head+1) {
			number := p.number.Load()
			p.sequence.Store(uint32(head-i) + uint32(len(q.entries)))
			return number, true
		}
	}
}
