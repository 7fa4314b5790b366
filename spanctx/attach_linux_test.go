// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
)

func TestAttach(t *testing.T) {
	for name, opts := range map[string][]Option{
		"everything": everything(),
		"slots":      everything(WithGoroutineRecord(false)),
		"record":     {WithThreadSlots(false), WithGoroutineSlots(false)},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			ctx, root := s.root()
			_, other := s.root()
			apart(func() {
				s.assertShows(t, nil, nil)
				outer := Attach(ctx)
				s.assertShows(t, root, root)
				again := Attach(ctx)
				s.assertShows(t, root, root)
				again.Detach()
				s.assertShows(t, root, root)

				ctxA, a := s.start(ctx)
				s.assertShows(t, a, root)
				back := Attach(ctx)
				s.assertShows(t, root, root)
				back.Detach()
				s.assertShows(t, a, root)
				ctxB, b := s.start(ctxA)
				s.assertShows(t, b, root)
				b.End()
				s.assertShows(t, a, root)
				isOver := Attach(ctxB)
				s.assertShows(t, nil, nil)
				isOver.Detach()
				s.assertShows(t, a, root)
				a.End()
				s.assertShows(t, root, root)
				outer.Detach()
				s.assertShows(t, nil, nil)

				for _, none := range []context.Context{context.Background(), ctxA} {
					nothing := Attach(none)
					s.assertShows(t, nil, nil)
					nothing.Detach()
					s.assertShows(t, nil, nil)
				}
			})
			root.End()
			other.End()
			s.assertNowhere(t)
		})
	}
}

// A goroutine may leave a span of its own, and attach it later. It goes back to where it did that.
// It does not go back to what was around the span when it started.
func TestAttachOwnSpanLeftBefore(t *testing.T) {
	for name, opts := range carriers() {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				ctxA, a := s.root()
				ctxChild, child := s.start(ctxA)
				idle := Attach(context.Background())
				s.assertShows(t, nil, nil)
				_, b := s.root()
				attached := Attach(ctxChild)
				s.assertShows(t, child, a)
				apart(func() { child.End() })
				is := s.shown(t)
				if s.p.records {
					assert.Equal(t, number(b), max(is.goroutine, is.record))
				}
				for _, id := range []uint64{is.thread, is.goroutine, is.record} {
					assert.Contains(t, []uint64{0, number(b)}, id)
				}
				attached.Detach()
				s.assertShows(t, b, b)
				b.End()
				s.assertShows(t, nil, nil)
				idle.Detach()
				s.assertShows(t, a, a)
				a.End()
			})
			s.assertNowhere(t)
		})
	}
}

// A span is shown on any number of goroutines, whatever they go back to.
func TestAttachFromManySpans(t *testing.T) {
	s := serve(t, everything()...)
	var ctx context.Context
	var root, span trace.Span
	apart(func() {
		ctx, root = s.root()
		ctx, span = s.start(ctx)
	})
	for range 100 {
		apart(func() {
			_, own := s.root()
			a := Attach(ctx)
			s.assertShows(t, span, root)
			a.Detach()
			s.assertShows(t, own, own)
			own.End()
		})
	}
	span.End()
	root.End()
	s.assertNowhere(t)
}

// A goroutine that attaches long spans in turn, and never detaches, takes no more memory with time.
func TestAttachInTurnWithoutDetach(t *testing.T) {
	s := serve(t, everything()...)
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

// Detach on another goroutine shows nothing there that is not its own.
func TestDetachElsewhere(t *testing.T) {
	s := serve(t, everything()...)
	apart(func() {
		_, outer := s.root()
		var ctx context.Context
		var other trace.Span
		apart(func() { ctx, other = s.root() })
		a := Attach(ctx)
		apart(func() {
			a.Detach()
			s.assertShows(t, nil, nil)
		})
		s.assertShows(t, other, other)
		a.Detach()
		s.assertShows(t, outer, outer)
		other.End()
		outer.End()
	})
	s.assertNowhere(t)
}

// A pool's worker shows the spans that it works for, and nothing of their parents, which
// it never showed, whoever ends them and whenever.
func TestWorkerShowsNoParent(t *testing.T) {
	s := serve(t, everything()...)
	for name, end := range map[string]func(end func()){
		"worker ends it":  func(end func()) { end() },
		"starter ends it": nil,
		"another one":     apart,
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				ctx, parent := s.root()
				ctx, span := s.start(ctx)
				worked, ended := make(chan struct{}), make(chan struct{})
				done := make(chan struct{})
				go apart(func() {
					defer close(done)
					a := Attach(ctx)
					s.assertShows(t, span, parent)
					if end != nil {
						end(func() { span.End() })
					}
					close(worked)
					<-ended
					s.assertShows(t, nil, nil)
					a.Detach()
					s.assertShows(t, nil, nil)
				})
				<-worked
				if end == nil {
					span.End()
				}
				close(ended)
				<-done
				s.assertShows(t, parent, parent)
				parent.End()
			})
			s.assertNowhere(t)
		})
	}
}

// What was attached on top of a span that is over by the time of Detach leaves nothing
// behind.
func TestDetachFromEnded(t *testing.T) {
	s := serve(t, everything()...)
	ctx, root := s.root()
	apart(func() {
		ctxA, own := s.root()
		a := Attach(ctx)
		s.assertShows(t, root, root)
		apart(func() { own.End() })
		a.Detach()
		s.assertShows(t, nil, nil)
		Attach(ctxA).Detach()
		s.assertShows(t, nil, nil)

		// The span ends before the attachment does.
		ctxB, own := s.root()
		_, inner := s.start(ctxB)
		a = Attach(ctxB)
		s.assertShows(t, own, own)
		own.End()
		s.assertShows(t, nil, nil)
		a.Detach()
		s.assertShows(t, inner, own) // it is live, and what was shown before
		inner.End()
		s.assertShows(t, nil, nil)
	})
	root.End()
	s.assertNowhere(t)
}

// A goroutine with pprof labels of its own keeps those, and gets them back.
func TestAttachManyGoroutines(t *testing.T) {
	s := serve(t, everything()...)
	ctx, root := s.root()
	const goroutines = 20
	var attached, done sync.WaitGroup
	ended := make(chan struct{})
	byThread, byGoroutine, byRecord := make([]bool, goroutines), make([]bool, goroutines), make([]bool, goroutines)
	for i := range goroutines {
		attached.Add(1)
		done.Go(func() {
			apart(func() {
				defer Attach(ctx).Detach()
				is := s.shown(t)
				byThread[i], byGoroutine[i] = is.thread == number(root), is.goroutine == number(root)
				byRecord[i] = is.record == number(root)
				attached.Done()
				<-ended
				s.assertShows(t, nil, nil)
			})
		})
	}
	attached.Wait()
	for i := range goroutines {
		assert.True(t, byThread[i] && byGoroutine[i] && byRecord[i], "goroutine %d", i)
	}
	root.End()
	s.assertNowhere(t)
	close(ended)
	done.Wait()
	s.assertNowhere(t)
	goruntime.SetLabels(nil)
}

// Places where it is not shown any more make room for others.
func TestAttachInTurn(t *testing.T) {
	s := serve(t, everything()...)
	ctx, root := s.root()
	for range 50 {
		apart(func() {
			a := Attach(ctx)
			s.assertShows(t, root, root)
			a.Detach()
			s.assertShows(t, nil, nil)
		})
	}
	root.End()
	s.assertNowhere(t)
}

func TestGo(t *testing.T) {
	s := serve(t, everything()...)
	ctx, root := s.root()
	ctx = context.WithValue(ctx, key{}, "value")
	done := make(chan struct{})
	apart(func() {
		Go(ctx, func(ctx context.Context) {
			defer close(done)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			assert.Equal(t, "value", ctx.Value(key{}))
			Refresh(ctx)
			s.assertShows(t, root, root)
			_, child := s.start(ctx)
			s.assertShows(t, child, root)
			child.End()
			s.assertShows(t, root, root)
		})
		<-done
	})
	root.End()
	s.assertNowhere(t)
}

type key struct{}

// A goroutine that dials is in no span meanwhile. It goes back to one that it has started or
// attached itself, and to none that it has inherited.
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
		"everything": everything(),
		"slots":      everything(WithGoroutineRecord(false)),
		"record":     {WithThreadSlots(false), WithGoroutineSlots(false)},
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
				if s.p.goroutines != nil {
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

// inherits runs f on a goroutine that inherits what the calling one is in.
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
		// As if another goroutine had used the thread.
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
			// It is not this goroutine's.
			Refresh(ctx)
			s.assertShows(t, nil, nil)
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

// Refresh knows a goroutine that shows the span by its record only.
func TestRefreshInherited(t *testing.T) {
	s := serve(t)
	apart(func() {
		ctx, a := s.root()
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			assert.Equal(t, shown{record: number(a)}, s.shown(t))
			Refresh(ctx)
			s.assertShows(t, a, a)
		}()
		<-done
		a.End()
	})
	s.assertNowhere(t)
}

// Without goroutine ids the record alone says what a goroutine is in: slots of the thread may
// be another one's, and so may the parent.
func TestRecordWithoutGoroutineIDs(t *testing.T) {
	s := serve(t, withRuntime(goruntime.Calibrate().Without(errors.New("refused for a test"), goruntime.GGoid)))
	apart(func() {
		ctx, a := s.root()
		_, b := s.start(ctx)
		b.End()
		assert.Equal(t, number(a), s.shown(t).record)
		labels := goruntime.Labels()
		// As if another goroutine, without a span, ran on this thread.
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

// Without goroutine ids slots are the thread's: nested spans resume all the same.
func TestWithoutGoroutineIDs(t *testing.T) {
	refused := errors.New("refused for a test")
	s := serve(t, withRuntime(goruntime.Calibrate().Without(refused)))
	require.ErrorIs(t, s.p.Err(), refused)
	assert.Equal(t, []string{CarrierThreadSlots}, s.p.Carriers())
	at := func() uint64 {
		return s.rings[threadRing].resolve(t, s.rings[threadRing].at(t, uint64(syscall.Gettid())), 0)
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
