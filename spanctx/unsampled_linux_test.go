// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// TestPublishAll checks what an unsampled span looks like to the program, and that readers see it as an unsampled span.
func TestPublishAll(t *testing.T) {
	s, exporter := serve(t), tracetest.NewInMemoryExporter()
	tp := PublishAll(sdktrace.NewTracerProvider(
		sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0)))))
	t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true})
	for name, tt := range map[string]struct {
		ctx     context.Context
		sampled bool
		// traceID is the trace id of the parent, zero if there is none.
		traceID trace.TraceID
	}{
		"no context":       {},
		"no span":          {ctx: t.Context()},
		"nil span":         {ctx: trace.ContextWithSpan(t.Context(), nil)},
		"noop span":        {ctx: trace.ContextWithSpan(t.Context(), noop.Span{})},
		"unsampled parent": {ctx: trace.ContextWithSpanContext(t.Context(), remote), traceID: remote.TraceID()},
		"sampled parent": {
			ctx: trace.ContextWithSpanContext(t.Context(), remote.WithTraceFlags(trace.FlagsSampled)), traceID: remote.TraceID(), sampled: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				before := time.Now()
				ctx, span := tp.Tracer("test").Start(tt.ctx, "span", trace.WithAttributes(attribute.Int("a", 1)))
				assert.Same(t, span, trace.SpanFromContext(ctx))
				sc := span.SpanContext()
				assert.True(t, sc.IsValid())
				assert.False(t, sc.IsRemote())
				assert.NotEqual(t, remote.SpanID(), sc.SpanID())
				assert.Equal(t, tt.sampled, sc.IsSampled())
				assert.True(t, span.IsRecording())
				if tt.traceID.IsValid() {
					assert.Equal(t, tt.traceID, sc.TraceID())
				}
				if !tt.sampled {
					assert.Same(t, tp, span.TracerProvider())
				}
				span.SetAttributes(attribute.Int("b", 2))
				span.SetStatus(codes.Error, "")
				span.SetName("renamed")
				span.RecordError(errors.New("an error"), trace.WithStackTrace(true))
				span.AddEvent("event")
				span.AddLink(trace.LinkFromContext(ctx))

				s.assertShows(t, span, span)
				live := s.live(t)
				if assert.Len(t, live, 1) {
					assert.EqualValues(t, sc.TraceID(), live[0].TraceID)
					assert.EqualValues(t, sc.SpanID(), live[0].SpanID)
					assert.EqualValues(t, sc.TraceFlags(), live[0].TraceFlags)
					assert.False(t, live[0].Start.Before(before.Truncate(0)), live[0].Start)
				}
				span.End()
				assert.False(t, span.IsRecording())
				s.assertShows(t, nil, nil)
				assert.Len(t, exporter.GetSpans(), map[bool]int{true: 1}[tt.sampled])
				exporter.Reset()
			})
		})
	}
}

// live returns the live spans that package reader finds in this process.
func (*service) live(t testing.TB) []reader.LiveSpan {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	live, err := p.Spans(t.Context())
	require.NoError(t, err)
	return live
}

// TestProviderOfAllSpans checks that a program can use the provider like the SDK's.
func TestProviderOfAllSpans(t *testing.T) {
	tp := PublishAll(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))))
	s := observe(t, tp)
	before := otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	early := otel.Tracer("early") // of otel's placeholder, unless another test has set a provider
	otel.SetTracerProvider(tp)
	provider, ok := otel.GetTracerProvider().(interface {
		trace.TracerProvider
		RegisterSpanProcessor(p sdktrace.SpanProcessor)
		UnregisterSpanProcessor(p sdktrace.SpanProcessor)
		ForceFlush(ctx context.Context) error
		Shutdown(ctx context.Context) error
	})
	require.True(t, ok)
	recorder := tracetest.NewSpanRecorder()
	provider.RegisterSpanProcessor(recorder)
	sampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	apart(func() {
		_, span := early.Start(trace.ContextWithRemoteSpanContext(t.Context(), sampled), "sampled")
		s.assertShows(t, span, span)
		span.End()
	})
	assert.Len(t, recorder.Ended(), 1)
	provider.UnregisterSpanProcessor(recorder)
	require.NoError(t, provider.ForceFlush(t.Context()))
	apart(func() {
		ctx, span := early.Start(t.Context(), "unsampled")
		s.assertShows(t, span, span)
		_, child := span.TracerProvider().Tracer("other").Start(ctx, "child")
		s.assertShows(t, child, span)
		child.End()
		require.NoError(t, provider.Shutdown(t.Context()))
		assert.Nil(t, current.Load())
		assertNoRecord(t)

		s := serve(t) // so that spans could be published
		_, late := early.Start(t.Context(), "late")
		assert.True(t, late.SpanContext().IsValid())
		s.assertNowhere(t)
		late.End()
		// The SDK now returns tracers of package trace/noop, whose spans have the ids of their parents.
		for range 2 {
			_, child := otel.Tracer("late").Start(ctx, "child")
			assert.Equal(t, span.SpanContext(), child.SpanContext())
			s.assertNowhere(t)
			child.End()
			span.End()
		}
	})
}

// TestUnsampledSpansOfAProviderThatIsGone checks that the Shutdown of a provider ends its unsampled spans and withdraws its
// resource, although the provider has never recorded a span.
func TestUnsampledSpansOfAProviderThatIsGone(t *testing.T) {
	resources := []string{}
	provide := func(name string) *TracerProvider {
		return PublishAll(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()),
			resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", name)))))
	}
	check := func(spans ...trace.Span) {
		t.Helper()
		resources = append(resources, serviceName(t))
		var want, got []trace.SpanID
		for _, span := range spans {
			want = append(want, span.SpanContext().SpanID())
		}
		if current.Load() != nil {
			for _, live := range (*service)(nil).live(t) {
				got = append(got, live.SpanID)
			}
		}
		assert.ElementsMatch(t, want, got)
	}
	apart(func() {
		first, second := provide("first"), provide("second")
		_, a := first.Tracer("").Start(t.Context(), "a")
		ctx, b := second.Tracer("").Start(t.Context(), "b")
		check(a, b)
		require.NoError(t, second.Shutdown(t.Context()))
		check(a)
		_, late := second.Tracer("").Start(ctx, "late")
		check(a)
		late.End()
		b.End()
		check(a)
		require.NoError(t, first.Shutdown(t.Context()))
		check()
		a.End()
	})
	assert.Equal(t, []string{"second", "first", "first", "first", ""}, resources)
}

// serviceName returns the service name in the process context of this process, or "" if there is no process context.
func serviceName(t *testing.T) string {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	pc, err := p.ProcessContext(t.Context())
	if errors.Is(err, reader.ErrNoContext) {
		return ""
	}
	require.NoError(t, err)
	for _, kv := range pc.Resource.GetAttributes() {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// TestUnsampledEndedConcurrently checks that only the first call of End has an effect.
func TestUnsampledEndedConcurrently(t *testing.T) {
	s := serve(t).publishAll(t, sdktrace.NeverSample())
	apart(func() {
		ctx, parent := s.root()
		for range 100 {
			_, child := s.start(ctx)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { child.End() })
			}
			all.Wait()
			_, sibling := s.start(ctx)
			child.End()
			s.assertShows(t, sibling, parent)
			sibling.End()
			s.assertShows(t, parent, parent)
		}
		parent.End()
	})
	s.assertNowhere(t)
}

// TestNoopTracerInUnsampledSpan checks that code with a tracer of package trace/noop does not end the unsampled span that
// it runs in.
func TestNoopTracerInUnsampledSpan(t *testing.T) {
	s := serve(t).publishAll(t, sdktrace.NeverSample())
	apart(func() {
		outer, request := s.root()
		ctx, span := s.start(outer)
		_, child := noop.NewTracerProvider().Tracer("test").Start(ctx, "child")
		s.assertShows(t, span, request)
		child.End()
		s.assertShows(t, span, request)
		span.End()
		s.assertShows(t, request, request)
		request.End()
	})
	s.assertNowhere(t)
}

// TestUnsampledContext checks that the context of an unsampled span has the values, the deadline and the cancellation of the
// context passed to Start, for contexts of the standard library that are derived from it, too.
func TestUnsampledContext(t *testing.T) {
	s := serve(t).publishAll(t, sdktrace.NeverSample())
	type key struct{}
	apart(func() {
		cause := errors.New("a cause")
		outer, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
		parentContext, parent := s.start(outer)
		between, stop := context.WithTimeout(parentContext, time.Hour)
		ctx, child := s.start(between)
		derived, stopDerived := context.WithCancel(ctx)
		assert.Equal(t, "value", derived.Value(key{}))
		assert.Same(t, child, trace.SpanFromContext(derived))
		assert.Same(t, parent, trace.SpanFromContext(between))
		want, _ := between.Deadline()
		got, ok := ctx.Deadline()
		assert.True(t, ok)
		assert.Equal(t, want, got)
		assert.NoError(t, derived.Err())
		cancel(cause)
		<-derived.Done()
		assert.ErrorIs(t, derived.Err(), context.Canceled)
		assert.Equal(t, cause, context.Cause(derived))
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		stopDerived()
		stop()
		child.End()
		parent.End()
	})
	s.assertNowhere(t)
}

// TestUnsampledAllocations checks that publishing an unsampled span allocates two objects: the span with its context, and its
// goroutine record.
func TestUnsampledAllocations(t *testing.T) {
	s := serve(t).publishAll(t, sdktrace.NeverSample())
	tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	apart(func() {
		const spans = 3
		assert.LessOrEqual(t, allocations(s.tracer)-allocations(tp.Tracer("test")), spans*2.0)
	})
}
