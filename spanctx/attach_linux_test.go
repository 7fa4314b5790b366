// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
)

// A goroutine that attaches one long span after the other without detaching uses no more and more
// memory.
func TestAttachInTurnWithoutDetach(t *testing.T) {
	s := serve(t)
	ctxA, a := s.root()
	ctxB, b := s.root()
	heap := func() uint64 {
		var m runtime.MemStats
		for range 2 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	apart(func() {
		defer goruntime.SetLabels(nil)
		before := heap()
		for range 10_000 {
			Attach(ctxA)
			Attach(ctxB)
		}
		s.assertShows(t, b, b)
		assert.Less(t, heap(), before+1<<20)
	})
	b.End()
	a.End()
	s.assertNowhere(t)
}

type key struct{}

// A goroutine is in no span while it dials. Then it returns to a span that it has started or attached
// itself, but not to an inherited one.
func TestDialContext(t *testing.T) {
	refused := errors.New("refused")
	dialled := 0
	dial := func(check func()) {
		ctx := context.WithValue(context.Background(), key{}, "value")
		conn, err := DialContext(func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled++
			assert.Equal(t, []any{"value", "network", "address"}, []any{ctx.Value(key{}), network, address})
			check()
			return nil, refused
		})(ctx, "network", "address")
		assert.Nil(t, conn)
		assert.Equal(t, refused, err)
	}
	for name, opts := range map[string][]Option{
		"everything": nil,
		"slots":      {WithGoroutineRecord(false)},
		"record":     {WithThreadSlots(false), WithGoroutineTable(false)},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			nothing := func() { s.assertShows(t, nil, nil) }
			apart(func() {
				dial(nothing)
				ctx, root := s.root()
				dial(nothing)
				s.assertShows(t, root, root)
				inherits(func() {
					dial(nothing)
					nothing()
				})
				inherits(func() {
					_, own := s.start(ctx)
					dial(nothing)
					s.assertShows(t, own, root)
					own.End()
				})
				if s.p.tablePublished {
					apart(func() {
						defer Attach(ctx).Detach()
						dial(nothing)
						s.assertShows(t, root, root)
					})
				}
				s.assertShows(t, root, root)
				root.End()
			})
			s.assertNowhere(t)
		})
	}
	before := dialled
	dial(func() {}) // without a SpanProcessor
	assert.Equal(t, before+1, dialled)
}

// inherits runs f on a goroutine that inherits the span of the calling one.
func inherits(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
	<-done
}

func TestRefresh(t *testing.T) {
	s := serve(t, WithGoroutineRecord(false))
	apart(func() {
		ctx, a := s.root()
		s.assertShows(t, a, a)
		// Act as if another goroutine had used the thread.
		goruntime.Pin()
		self := s.p.runtime.Self()
		s.p.threads.Store(uint64(self.TID), new(ring.Span), &self)
		goruntime.Unpin()
		assert.Zero(t, s.shown(t).thread)
		Refresh(ctx)
		s.assertShows(t, a, a)
		Refresh(ctx)
		s.assertShows(t, a, a)
		Refresh(context.Background())
		s.assertShows(t, a, a)
		apart(func() {
			attached := Attach(ctx)
			s.assertShows(t, a, a)
			Refresh(ctx)
			s.assertShows(t, a, a)
			attached.Detach()
			s.assertShows(t, nil, nil)
		})
		a.End()
		Refresh(ctx)
		s.assertShows(t, nil, nil)
	})
	s.assertNowhere(t)
}

// Without goroutine ids, only the record determines the span of a goroutine: the slot of the thread
// and the parent in the context may belong to another goroutine.
func TestRecordWithoutGoroutineIDs(t *testing.T) {
	s := serve(t, withRuntime(goruntime.Calibrate().Without(errors.New("refused for a test"), goruntime.GGoid)))
	apart(func() {
		ctx, a := s.root()
		_, b := s.start(ctx)
		b.End()
		assert.Equal(t, number(a), s.shown(t).record)
		labels := goruntime.Labels()
		// Act as if another goroutine, without a span, ran on this thread.
		goruntime.SetLabels(nil)
		_, c := s.root()
		assert.Equal(t, number(c), s.shown(t).record)
		c.End()
		assert.Zero(t, s.shown(t).record)
		goruntime.SetLabels(labels)
		apart(func() {
			_, d := s.start(ctx)
			d.End()
			assert.Zero(t, s.shown(t).record)
		})
		a.End()
	})
	s.assertNowhere(t)
}

// Without goroutine ids and records, positions belong to threads. Nested spans still work.
func TestWithoutGoroutineIDs(t *testing.T) {
	refused := errors.New("refused for a test")
	s := serve(t, withRuntime(goruntime.Calibrate().Without(refused)))
	require.ErrorIs(t, s.p.Err(), refused)
	assert.Equal(t, []string{CarrierThreadSlots}, s.p.Carriers())
	at := func() uint64 {
		id, _ := resolve(t, s.p.cells.Address(), s.threads.at(t, uint64(syscall.Gettid())).ref, 0)
		return id
	}
	apart(func() {
		ctx, a := s.root()
		assert.Equal(t, number(a), at())
		ctxB, b := s.start(ctx)
		assert.Equal(t, number(b), at())
		b.End()
		assert.Equal(t, number(a), at())
		_, b = s.start(ctx)
		apart(func() { b.End() })
		assert.Equal(t, number(a), at())
		attached := Attach(ctxB)
		assert.Zero(t, at())
		attached.Detach()
		assert.Equal(t, number(a), at())
		a.End()
		assert.Zero(t, at())
	})
	s.assertNowhere(t)
}
