// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// TestRecordOfFormerProcessorNamesNoSpan checks that a record which a goroutine still has after
// Shutdown does not name spans of the next SpanProcessor.
func TestRecordOfFormerProcessorNamesNoSpan(t *testing.T) {
	former, err := New()
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(former))
	apart(func() {
		defer goruntime.SetLabels(nil)
		ctx, a := provider.Tracer("").Start(context.Background(), "a")
		_, b := provider.Tracer("").Start(ctx, "b")
		require.NoError(t, provider.Shutdown(context.Background()))

		s := serve(t)
		var x, y trace.Span
		apart(func() { // x and y use the same cells as a and b
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

// TestEndOfEvictedSpanPublishesAncestor checks that all carriers publish the nearest live ancestor
// again when an evicted span ends.
func TestEndOfEvictedSpanPublishesAncestor(t *testing.T) {
	for name, opts := range map[string][]Option{"everything": nil, "slots": {WithLabels(LabelsOff)}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				defer goruntime.SetLabels(nil)
				ctx, outer := s.root()
				_, inner := s.start(ctx)
				require.True(t, s.path.Evict(s.path.Find(trace.ContextWithSpan(ctx, inner))))
				inner.End()
				s.assertPublished(t, outer)
				outer.End()
				s.assertShows(t, nil, nil)
			})
		})
	}
}

// assertPublished checks that the slot, the entry and the record of the calling goroutine name span
// itself, instead of a descendant of it.
func (s *service) assertPublished(t *testing.T, span trace.Span) {
	t.Helper()
	s.assertShows(t, span, span)
	assert.Equal(t, number(span), s.threads.at(t, uint64(syscall.Gettid())).spanID)
	ref, _ := s.entry(t)
	assert.EqualValues(t, s.path.Find(trace.ContextWithSpan(context.Background(), span)), ref)
	if s.carriers.records {
		assert.False(t, installed().Ended(), "readers of labels see the span")
	}
}

// TestEndAfterShutdownRestoresLabels checks that ending a span after Shutdown removes the span's
// labels from the goroutine, even with LabelsKept, but does not remove the labels of a later
// SpanProcessor.
func TestEndAfterShutdownRestoresLabels(t *testing.T) {
	former, err := New(WithLabels(LabelsKept))
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
