// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
)

// collide makes another goroutine take the calling goroutine's entry. This happens if the two
// goroutine ids are equal modulo 65,536 and the other goroutine starts and ends a span.
func (s *service) collide() {
	goruntime.Pin()
	s.table.Store(goid()+1<<16, s.carriers.runtime.Self().G, 0)
	goruntime.Unpin()
}

// TestSpansOfGoroutinesThatAreGone checks that spans left open by goroutines that have exited are
// evicted before the spans of a long request, and use no memory except the cells and one record for each.
func TestSpansOfGoroutinesThatAreGone(t *testing.T) {
	s := serve(t)
	leak := func(n int) {
		done := make(chan struct{})
		for range n {
			go func() {
				goruntime.SetLabels(nil)
				s.root()
				done <- struct{}{}
			}()
			<-done
		}
	}
	leak(spantable.Capacity - 100)
	apart(func() {
		ctx, request := s.root()
		_, query := s.start(ctx)
		leak(3000)
		assert.NotZero(t, s.cells.Find(sdkspan.Of(request.SpanContext())))
		query.End()
		s.assertShows(t, request, request)
		request.End()
	})
	leak(3000) // until each cell has had a record
	before := heapInUse()
	leak(20_000)
	assert.Less(t, heapInUse(), before+1<<20)
}
