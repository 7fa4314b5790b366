// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// hash returns a hash of id that is size bits long. It depends on all bits of id, because not all
// ids are random: some generators count up.
func hash(id uint64, size uint) uint64 { return id * 0x9E3779B97F4A7C15 >> (64 - size) }

// Find returns the live span with key k, or 0.
func (t *Table) Find(k sdkspan.Key) Ref {
	p := goruntime.Pin()
	goruntime.Unpin()
	n := int(t.usedLocals.Load())
	for i := range n { // begin with the current P
		if r := Ref(atomic.LoadUint64(t.locals[(p+i)%n].entry(k.SpanID))); t.Is(r, k) {
			return r
		}
	}
	// Search the shared index last, because the span may move there during the search.
	for n := t.sharedBits.Load(); n >= minSharedBits; n-- {
		b := t.shared.bucket(k.SpanID, n)
		for i := range b {
			if r := Ref(b[i].Load()); t.Is(r, k) {
				return r
			}
		}
	}
	return 0
}

// entry returns the entry for a span in the index of a P.
func (l *local) entry(spanID uint64) *uint64 { return &l.index[hash(spanID, localBits)] }

// use makes Find and EndedRoot search what P number p stores.
func (t *Table) use(p uint32) {
	if p >= t.usedLocals.Load() {
		t.raiseUsedLocals(p)
	}
}

//go:noinline
func (t *Table) raiseUsedLocals(p uint32) {
	for n := t.usedLocals.Load(); p >= n && !t.usedLocals.CompareAndSwap(n, p+1); n = t.usedLocals.Load() {
	}
}

// forget removes a span that has ended from the index of a P, to which the caller is pinned, if it is
// there. Otherwise the next span that needs the entry would have to look at the cell, which may no
// longer be in the CPU cache.
func (t *Table) forget(l *local, r Ref) {
	if entry := l.entry(atomic.LoadUint64(&t.cell(r).SpanID)); atomic.LoadUint64(entry) == uint64(r) {
		ordered.Store(entry, 0)
	}
}

// sharedIndex contains the spans that had to give up their entry in the index of a P. It consists of
// hash tables: the table with 1<<n buckets begins at bucket 1<<n. New spans go to the largest table in
// use. If their bucket is full, the next larger table comes into use, so that the touched memory
// depends on the number of live spans. If a bucket of the very largest table is full, the span goes to
// a smaller one. With Capacity live spans, the tables are a quarter full.
type sharedIndex [2 << maxSharedBits]bucket

type bucket [bucketSize]atomic.Uint64

const minSharedBits, maxSharedBits = 7, 14

const _ = -(1<<maxSharedBits*bucketSize ^ 2*Capacity) // two entries for each cell

// bucket returns the bucket for a span in the table with 1<<n buckets.
func (x *sharedIndex) bucket(id uint64, n uint32) *bucket { return &x[1<<n+hash(id, uint(n))] }

// share adds a live span to the shared index. If the span's buckets in all tables are full, which does
// not happen with random ids, share evicts the oldest span in one of them, preferably one that is no
// longer published.
func (t *Table) share(r Ref, id uint64) {
	for n := t.sharedBits.Load(); !t.put(t.shared.bucket(id, n), r); {
		switch largest := t.sharedBits.Load(); {
		case largest < maxSharedBits:
			t.sharedBits.CompareAndSwap(largest, largest+1)
			n = largest + 1
		case n > minSharedBits:
			n--
		default:
			t.evictFrom(t.shared.bucket(id, maxSharedBits))
			n = maxSharedBits
		}
	}
}

// put adds a span to a bucket in place of one that has ended. It returns false if there is none.
func (t *Table) put(b *bucket, r Ref) bool {
	for i := range b {
		if old := Ref(b[i].Load()); !t.Live(old) && b[i].CompareAndSwap(uint64(old), uint64(r)) {
			return true
		}
	}
	return false
}

// evictFrom evicts a span from a bucket.
func (t *Table) evictFrom(b *bucket) {
	oldest, least := Ref(0), ^uint64(0)
	for i := range b {
		if r := Ref(b[i].Load()); t.Live(r) {
			if age := t.age(r); age < least {
				oldest, least = r, age
			}
		}
	}
	// Evict the span whose age was compared, even if its entry in the bucket has changed since.
	if oldest != 0 && t.evict(oldest) {
		t.free.push(oldest.Index())
	}
}
