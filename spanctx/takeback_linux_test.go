// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"runtime"
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
)

// A goroutine that is in a span during Shutdown keeps the record of that span. The refs in the
// record must not name spans of the next SpanProcessor.
func TestRecordOfFormerProcessorNamesNoSpan(t *testing.T) {
	former, err := NewSpanProcessor()
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(former))
	apart(func() {
		defer goruntime.SetLabels(nil)
		ctx, a := provider.Tracer("").Start(context.Background(), "a")
		_, b := provider.Tracer("").Start(ctx, "b")
		require.NoError(t, provider.Shutdown(context.Background()))

		s := serve(t)
		var x, y trace.Span
		apart(func() { // these spans use the same cells as a and b
			var ctx context.Context
			ctx, x = s.root()
			_, y = s.start(ctx)
		})
		defer x.End()
		defer y.End()
		assert.Equal(t, shown{}, s.shown(t), "before the first span of the goroutine")
		_, c := s.root()
		assert.Equal(t, shown{number(c), number(c), number(c)}, s.shown(t))
		c.End()
		assert.Equal(t, shown{}, s.shown(t), "after it")
		a.End()
		b.End()
	})
}

// A span that starts while Shutdown replaces the memory of its cell is withdrawn, too.
func TestSpanStartedDuringShutdownIsWithdrawn(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%v", replaced), func(t *testing.T) {
			s := serve(t)
			apart(func() {
				defer goruntime.SetLabels(nil)
				_, a := s.root()
				record := installed()
				if replaced {
					require.NoError(t, s.p.cells.Close())
				}
				s.p.endLate(record.Ref(), record)
				assertNoRecord(t)
				a.End()
			})
		})
	}
}

// End returns at once if the span is being evicted. So eviction must invalidate the record before
// it ends the cell.
func TestEvictedRecordEndsBeforeCell(t *testing.T) {
	s := serve(t)
	apart(func() {
		defer goruntime.SetLabels(nil)
		var round atomic.Uint64 // the span to evict, or 0
		done := make(chan struct{})
		defer close(done)
		go func() {
			for last := cells.Ref(0); ; {
				select {
				case <-done:
					return
				default:
				}
				if ref := cells.Ref(round.Load()); ref != last {
					last = ref
					if s.p.evict(last) {
						s.p.cells.Free(last) // otherwise the cells would be exhausted
					}
				}
			}
		}()
		shown := 0
		for range 200_000 {
			_, span := s.root()
			record := installed()
			round.Store(uint64(record.Ref()))
			span.End()
			if !record.Ended() {
				shown++
			}
		}
		assert.Zero(t, shown, "spans whose record was valid after End")
	})
}

// End of an evicted span makes all carriers publish the nearest live ancestor again.
func TestEndOfEvictedSpanPublishesAncestor(t *testing.T) {
	for name, opts := range map[string][]Option{"everything": nil, "slots": {WithGoroutineRecord(false)}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				defer goruntime.SetLabels(nil)
				ctx, outer := s.root()
				_, inner := s.start(ctx)
				require.True(t, s.p.evict(s.p.find(trace.ContextWithSpan(ctx, inner))))
				inner.End()
				s.assertPublished(t, outer)
				outer.End()
				s.assertShows(t, nil, nil)
			})
		})
	}
}

// assertPublished checks that the slot, the entry and the record of the calling goroutine name a
// span themselves, and not only through an ancestor of another span.
func (s *service) assertPublished(t *testing.T, span trace.Span) {
	t.Helper()
	s.assertShows(t, span, span)
	assert.Equal(t, number(span), s.threads.at(t, uint64(syscall.Gettid())).spanID)
	ref, _ := s.entry(t)
	assert.EqualValues(t, s.p.find(trace.ContextWithSpan(context.Background(), span)), ref)
	if s.p.records {
		assert.False(t, installed().Ended(), "readers of labels see the span")
	}
}

// Ending a span after Shutdown removes its labels from the goroutine, whatever the label policy,
// but not the labels of a later SpanProcessor.
func TestEndAfterShutdownRestoresLabels(t *testing.T) {
	former, err := NewSpanProcessor(WithLabels(LabelsKept))
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(former))
	apart(func() {
		defer goruntime.SetLabels(nil)
		_, a := provider.Tracer("").Start(context.Background(), "a")
		_, b := provider.Tracer("").Start(context.Background(), "b")
		require.NoError(t, former.Shutdown(context.Background()))
		b.End()
		assert.Nil(t, goruntime.Labels())

		s := serve(t)
		_, c := s.root()
		a.End()
		s.assertShows(t, c, c)
		c.End()
		assert.Nil(t, goruntime.Labels())
	})
}

// After a burst of spans, the number of records that stay in memory is at most the number of free
// cells that the Ps keep.
func TestRecordsAreNotKeptAfterABurst(t *testing.T) {
	s := serve(t)
	kept := 64 * max(runtime.GOMAXPROCS(0), runtime.NumCPU())
	apart(func() {
		spans := make([]trace.Span, kept+1000)
		for i := range spans {
			_, spans[i] = s.root()
		}
		for _, span := range slices.Backward(spans) {
			span.End()
		}
	})
	n := 0
	for i := range s.p.data.records {
		if s.p.data.records[i].Load() != nil {
			n++
		}
	}
	assert.LessOrEqual(t, n, kept)
}
