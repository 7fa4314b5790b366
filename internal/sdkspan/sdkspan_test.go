// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sdkspan

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// checked is a span processor that compares the results of this package with the span's methods.
type checked struct {
	t     *testing.T
	spans atomic.Int64
	// newRoots is true while spans are started with trace.WithNewRoot.
	newRoots atomic.Bool
	// ends makes OnStart end each span, as a processor may.
	ends atomic.Bool
}

func (c *checked) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	checkStarted(c.t, s, s.SpanContext(), s.Parent())
	if !c.newRoots.Load() {
		checkStarted(c.t, s, s.SpanContext(), trace.SpanContextFromContext(ctx))
	}
	c.spans.Add(1)
	if c.ends.Load() {
		s.End()
	}
}

func (c *checked) OnEnd(s sdktrace.ReadOnlySpan) {
	checkEnded(c.t, s, s.SpanContext())
	c.spans.Add(1)
}

// checkStarted compares the results for a span that has just started with its SpanContext and its
// parent's.
func checkStarted(t *testing.T, s sdktrace.ReadWriteSpan, self, parent trace.SpanContext) {
	t.Helper()
	k, traceFlags, child, start := Started(s)
	assert.Equal(t, Of(self), k)
	assert.Equal(t, byte(self.TraceFlags()), traceFlags)
	assert.EqualValues(t, s.StartTime().UnixNano(), start)
	k, remote := Parent(s)
	assert.Equal(t, k != Key{}, child)
	assert.Equal(t, Of(parent), k)
	assert.Equal(t, parent.IsRemote(), remote)
}

func checkEnded(t *testing.T, s sdktrace.ReadOnlySpan, self trace.SpanContext) {
	t.Helper()
	k, traceFlags, end := Ended(s)
	assert.Equal(t, Of(self), k)
	assert.Equal(t, byte(self.TraceFlags()), traceFlags)
	assert.Equal(t, s.EndTime(), end)
}

func (*checked) Shutdown(context.Context) error   { return nil }
func (*checked) ForceFlush(context.Context) error { return nil }

func forget(t *testing.T) {
	t.Helper()
	startedFields.Store(nil)
	endedFields.Store(nil)
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
				ctx, root := tracer.Start(t.Context(), "root", trace.WithTimestamp(time.Unix(1, 2)))
				_, child := tracer.Start(ctx, "child", trace.WithAttributes())
				child.End()
				root.End(trace.WithTimestamp(time.Unix(3, 4)))
			}
		})
	}
	wg.Wait()
	// Start spans whose parents are not the SDK's.
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

	// Check that the fast path was used.
	require.NotNil(t, startedFields.Load(), "the fields of the SDK's types have changed: see learn")
	require.NotNil(t, endedFields.Load())
}

func startedKey(s sdktrace.ReadWriteSpan) Key {
	k, _, _, _ := Started(s) //nolint:dogsled // there are that many results
	return k
}

// overAtStart records the key that Started returns for each span, which an earlier processor may
// have ended.
type overAtStart struct {
	checked

	keys []Key
}

func (o *overAtStart) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	o.keys = append(o.keys, startedKey(s))
}

// If an earlier processor has ended a span, the span has no key, whether or not the fields were
// known before.
func TestSpanEndedByAnEarlierProcessor(t *testing.T) {
	forget(t)
	before, after := &checked{t: t}, &overAtStart{checked: checked{t: t}}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(before), sdktrace.WithSpanProcessor(after)).Tracer("test")
	for _, ends := range []bool{false, true, true} {
		before.ends.Store(ends)
		if ends && len(after.keys) == 2 {
			forget(t)
		}
		tracer.Start(t.Context(), "span")
	}
	require.Len(t, after.keys, 3)
	assert.NotZero(t, after.keys[0])
	assert.Equal(t, []Key{{}, {}}, after.keys[1:])

	// This is also true of types other than the SDK's.
	_, span := tracer.Start(t.Context(), "span")
	inner, ok := span.(sdktrace.ReadWriteSpan)
	require.True(t, ok)
	assert.Zero(t, startedKey(&foreign{ReadWriteSpan: inner}))
}

// foreign is a type of span that is not the SDK's. It embeds an SDK span.
type foreign struct {
	sdktrace.ReadWriteSpan

	spanContext trace.SpanContext //nolint:unused // what learn looks for
}

// lookalike has the same fields as the SDK's spans, but its methods return the data of an embedded
// SDK span.
type lookalike struct {
	sdktrace.ReadWriteSpan

	spanContext, parent trace.SpanContext
	startTime, endTime  time.Time
}

// The fields of a type are read directly only if they contain the values that the methods return.
func TestLearnComparesWithTheMethods(t *testing.T) {
	old := sdk
	t.Cleanup(func() { sdk = old; forget(t) })
	sdk = reflect.TypeFor[lookalike]().PkgPath()
	tracer := sdktrace.NewTracerProvider().Tracer("test")
	ctx, outer := tracer.Start(t.Context(), "parent")
	_, span := tracer.Start(ctx, "span")
	inner, ok := span.(sdktrace.ReadWriteSpan)
	require.True(t, ok)
	for name, tt := range map[string]struct {
		change func(*lookalike)
		learns bool
	}{
		"the same":       {func(*lookalike) {}, true},
		"another span":   {func(l *lookalike) { l.spanContext = l.parent }, false},
		"another parent": {func(l *lookalike) { l.parent = l.spanContext }, false},
		"another start":  {func(l *lookalike) { l.startTime = l.startTime.Add(1) }, false},
		"another end":    {func(l *lookalike) { l.endTime = time.Unix(1, 0) }, false},
	} {
		forget(t)
		l := &lookalike{inner, span.SpanContext(), outer.SpanContext(), inner.StartTime(), inner.EndTime()}
		tt.change(l)
		checkStarted(t, l, span.SpanContext(), outer.SpanContext())
		checkEnded(t, l, span.SpanContext())
		assert.Equal(t, tt.learns, startedFields.Load() != nil, name)
		assert.Equal(t, tt.learns, endedFields.Load() != nil, name)
	}
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
		assert.Nil(t, startedFields.Load(), "fields must be learned only from the SDK's types")
		assert.Nil(t, endedFields.Load())
		// These calls pass one of the SDK's own types, so its fields are learned.
		checkStarted(t, inner, span.SpanContext(), outer.SpanContext())
		checkEnded(t, inner, span.SpanContext())
		forget(t)
	}
}

func TestMissingFields(t *testing.T) {
	forget(t)
	var offset uintptr
	type span struct {
		spanContext trace.SpanContext //nolint:unused // what field looks for
		parent      trace.SpanID      //nolint:unused // the same
	}
	assert.True(t, field[trace.SpanContext](reflect.TypeFor[span](), &offset, "spanContext"))
	assert.False(t, field[trace.SpanContext](reflect.TypeFor[span](), &offset, "parent"), "a field of another type")
	assert.False(t, field[trace.SpanContext](reflect.TypeFor[span](), &offset, "outer"))
	for _, other := range []reflect.Type{
		reflect.TypeFor[struct{ a, b int32 }](), reflect.TypeFor[struct{ b, a int64 }](), reflect.TypeFor[struct {
			a int32
			b int64
		}](), reflect.TypeFor[struct{ a, b, c int64 }](),
	} {
		assert.False(t, sameFields(reflect.TypeFor[struct{ a, b int64 }](), other))
	}
	t.Cleanup(func() { sameContext = true })
	require.True(t, sameContext)
	sameContext = false
	_, root := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "span")
	inner, ok := root.(sdktrace.ReadWriteSpan)
	require.True(t, ok)
	checkStarted(t, inner, root.SpanContext(), trace.SpanContext{})
	assert.Nil(t, startedFields.Load())
}

func TestLocal(t *testing.T) {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	k, ok := Local(trace.ContextWithSpanContext(t.Context(), sc))
	assert.True(t, ok)
	assert.Equal(t, Of(sc), k)
	_, ok = Local(trace.ContextWithRemoteSpanContext(t.Context(), sc))
	assert.False(t, ok, "a remote span")
	for _, ctx := range []context.Context{nil, t.Context(), context.Background(), trace.ContextWithSpan(t.Context(), nil)} {
		_, ok = Local(ctx)
		assert.False(t, ok)
	}
}

// FromContext returns the same span as the OpenTelemetry API, but nil if there is none.
func TestFromContext(t *testing.T) {
	assert.Nil(t, FromContext(t.Context()))
	_, span := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "span")
	ctx, cancel := context.WithCancel(trace.ContextWithSpan(t.Context(), span))
	defer cancel()
	assert.Same(t, trace.SpanFromContext(ctx), FromContext(ctx))
}
