// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// hash returns a hash of id that is size bits long. It depends on all bits of id, because not all
// ids are random: some generators count up.
func hash(id uint64, size uint) uint64 { return id * 0x9E3779B97F4A7C15 >> (64 - size) }

// Find returns the live span with key k, or 0.
func (t *Table) Find(k sdkspan.Key) Ref {
	p := goruntime.Pin()
	goruntime.Unpin()
	h := hash(k.SpanID, localBits)
	for i := range t.locals { // begin with the current P
		if r := Ref(atomic.LoadUint64(&t.locals[(p+i)%len(t.locals)].index[h])); t.Is(r, k) {
			return r
		}
	}
	// Search the shared index last, because the span may move there during the search.
	b := t.shared.bucket(k.SpanID)
	for i := range b {
		if r := Ref(b[i].Load()); t.Is(r, k) {
			return r
		}
	}
	return 0
}

// sharedIndex contains the spans that had to give up their entry in the index of a P. It has
// buckets of bucketSize entries, and two entries for each cell.
type sharedIndex []bucket

type bucket [bucketSize]atomic.Uint64

const sharedBits = 14

const _ = -(1<<sharedBits*bucketSize ^ 2*Capacity)

func newSharedIndex() sharedIndex { return make(sharedIndex, 1<<sharedBits) }

func (x sharedIndex) bucket(id uint64) *bucket { return &x[hash(id, sharedBits)] }

// share adds a live span to the shared index. If the bucket is full, share evicts the oldest span
// in it, preferably one that is no longer published.
func (t *Table) share(r Ref, id uint64) {
	b := t.shared.bucket(id)
	for {
		oldest, least := Ref(0), ^uint64(0)
		for i := range b {
			old := Ref(b[i].Load())
			if !t.Live(old) {
				if b[i].CompareAndSwap(uint64(old), uint64(r)) {
					return
				}
				continue
			}
			if age := t.age(old); age < least {
				oldest, least = old, age
			}
		}
		// Evict the span whose age was compared, even if its entry in the bucket has changed since.
		if oldest != 0 && t.evict(oldest) {
			t.free.push(oldest.Index())
		}
	}
}
