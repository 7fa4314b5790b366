// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sdkspan

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// checked compares what is read of each span with what the span says.
type checked struct {
	t     *testing.T
	spans atomic.Int64
	// newRoots says that spans have no parent, whatever their context has.
	newRoots atomic.Bool
}

func (c *checked) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	checkStarted(c.t, s, s.SpanContext(), s.Parent())
	if !c.newRoots.Load() {
		checkStarted(c.t, s, s.SpanContext(), trace.SpanContextFromContext(ctx))
	}
	c.spans.Add(1)
}

func (c *checked) OnEnd(s sdktrace.ReadOnlySpan) {
	checkEnded(c.t, s, s.SpanContext())
	c.spans.Add(1)
}

// checkStarted compares what is read of a span with what it is, and what its parent is.
func checkStarted(t *testing.T, s sdktrace.ReadWriteSpan, self, parent trace.SpanContext) {
	t.Helper()
	k, traceFlags, child := Started(s)
	want := Of(self)
	assert.Equal(t, want, ID{Key: k, TraceFlags: traceFlags})
	k, remote := Parent(s)
	assert.Equal(t, k != Key{}, child)
	want = Of(parent)
	assert.Equal(t, want, ID{Key: k, TraceFlags: want.TraceFlags, Remote: remote})
}

func checkEnded(t *testing.T, s sdktrace.ReadOnlySpan, self trace.SpanContext) {
	t.Helper()
	k, traceFlags := Ended(s)
	want := Of(self)
	assert.Equal(t, want, ID{Key: k, TraceFlags: traceFlags})
}

func (*checked) Shutdown(context.Context) error   { return nil }
func (*checked) ForceFlush(context.Context) error { return nil }

func forget(t *testing.T) {
	t.Helper()
	started.Store(nil)
	ended.Store(nil)
}

func TestSpansOfTheSDK(t *testing.T) {
	forget(t)
	c := &checked{t: t}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(c))
	tracer := tp.Tracer("test")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				ctx, root := tracer.Start(t.Context(), "root")
				_, child := tracer.Start(ctx, "child", trace.WithAttributes())
				child.End()
				root.End()
			}
		})
	}
	wg.Wait()
	// Parents that are not the SDK's.
	remote := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 15: 2}, SpanID: trace.SpanID{3, 7: 4}, TraceFlags: 0xA5, Remote: true,
	})
	for _, parent := range []context.Context{
		trace.ContextWithSpanContext(t.Context(), remote),
		trace.ContextWithSpan(t.Context(), noop.Span{}),
		trace.ContextWithSpan(t.Context(), nil),
	} {
		_, span := tracer.Start(parent, "span")
		span.End()
	}
	c.newRoots.Store(true)
	_, span := tracer.Start(trace.ContextWithSpanContext(t.Context(), remote), "span", trace.WithNewRoot())
	span.End()
	assert.EqualValues(t, 4*100*4+4*2, c.spans.Load())

	// It was not by SpanContext that they were read.
	require.NotNil(t, started.Load(), "the SDK's types have other fields by now: see learn")
	require.NotNil(t, ended.Load())
}

// A span of a type of its own, which embeds one of the SDK's.
type foreign struct {
	sdktrace.ReadWriteSpan

	spanContext trace.SpanContext //nolint:unused // what learn looks for
}

func TestOtherSpans(t *testing.T) {
	forget(t)
	tracer := sdktrace.NewTracerProvider().Tracer("test")
	ctx, outer := tracer.Start(t.Context(), "parent")
	_, span := tracer.Start(ctx, "span")
	inner, ok := span.(sdktrace.ReadWriteSpan)
	require.True(t, ok)
	for range 2 {
		checkStarted(t, &foreign{ReadWriteSpan: inner}, span.SpanContext(), outer.SpanContext())
		checkEnded(t, foreign{ReadWriteSpan: inner}, span.SpanContext())
		assert.Nil(t, started.Load(), "only of the SDK's types is it known that their contexts do not change")
		assert.Nil(t, ended.Load())
		// From now on the SDK's are known.
		checkStarted(t, inner, span.SpanContext(), outer.SpanContext())
		checkEnded(t, inner, span.SpanContext())
		forget(t)
	}
}

func TestFieldsThatAreNotThere(t *testing.T) {
	forget(t)
	var offset uintptr
	type span struct {
		spanContext trace.SpanContext //nolint:unused // what field looks for
		parent      trace.SpanID      //nolint:unused // the same
	}
	assert.True(t, field(reflect.TypeFor[span](), &offset, "spanContext"))
	assert.False(t, field(reflect.TypeFor[span](), &offset, "parent"), "which is something else")
	assert.False(t, field(reflect.TypeFor[span](), &offset, "outer"))
	for _, other := range []reflect.Type{
		reflect.TypeFor[struct{ a, b int32 }](), reflect.TypeFor[struct{ b, a int64 }](), reflect.TypeFor[struct {
			a int32
			b int64
		}](), reflect.TypeFor[struct{ a, b, c int64 }](),
	} {
		assert.False(t, sameFields(reflect.TypeFor[struct{ a, b int64 }](), other))
	}
	t.Cleanup(func() { known = true })
	require.True(t, known)
	known = false
	_, root := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "span")
	inner, ok := root.(sdktrace.ReadWriteSpan)
	require.True(t, ok)
	checkStarted(t, inner, root.SpanContext(), trace.SpanContext{})
	assert.Nil(t, started.Load())
}
