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
	k, traceFlags, child := Started(s)
	parent, remote := Parent(s)
	assert.Equal(c.t, parent != Key{}, child)
	want := Of(s.SpanContext())
	assert.Equal(c.t, want, ID{Key: k, TraceFlags: traceFlags})
	assertParent(c.t, s.Parent(), parent, remote)
	if !c.newRoots.Load() {
		assertParent(c.t, trace.SpanContextFromContext(ctx), parent, remote)
	}
	c.spans.Add(1)
}

func (c *checked) OnEnd(s sdktrace.ReadOnlySpan) {
	k, traceFlags := Ended(s)
	want := Of(s.SpanContext())
	assert.Equal(c.t, want, ID{Key: k, TraceFlags: traceFlags})
	c.spans.Add(1)
}

func assertParent(t *testing.T, parent trace.SpanContext, k Key, remote bool) {
	t.Helper()
	want := Of(parent)
	assert.Equal(t, want, ID{Key: k, TraceFlags: want.TraceFlags, Remote: remote})
}

func (*checked) Shutdown(context.Context) error   { return nil }
func (*checked) ForceFlush(context.Context) error { return nil }

func forget(t *testing.T) {
	t.Helper()
	for _, l := range []*atomic.Pointer[layout]{&started, &ended} {
		l.Store(nil)
	}
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
	want := Of(span.SpanContext())
	for range 2 {
		k, traceFlags, child := Started(&foreign{ReadWriteSpan: inner})
		assert.True(t, child)
		assert.Equal(t, want, ID{Key: k, TraceFlags: traceFlags})
		k, remote := Parent(&foreign{ReadWriteSpan: inner})
		assertParent(t, outer.SpanContext(), k, remote)
		k, traceFlags = Ended(foreign{ReadWriteSpan: inner})
		assert.Equal(t, want, ID{Key: k, TraceFlags: traceFlags})
		assert.Nil(t, started.Load(), "only of the SDK's types is it known that their contexts do not change")
		assert.Nil(t, ended.Load())
		// From now on the SDK's are known.
		Started(inner)
		k, remote = Parent(inner)
		assertParent(t, outer.SpanContext(), k, remote)
		k, traceFlags = Ended(inner)
		assert.Equal(t, want, ID{Key: k, TraceFlags: traceFlags})
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
	k, traceFlags, child := Started(inner)
	assert.False(t, child)
	want := Of(root.SpanContext())
	assert.Equal(t, want, ID{Key: k, TraceFlags: traceFlags})
	k, remote := Parent(inner)
	assert.Zero(t, k)
	assert.False(t, remote)
	assert.Nil(t, started.Load())
}
