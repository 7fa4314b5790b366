// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/wire"
)

// resting is how many cells are free before the first of them is used again, while there are
// cells that were never used.
const resting = 1024

// takeWarm returns the last cell that was given back to a P, to the goroutine that is pinned
// to it.
func (t *Table) takeWarm(p int) (uint32, bool) {
	if p >= len(t.locals) {
		return 0, false // There are more Ps than there were.
	}
	l := &t.locals[p]
	n := atomic.LoadUint32(&l.n) - 1
	if n >= localFree {
		return 0, false
	}
	ordered.Put32(&l.n, n)
	return atomic.LoadUint32(&l.free[n]), true
}

// FreeWarm is Free for a caller that is pinned to the P with this number. The next span
// that is started on the P uses the cell. FreeWarm returns false, and does nothing, if the P
// has enough of them.
func (t *Table) FreeWarm(p int, r Ref) bool {
	t.checkOver(r)
	if p >= len(t.locals) {
		return false
	}
	l := &t.locals[p]
	n := atomic.LoadUint32(&l.n)
	if n >= localFree {
		return false
	}
	ordered.Put32(&l.free[n], r.Index())
	ordered.Put32(&l.n, n+1)
	return true
}

// take returns another free cell: the one that has been free for longest, or one that was
// never used. If there is none it evicts a span.
func (t *Table) take() (uint32, bool) {
	if t.free.len() > resting {
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
	// ways is how many spans are compared for one eviction.
	ways = 8
	// evictAttempts bounds the search for a span to evict.
	evictAttempts = 16
)

// evictOldest ends a span so that its cell can be used for another one. It takes the oldest of
// eight spans that are not shown by the goroutine that has started them. If all that it
// looks at are shown, it takes the oldest of eight.
func (t *Table) evictOldest() (uint32, bool) {
	for attempt := range evictAttempts {
		first := t.hand.Add(ways)
		victim, least := Ref(0), ^uint64(0)
		for i := range uint32(ways) {
			r := Ref(atomic.LoadUint64(&t.cells[(first+i)%Capacity].Version))
			if r == 0 || r&wire.CellOver != 0 {
				continue
			}
			if age := t.age(r); age < least {
				victim, least = r, age
			}
		}
		if least&shown != 0 && attempt < evictAttempts-1 {
			continue // If all eight are shown there may be others that are not.
		}
		if victim != 0 && t.evict(victim) {
			return victim.Index(), true
		}
	}
	return 0, false
}

// shown in an age makes the span the last to be evicted.
const shown = 1 << 63

// age returns the order of eviction: the span with the least age goes first. It is the
// span's start, but spans that the goroutine which has started them still shows come last.
func (t *Table) age(r Ref) uint64 {
	c := t.cell(r)
	age := atomic.LoadUint64(&c.Start) &^ shown
	if t.spare(r, atomic.LoadUint64(&c.Goid), uintptr(atomic.LoadUint64(&c.G))) {
		age |= shown
	}
	return age
}

// queue is a queue of numbers, first in, first out, for any number of goroutines. It is
// Dmitry Vyukov's bounded queue: the turn of a place says whether it is empty or full for
// whoever comes next.
type queue struct {
	places     []place
	head, tail atomic.Uint64
}

type place struct{ turn, number atomic.Uint32 }

func (q *queue) init(capacity int) {
	q.places = make([]place, capacity)
	for i := range q.places {
		q.places[i].turn.Store(uint32(i))
	}
}

// len returns how many numbers there are, about.
func (q *queue) len() uint64 { return q.tail.Load() - q.head.Load() }

// push adds a number. There is always room for one: the numbers are those of cells, none
// is there twice, and the queue has a place for each.
func (q *queue) push(number uint32) {
	for {
		at := q.tail.Load()
		p := &q.places[at%uint64(len(q.places))]
		if p.turn.Load() == uint32(at) && q.tail.CompareAndSwap(at, at+1) {
			p.number.Store(number)
			p.turn.Store(uint32(at) + 1)
			return
		}
	}
}

// pop returns the number that was added first, and whether there is one.
func (q *queue) pop() (uint32, bool) {
	for {
		at := q.head.Load()
		p := &q.places[at%uint64(len(q.places))]
		if turn := p.turn.Load(); turn != uint32(at)+1 {
			if q.head.Load() == at {
				return 0, false // it is empty, or the next number is still being added
			}
			continue
		}
		if q.head.CompareAndSwap(at, at+1) {
			number := p.number.Load()
			p.turn.Store(uint32(at) + uint32(len(q.places)))
			return number, true
		}
	}
}
