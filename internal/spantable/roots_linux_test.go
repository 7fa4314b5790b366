// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestEndedRootOnAnotherP checks that the local root of a span is remembered if the span ends on a P that has not
// started a span.
func TestEndedRootOnAnotherP(t *testing.T) {
	table, _ := newTable(t, true, nil)
	r := table.startOn(len(table.locals))
	s := spanOf(r)
	isRoot, _ := table.RememberRoot(r, s.Key)
	assert.False(t, isRoot)
	assert.True(t, table.end(r, false))
	root, endpoint := table.EndedRoot(s.Key)
	assert.Equal(t, s.LocalRootSpanID, root)
	assert.Equal(t, s.Endpoint, endpoint)
}

// TestRootsConcurrently checks that find returns no mixture of entries while entries are
// added.
func TestRootsConcurrently(t *testing.T) {
	var r rootRing
	var ids []uint64
	for id := range uint64(20) {
		ids = append(ids, id+1)
	}
	key := func(id uint64) sdkspan.Key { return sdkspan.Key{TraceIDHigh: id * 5, TraceIDLow: id * 7, SpanID: id} }
	// Only one goroutine at a time adds to a ring.
	var adding sync.Mutex
	add := func(id uint64) {
		adding.Lock()
		defer adding.Unlock()
		r.add(key(id), id*3, id)
	}
	var wg sync.WaitGroup
	var found atomic.Int64
	for g := range uint64(4) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(g, 0))
			for range testenv.Rounds(100_000, 1_000_000) {
				id := ids[random.IntN(len(ids))]
				add(id)
				id = ids[random.IntN(len(ids))]
				if got, endpoint := r.find(key(id)); got != 0 {
					found.Add(1)
					if got != id*3 || endpoint != uint16(id) {
						t.Errorf("%#x", got)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	assert.Positive(t, found.Load())
}
