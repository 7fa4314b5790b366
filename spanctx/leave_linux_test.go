// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// A goroutine leaves a span while another one ends what it has started inside of that. It goes
// from record to record, whose links the other one clears.
func TestLeaveWhileOthersEnd(t *testing.T) {
	p, err := NewSpanProcessor()
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	defer func() { require.NoError(t, provider.Shutdown(context.Background())) }()
	tracer := provider.Tracer("")
	for range testenv.Rounds(300, 10_000) {
		ctx, spans := context.Background(), make([]trace.Span, 32)
		for i := range spans {
			ctx, spans[i] = tracer.Start(ctx, "span")
		}
		var c caller
		p.locate(&c)
		var over atomic.Bool
		go func() {
			for _, s := range spans {
				s.End()
			}
			over.Store(true)
		}()
		for !over.Load() {
			at := c.at
			p.leave(&at, ^cells.Ref(0), c.Goid) // It is in no such span.
		}
	}
}

// A goroutine whose slot shows another one's span is not in that span.
func TestSharedSlot(t *testing.T) {
	for name, opts := range map[string][]Option{
		"goroutine slots": {WithCapacity(1), WithGoroutineRecord(false), WithThreadSlots(false)},
		"thread slots":    {WithCapacity(1), WithGoroutineRecord(false), WithGoroutineSlots(false)},
		"everything":      everything(WithCapacity(1)),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				_, other := s.root()
				defer other.End()
				apart(func() {
					_, span := s.root()
					var n cells.Span
					require.True(t, s.p.cells.Load(s.p.cells.Find(sdkspan.Key{SpanID: number(span)}), &n))
					assert.Zero(t, n.Enclosing)
					span.End()
					s.assertShows(t, nil, nil)
				})
			})
		})
	}
}

// With thread slots alone a goroutine comes back to a thread whose slot shows what the goroutine
// was in before. The goroutine knows better, and readers see by the cell that the slot is out of
// date.
func TestThreadSlotLeftBehind(t *testing.T) {
	s := serve(t, WithGoroutineRecord(false), WithGoroutineSlots(false))
	find := func(span trace.Span) cells.Ref { return s.p.cells.Find(sdkspan.Key{SpanID: number(span)}) }
	onThread := func(ref cells.Ref) bool {
		return readCell(t, s.p.cells.Address(), uint64(ref)).tid == uint32(syscall.Gettid())
	}
	// elsewhere does something as if the goroutine had been on another thread meanwhile, whose
	// slot is not its own.
	elsewhere := func(do func()) {
		goruntime.Pin()
		self := s.p.runtime.Self()
		goruntime.Unpin()
		var left ring.Span
		spanID, ref, _ := s.p.threads.Shown(uint64(self.TID), self.Goid)
		left.SpanID, left.Ref = spanID, ref
		s.p.threads.Store(uint64(self.TID), new(ring.Span), &goruntime.Self{Goid: self.Goid + 1, TID: self.TID})
		do()
		s.p.threads.Store(uint64(self.TID), &left, &self)
	}

	t.Run("the span that another one started in", func(t *testing.T) {
		apart(func() {
			var ctx context.Context
			var outer trace.Span
			_, first := s.root()
			elsewhere(func() {
				first.End()
				ctx, outer = s.root()
			})
			_, inner := s.start(ctx)
			var n cells.Span
			require.True(t, s.p.cells.Load(find(inner), &n))
			assert.Equal(t, cells.Enclosing{find(outer)}, n.Enclosing)
			assert.False(t, onThread(find(outer)))
			inner.End()
			s.assertShows(t, outer, outer)
			outer.End()
		})
	})
	t.Run("a live span", func(t *testing.T) {
		apart(func() {
			ctx, outer := s.root()
			elsewhere(func() { ctx, _ = s.start(ctx) })
			_, inner := s.start(ctx)
			var n cells.Span
			require.True(t, s.p.cells.Load(find(inner), &n))
			assert.Equal(t, cells.Enclosing{find(trace.SpanFromContext(ctx)), find(outer)}, n.Enclosing)
			inner.End()
			trace.SpanFromContext(ctx).End()
			s.assertShows(t, outer, outer)
			outer.End()
		})
	})
	t.Run("a span that has ended meanwhile", func(t *testing.T) {
		apart(func() {
			ctx, outer := s.root()
			_, inner := s.start(ctx)
			ref := find(inner)
			elsewhere(func() { inner.End() })
			// Else what is around it would be shown.
			assert.False(t, onThread(ref))
			outer.End()
		})
	})
	s.assertNowhere(t)
}
