// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
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
	"github.com/otelctx/otelctx/reader"
)

// A goroutine leaves a span while another one ends the descendants that the first one started, and
// thereby clears the links between records that the first one follows.
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
		var g goroutine
		p.locate(&g)
		var over atomic.Bool
		go func() {
			for _, s := range spans {
				s.End()
			}
			over.Store(true)
		}()
		for !over.Load() {
			moved := g
			p.moveToNearest(&moved)
			p.cells.Leave(g.position, ^cells.Ref(1), g.Goid) // The goroutine is in no such span.
		}
	}
}

// A goroutine whose thread's slot names another goroutine's span is not in that span.
func TestSharedSlot(t *testing.T) {
	for name, opts := range map[string][]Option{
		"goroutine slots": {WithSlotCapacity(1), WithGoroutineRecord(false), WithThreadSlots(false)},
		"thread slots":    {WithSlotCapacity(1), WithGoroutineRecord(false), WithGoroutineTable(false)},
		"everything":      {WithSlotCapacity(1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				_, other := s.root()
				defer other.End()
				apart(func() {
					_, span := s.root()
					var n cells.Span
					require.True(t, s.p.cells.Load(s.p.cells.Find(sdkspan.Of(span.SpanContext())), &n))
					assert.Zero(t, n.Before)
					assert.Zero(t, n.Ancestors)
					span.End()
					s.assertShows(t, nil, nil)
				})
			})
		})
	}
}

// collide takes over the calling goroutine's entry, as a goroutine with an id that is equal modulo
// 65,536 does when it starts and ends a span.
func (s *service) collide() {
	goruntime.Pin()
	s.p.goroutines.Store(goid()+1<<16, s.p.runtime.Self().G, 0)
	goruntime.Unpin()
}

// A goroutine whose entry was taken over by another one is not published in a span that it may have
// left: the span of its context is used.
func TestLostPosition(t *testing.T) {
	for name, tt := range map[string]struct {
		opts    []Option
		replace bool // replace says that the user replaces the labels. Otherwise the record has the position.
	}{
		"thread slots": {[]Option{WithGoroutineRecord(false), WithGoroutineTable(false)}, false},
		"slots":        {[]Option{WithGoroutineRecord(false)}, false},
		"record":       {nil, false},
		"user's":       {nil, true},
		"more slots":   {[]Option{WithSlotCapacity(1 << 20), WithThreadSlots(false)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, tt.opts...)
			replace := func() {
				if tt.replace {
					pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("user", "label")))
				}
			}
			apart(func() {
				ctx, a := s.root()
				replace()
				_, b := s.start(ctx)
				replace()
				s.collide()
				a.End() // the goroutine also leaves b, which it started inside a
				assert.Equal(t, shown{}, s.shown(t))
				b.End()

				ctx, a = s.root()
				replace()
				s.collide()
				_, b = s.start(ctx)
				b.End()
				s.assertShows(t, a, a)
				a.End()
			})
		})
	}
}

// The local root of an inherited span is known: the record leads to the span's cell.
func TestLocalRootOfInheritedSpan(t *testing.T) {
	for name, opts := range map[string][]Option{
		"record and thread slots": {WithGoroutineTable(false)}, "everything": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			o, err := reader.Open(os.Getpid())
			require.NoError(t, err)
			defer func() { assert.NoError(t, o.Close()) }()
			ctx, request := s.root()
			_, query := s.start(ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread()
				goruntime.Pin()
				other := s.p.runtime.Self() // a goroutine that has been on the thread, so that readers find the thread's m
				other.Goid++
				s.p.threads.Store(uint64(other.TID), new(ring.Span), &other)
				goruntime.Unpin()
				threads, err := o.Threads(t.Context())
				assert.NoError(t, err)
				at := slices.IndexFunc(threads, func(t reader.Thread) bool { return t.Goroutine == goid() })
				if assert.GreaterOrEqual(t, at, 0) && assert.NotNil(t, threads[at].Span) {
					assert.Equal(t, reader.GoroutineRecord, threads[at].Span.Carrier)
					assert.EqualValues(t, query.SpanContext().SpanID(), threads[at].Span.SpanID)
					assert.EqualValues(t, request.SpanContext().SpanID(), threads[at].Span.LocalRootSpanID)
				}
			}()
			<-done
			query.End()
			request.End()
		})
	}
}

// Spans left open by goroutines that no longer exist are evicted before a long-lived request.
func TestSpansOfGoroutinesThatAreGone(t *testing.T) {
	for name, opts := range map[string][]Option{
		"thread slots": {WithGoroutineRecord(false), WithGoroutineTable(false)},
		"record":       {WithThreadSlots(false), WithGoroutineTable(false)},
		"everything":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			leak := func(n int) {
				for range n {
					apart(func() { s.root() })
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
		})
	}
}

// A span may end elsewhere while a goroutine returns to it. The slot must still lead to the ancestors.
func TestShownAsItEnds(t *testing.T) {
	s := serve(t)
	apart(func() {
		ctx, outer := s.root()
		_, middle := s.start(ctx)
		var g goroutine
		s.p.locateLive(&g) // as at the end of a child
		apart(func() { middle.End() })
		s.p.publish(&g, nil, 0)
		ref, _ := s.entry(t)
		assert.NotZero(t, ref, "the goroutine is in no span")
		assert.Equal(t, number(outer), s.current(t))
		outer.End()
	})
}

// Without goroutine ids, goroutines are still distinguished.
func TestGoroutinesWithoutIDs(t *testing.T) {
	s := serve(t, withRuntime(goruntime.Calibrate().Without(errors.New("test"), goruntime.GGoid)))
	apart(func() {
		_, span := s.root()
		attached := Attach(context.Background())
		apart(func() {
			attached.Detach()
			assert.Zero(t, s.shown(t).record, "record of another goroutine")
		})
		attached.Detach()
		assert.Equal(t, number(span), s.shown(t).record)
		dialed := make(chan uint64)
		go func() {
			_, _ = DialContext(func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed })(t.Context(), "", "")
			dialed <- s.shown(t).record
		}()
		assert.Zero(t, <-dialed, "record of the parent goroutine")
		span.End()
	})
}

// With thread slots alone, a goroutine returns to a thread whose slot names its earlier span. The
// goroutine uses its entry instead, and readers can tell by the cell that the slot is outdated.
func TestThreadSlotLeftBehind(t *testing.T) {
	s := serve(t, WithGoroutineRecord(false), WithGoroutineTable(false))
	find := func(span trace.Span) cells.Ref { return s.p.cells.Find(sdkspan.Of(span.SpanContext())) }
	onThread := func(ref cells.Ref) bool {
		return readCell(t, s.p.cells.Address(), uint64(ref)).tid == uint32(syscall.Gettid())
	}
	// elsewhere calls do as if the goroutine ran on another thread with a different slot.
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
			assert.Equal(t, cells.Ancestors{find(outer)}, n.Ancestors)
			assert.False(t, onThread(find(outer)))
			inner.End()
			s.assertShows(t, outer, outer)
			outer.End()
		})
	})
	t.Run("a span inside of which another one has ended elsewhere", func(t *testing.T) {
		apart(func() {
			ctx, outer := s.root()
			_, inner := s.start(ctx)
			ref := find(inner)
			apart(func() { inner.End() })
			elsewhere(func() { Attach(context.Background()) })
			// Otherwise the enclosing span would be shown.
			assert.False(t, onThread(ref))
			outer.End()
		})
	})
	t.Run("a lost position", func(t *testing.T) {
		apart(func() {
			ctx, outer := s.root()
			s.collide()
			elsewhere(func() { _, outer = s.start(ctx) })
			assert.False(t, onThread(find(trace.SpanFromContext(ctx))))
			outer.End()
			trace.SpanFromContext(ctx).End()
		})
	})
	t.Run("a live span", func(t *testing.T) {
		apart(func() {
			ctx, outer := s.root()
			elsewhere(func() { ctx, _ = s.start(ctx) })
			_, inner := s.start(ctx)
			var n cells.Span
			require.True(t, s.p.cells.Load(find(inner), &n))
			assert.Equal(t, cells.Ancestors{find(trace.SpanFromContext(ctx)), find(outer)}, n.Ancestors)
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
			// Otherwise the enclosing span would be shown.
			assert.False(t, onThread(ref))
			outer.End()
		})
	})
	s.assertNowhere(t)
}
