// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestLeaveWhileOthersEnd checks that a goroutine can follow the links between the records of its
// spans while another goroutine ends these spans, which clears the links.
func TestLeaveWhileOthersEnd(t *testing.T) {
	s := serve(t)
	p, tracer := s.p, s.tracer
	for range testenv.Rounds(300, 10_000) {
		ctx, spans := context.Background(), make([]trace.Span, 32)
		for i := range spans {
			ctx, spans[i] = tracer.Start(ctx, "span")
		}
		var g goroutine
		p.locate(&g)
		var ended atomic.Bool
		go func() {
			for _, s := range spans {
				s.End()
			}
			ended.Store(true)
		}()
		for !ended.Load() {
			moved := g
			p.moveToNearest(&moved)
			p.cells.Leave(g.position, ^cells.Ref(1), g.Goid) // a ref that names no span
		}
	}
}

// collide makes another goroutine take the calling goroutine's entry. This happens if the two
// goroutine ids are equal modulo 65,536 and the other goroutine starts and ends a span.
func (s *service) collide() {
	goruntime.Pin()
	s.p.goroutines.Store(goid()+1<<16, s.p.runtime.Self().G, 0)
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
	leak(cells.Capacity - 100)
	apart(func() {
		ctx, request := s.root()
		_, query := s.start(ctx)
		leak(3000)
		assert.NotZero(t, s.p.cells.Find(sdkspan.Of(request.SpanContext())))
		query.End()
		s.assertShows(t, request, request)
		request.End()
	})
	leak(3000) // until each cell has had a record
	before := heapInUse()
	leak(20_000)
	assert.Less(t, heapInUse(), before+1<<20)
}

// TestReturnToEndingSpan checks that the slot still leads readers to the ancestors if another
// goroutine ends a span while a goroutine returns to it.
func TestReturnToEndingSpan(t *testing.T) {
	s := serve(t)
	apart(func() {
		ctx, outer := s.root()
		_, middle := s.start(ctx)
		var g goroutine
		s.p.locateLive(&g) // as OnEnd of a child does
		apart(func() { middle.End() })
		s.p.publish(&g, nil, 0)
		ref, _ := s.entry(t)
		assert.NotZero(t, ref, "the goroutine is in no span")
		assert.Equal(t, number(outer), s.current(t))
		outer.End()
	})
}
