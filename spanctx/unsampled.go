// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// TracerProvider is a provider of the SDK whose spans are published, including the unsampled ones: see
// [PublishAll]. Its methods other than Tracer are the SDK's.
type TracerProvider struct {
	*sdktrace.TracerProvider

	processor *SpanProcessor
	// reference is that of TracerProvider, or nil before its first unsampled span.
	reference atomic.Pointer[providers.Reference]
}

// PublishAll publishes all spans of tp, including those that its sampler drops. It registers the result
// of [ForProvider] with tp, and returns a TracerProvider to be used instead of tp:
//
//	tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithBatcher(exporter))
//	otel.SetTracerProvider(spanctx.PublishAll(tp))
//
// Use it instead of [WithPublishing] if traces are sampled. The SDK does not pass unsampled spans to
// span processors, so WithPublishing publishes the sampled ones only.
//
// Unsampled spans are still not exported, and their attributes and events are dropped. They are published
// from Start to the first call of End, under the same rules as sampled spans. Until then, IsRecording
// returns true, because libraries such as otelgrpc do not end a span that is not recording. Readers see
// that they are not sampled. Profiles contain their ids, which no tracing backend knows.
//
// Sampled spans are the SDK's own. Their method TracerProvider returns tp, whose tracers do not publish
// unsampled spans.
func PublishAll(tp *sdktrace.TracerProvider, opts ...Option) *TracerProvider {
	p := ForProvider(opts...)
	if p != nil {
		tp.RegisterSpanProcessor(p)
	}
	return &TracerProvider{TracerProvider: tp, processor: p}
}

// Tracer returns the SDK's tracer with this name and these options, except that its unsampled spans are
// published.
func (tp *TracerProvider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	t := tp.TracerProvider.Tracer(name, opts...)
	if tp.processor == nil {
		return t
	}
	return &tracer{t, tp}
}

// tracer is a tracer of the SDK whose unsampled spans are published.
type tracer struct {
	trace.Tracer

	provider *TracerProvider
}

// Start starts a span of the SDK. If the span is recorded, the SDK passes it to its span processors.
// Otherwise Start publishes and returns an unsampledSpan with the same SpanContext.
func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	// Look up the parent before the SDK starts the span: in programs built with otelc, this function
	// returns the span that the goroutine has started last if ctx has none.
	parent := trace.SpanContextFromContext(ctx)
	started, span := t.Tracer.Start(ctx, name, opts...)
	if _, recorded := span.(sdktrace.ReadOnlySpan); recorded {
		return started, span
	}
	sc := span.SpanContext()
	k, up := sdkspan.Of(sc), sdkspan.Of(parent)
	if !sc.IsValid() || k == up {
		return started, span // The provider has been shut down, so its tracers start no spans of their own.
	}
	r, c := t.provider.started(), current.Load()
	if r == nil || c == nil {
		return started, span
	}
	s := &spanContext{Context: started, span: unsampledSpan{Span: span, provider: t.provider, name: name}}
	child := up.SpanID != 0 && up.TraceIDHigh == k.TraceIDHigh && up.TraceIDLow == k.TraceIDLow
	if !child || parent.IsRemote() {
		up = sdkspan.Key{}
	}
	s.span.parent = up.SpanID
	if ctx == nil {
		ctx = context.Background()
	}
	c.path.StartUnrecorded(ctx, k, sc.TraceFlags(), up, name, child, r)
	return s, &s.span
}

// started returns the provider's reference, or nil if its spans must not be published.
func (tp *TracerProvider) started() *providers.Reference {
	if r := tp.reference.Load(); r != nil && r.Counts() {
		return r
	}
	r := tp.processor.handle.StartedUnrecorded(tp.TracerProvider)
	tp.reference.Store(r)
	return r
}

// spanContext is the context that Start returns. It contains its span, which saves an allocation.
type spanContext struct {
	context.Context //nolint:containedctx // it is a context

	span unsampledSpan
}

// Value returns the span for the key by which package trace looks up a span.
func (c *spanContext) Value(key any) any {
	if key == sdkspan.ContextKey {
		return &c.span
	}
	return c.Context.Value(key)
}

// unsampledSpan is a span that is published, but whose data is dropped.
type unsampledSpan struct {
	trace.Span // the SDK's

	provider *TracerProvider
	// parent is the span id of the parent, or 0 if the span has no local parent.
	parent uint64
	// name is the name passed to Start, and renamed the name set by SetName, or nil.
	name    string
	renamed atomic.Pointer[string]
	ended   atomic.Bool
}

// End stops publishing the span. Only the first call has an effect.
func (u *unsampledSpan) End(opts ...trace.SpanEndOption) {
	if u.ended.CompareAndSwap(false, true) {
		if p := u.provider.processor.lastPath(); p != nil {
			p.EndUnrecorded(sdkspan.Of(u.SpanContext()))
		}
	}
	u.Span.End(opts...) // In programs built with otelc, the goroutine leaves the span.
}

// IsRecording returns true until End. Otherwise otelgrpc would not end the span, and a tracer of package
// trace/noop would return it as its own span, and let its caller end it.
func (u *unsampledSpan) IsRecording() bool { return !u.ended.Load() }

// SetName sets the name that Attach and Refresh publish.
func (u *unsampledSpan) SetName(name string) {
	if c := current.Load(); c != nil && c.names != nil && !u.ended.Load() {
		u.renamed.Store(&name)
	}
}

// ParentAndName implements [spanpath.Unrecorded].
func (u *unsampledSpan) ParentAndName() (parent sdkspan.Key, name string) {
	if u.parent != 0 {
		parent = sdkspan.Of(u.SpanContext())
		parent.SpanID = u.parent
	}
	if name := u.renamed.Load(); name != nil {
		return parent, *name
	}
	return parent, u.name
}

// TracerProvider returns the provider whose tracers publish unsampled spans.
func (u *unsampledSpan) TracerProvider() trace.TracerProvider { return u.provider }
