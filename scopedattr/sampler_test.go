// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
)

// samplerFunc is a sampler that calls a function.
type samplerFunc func(sdktrace.SamplingParameters) sdktrace.SamplingResult

func (f samplerFunc) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult { return f(p) }

func (samplerFunc) Description() string { return "Func{7}" }

// adding returns a sampler that makes the given decision and adds attributes and a trace state.
func adding(decision sdktrace.SamplingDecision, attributes ...attribute.KeyValue) samplerFunc {
	state, _ := trace.ParseTraceState("custom=1")
	return func(sdktrace.SamplingParameters) sdktrace.SamplingResult {
		return sdktrace.SamplingResult{Decision: decision, Attributes: attributes, Tracestate: state}
	}
}

// byAttribute samples spans with the attribute sample=yes.
var byAttribute samplerFunc = func(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	// NewSet sorts p.Attributes in place, which a sampler is allowed to do.
	set := attribute.NewSet(p.Attributes...)
	if v, ok := set.Value("sample"); ok && v.AsString() == "yes" {
		return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

// TestSpans combines attributes from the context, Start, a sampler and a processor, and checks
// which ones the sampler and the processors see. TestEachSignal tests Start alone.
func TestSpans(t *testing.T) {
	for name, tt := range map[string]struct {
		ctx     []string // layers of the context
		start   string   // given at Start
		sampler string   // added by the sampler
		set     string   // set by a processor in OnStart

		seen, first, want string // seen by the sampler, seen by the first processor, final
	}{
		"the sampler's win": {
			ctx: []string{"a=ctx b=ctx"}, sampler: "a=sampler c=sampler",
			seen: "a=ctx b=ctx", first: "a=sampler b=ctx c=sampler", want: "a=sampler b=ctx c=sampler",
		},
		"Start over the sampler, as without the context": {
			ctx: []string{"a=ctx"}, sampler: "a=sampler", start: "a=start",
			seen: "a=start", first: "a=start", want: "a=start",
		},
		"a processor's win": {
			ctx: []string{"a=ctx b=ctx"}, set: "a=processor",
			seen: "a=ctx b=ctx", first: "a=ctx b=ctx", want: "a=processor b=ctx",
		},
		"all at once, those set after the start win": {
			ctx: []string{"a=1 b=1 c=1 d=1 e=1", "b=2"}, sampler: "c=sampler", start: "d=start", set: "e=set",
			seen: "a=1 b=2 c=1 d=start e=1", first: "a=1 b=2 c=sampler d=start e=1", want: "a=1 b=2 c=sampler d=start e=set",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var seen, first []attribute.KeyValue
			sampler := samplerFunc(func(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
				seen = slices.Clone(p.Attributes)
				return adding(sdktrace.RecordAndSample, list(tt.sampler)...)(p)
			})
			processor := oteltest.SpanProcessor{Start: func(s sdktrace.ReadWriteSpan) {
				first = slices.Clone(s.Attributes()) // SDKs before v1.46.0 modify the slice.
				s.SetAttributes(list(tt.set)...)
			}}
			span := endedSpan(t, with(t.Context(), tt.ctx...), list(tt.start), WithSampler(sampler), sdktrace.WithSpanProcessor(processor))
			equal(t, tt.seen, seen, "the sampler's")
			equal(t, tt.first, first, "the first processor's")
			equal(t, tt.want, span.Attributes())
			assert.Zero(t, span.DroppedAttributes())
			assert.Equal(t, "custom=1", span.SpanContext().TraceState().String())
		})
	}
}

// TestSpanScope checks that a span has the attributes of its own context only.
func TestSpanScope(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := oteltest.Tracer(t, WithSampler(nil), sdktrace.WithSpanProcessor(spans))
	remote := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	start := func(ctx context.Context, name string, opts ...trace.SpanStartOption) context.Context {
		ctx, span := tracer.Start(ctx, name, opts...)
		span.End()
		return ctx
	}
	outside := start(remote, "before")
	inside := start(with(outside, "a=1"), "server")
	start(inside, "child")
	start(inside, "new root", trace.WithNewRoot())
	start(with(inside, "a=2"), "deeper")
	start(inside, "sibling")
	start(outside, "outside")
	want := map[string]string{
		"before": "", "server": "a=1", "child": "a=1", "new root": "a=1", "deeper": "a=2", "sibling": "a=1", "outside": "",
	}
	assert.Len(t, spans.Ended(), len(want))
	for _, s := range spans.Ended() {
		equal(t, want[s.Name()], s.Attributes(), s.Name())
	}
}

// TestSpanInvalidAttributes checks that an invalid attribute is counted as dropped only once, even
// if the context has attributes.
func TestSpanInvalidAttributes(t *testing.T) {
	for _, n := range []int{1, fewAttributes} {
		span := endedSpan(t, with(t.Context(), "a=1"), list(some("s", n)+" =x"), WithSampler(nil))
		equal(t, some("s", n)+" a=1", span.Attributes())
		assert.Equal(t, 1, span.DroppedAttributes())
	}
}

// TestSamplersDecide checks that NewSampler does not change the decisions of samplers.
func TestSamplersDecide(t *testing.T) {
	parents := map[string]context.Context{"none": t.Context()}
	for name, flags := range map[string]trace.TraceFlags{"sampled": trace.FlagsSampled, "unsampled": 0} {
		state, err := trace.ParseTraceState("vendor=x")
		require.NoError(t, err)
		sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags, TraceState: state})
		parents["local "+name] = trace.ContextWithSpanContext(t.Context(), sc)
		parents["remote "+name] = trace.ContextWithRemoteSpanContext(t.Context(), sc)
	}
	for _, s := range []sdktrace.Sampler{
		sdktrace.AlwaysSample(), sdktrace.NeverSample(), sdktrace.TraceIDRatioBased(0.5),
		sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.3)), sdktrace.ParentBased(sdktrace.NeverSample(), sdktrace.WithRemoteParentSampled(sdktrace.NeverSample())),
		sdktrace.AlwaysRecord(sdktrace.TraceIDRatioBased(0.5)), byAttribute,
		adding(sdktrace.RecordOnly, list("x=y")...),
	} {
		t.Run(s.Description(), func(t *testing.T) {
			wrapped := NewSampler(s)
			assert.Equal(t, "ContextScopedAttributes{"+s.Description()+"}", wrapped.Description())
			for name, ctx := range parents {
				for i := range 64 {
					p := sdktrace.SamplingParameters{ParentContext: ctx, TraceID: trace.TraceID{0: 1, 8: byte(i * 4)}, Name: "work", Kind: trace.SpanKindServer}
					byHand := p
					p.ParentContext = with(ctx, "sample=yes")
					byHand.Attributes = list("sample=yes")
					want, got := s.ShouldSample(byHand), wrapped.ShouldSample(p)
					require.Equal(t, want.Decision, got.Decision, name)
					require.Equal(t, want.Tracestate, got.Tracestate, name)
					require.Subset(t, got.Attributes, want.Attributes, name)
					require.Contains(t, got.Attributes, byHand.Attributes[0], "also if dropped: a sampler outside may record the span")
					p.ParentContext = ctx
					require.Equal(t, s.ShouldSample(p), wrapped.ShouldSample(p), "without attributes in the context")
				}
			}
		})
	}
}

// TestSamplerByAttribute checks that a sampler can decide by an attribute of the context, even if
// many goroutines share the context.
func TestSamplerByAttribute(t *testing.T) {
	tracer := oteltest.Tracer(t, WithSampler(byAttribute), sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder()))
	yes, no := with(t.Context(), "z= sample=yes b="), with(t.Context(), "sample=no")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				_, span := tracer.Start(yes, "work", trace.WithAttributes(attribute.Int("y", 1)))
				assert.True(t, span.IsRecording())
				span.End()
				_, span = tracer.Start(no, "work")
				assert.False(t, span.IsRecording())
				span.End()
			}
		})
	}
	wg.Wait()
}

// TestSamplerWrites checks that a sampler that overwrites the attributes it gets changes neither
// spans nor the context.
func TestSamplerWrites(t *testing.T) {
	ctx := with(t.Context(), "a=1 b=2")
	clearing := samplerFunc(func(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
		for i := range p.Attributes {
			p.Attributes[i] = attribute.Int("cleared", i)
		}
		return sdktrace.AlwaysSample().ShouldSample(p)
	})
	for range 2 {
		span := endedSpan(t, ctx, list("s=1"), WithSampler(clearing))
		equal(t, "a=1 b=2 s=1", span.Attributes())
	}
}

// TestSamplerNilContext checks that sampling works without a context, even though the SDK always
// passes one.
func TestSamplerNilContext(t *testing.T) {
	s := NewSampler(sdktrace.AlwaysSample())
	assert.Equal(t, sdktrace.RecordAndSample, s.ShouldSample(sdktrace.SamplingParameters{}).Decision)
}

// fixedID gives every root span the same trace id.
type fixedID struct{ id trace.TraceID }

func (f fixedID) NewIDs(context.Context) (trace.TraceID, trace.SpanID)  { return f.id, trace.SpanID{1} }
func (f fixedID) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return trace.SpanID{1} }

// TestSamplerFromEnvironment checks that WithSampler(nil) samples like a provider without a sampler
// option.
func TestSamplerFromEnvironment(t *testing.T) {
	oteltest.HandledErrors(t) // Each provider reports the errors in the environment.
	for _, env := range [][2]string{
		{},
		{"always_on"},
		{"always_off"},
		{" Always_OFF "},
		{"traceidratio", "0.25"},
		{"traceidratio"},
		{"traceidratio", " 0 "},
		{"traceidratio", "-1"},
		{"traceidratio", "1.5"},
		{"traceidratio", "NaN"},
		{"traceidratio", "x"},
		{"parentbased_always_on"},
		{"parentbased_always_off"},
		{"parentbased_traceidratio", "0.25"},
		{"parentbased_traceidratio"},
		{"parentbased_traceidratio", "2"},
		{"unknown"},
	} {
		t.Run(env[0]+" "+env[1], func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", env[0])
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", env[1])
			var sampled int
			for i := range 32 {
				id := sdktrace.WithIDGenerator(fixedID{trace.TraceID{8: byte(i * 8), 15: 1}})
				bare, scoped := oteltest.Tracer(t, id), oteltest.Tracer(t, id, WithSampler(nil))
				for _, parent := range []trace.TraceFlags{0, trace.FlagsSampled} {
					for _, ctx := range []context.Context{t.Context(), trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
						TraceID: trace.TraceID{8: byte(i * 8), 15: 1}, SpanID: trace.SpanID{2}, TraceFlags: parent,
					}))} {
						_, want := bare.Start(ctx, "work")
						_, got := scoped.Start(with(ctx, "a=1"), "work")
						require.Equal(t, want.SpanContext(), got.SpanContext())
						if got.SpanContext().IsSampled() {
							sampled++
						}
						want.End()
						got.End()
					}
				}
			}
			t.Logf("%d of 128 sampled", sampled)
		})
	}
}

// TestWithSamplerLast checks that the last sampler option wins, as in the SDK.
func TestWithSamplerLast(t *testing.T) {
	ctx := with(t.Context(), "a=1")
	assert.Empty(t, endedSpan(t, ctx, nil, WithSampler(nil), sdktrace.WithSampler(sdktrace.AlwaysSample())).Attributes())
	equal(t, "a=1", endedSpan(t, ctx, nil, sdktrace.WithSampler(sdktrace.NeverSample()), WithSampler(sdktrace.AlwaysSample())).Attributes())
}

// FuzzSpan checks that a wrapped sampler gives spans the same attributes as the bare SDK does if
// all attributes are passed explicitly: those given at Start, then those of the context that
// neither Start nor the sampler sets.
func FuzzSpan(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0xff, 1, 2, 0xff, 3, 4, 31, 0xff, 0x81, 0xff, 6}, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, limit uint8) {
		lists := append(sequence(data), nil, nil, nil, nil)
		own, start, later, scoped := lists[0], lists[1], lists[2], lists[3:]
		limits := sdktrace.NewSpanLimits()
		limits.AttributeCountLimit = int(limit % 16)
		if limit >= 240 {
			limits.AttributeCountLimit = -1
		}
		wrapped := NewSampler(adding(sdktrace.RecordAndSample, own...)).(*sampler)
		if limits.AttributeCountLimit >= 0 { // as with that limit in the environment
			wrapped.few = min(wrapped.few, limits.AttributeCountLimit)
		}
		set := oteltest.SpanProcessor{Start: func(s sdktrace.ReadWriteSpan) { s.SetAttributes(later...) }}
		run := func(ctx context.Context, s sdktrace.Sampler, attributes ...attribute.KeyValue) sdktrace.ReadOnlySpan {
			return endedSpan(t, ctx, attributes, sdktrace.WithRawSpanLimits(limits), sdktrace.WithSpanProcessor(set), sdktrace.WithSampler(s))
		}
		ctx := withLists(t.Context(), scoped)
		all := AttributesFromContext(ctx)
		byHand := append([]attribute.KeyValue(nil), start...)
		given := map[attribute.Key]bool{}
		for _, kv := range append(append([]attribute.KeyValue(nil), own...), start...) {
			given[kv.Key] = given[kv.Key] || kv.Valid()
		}
		delete(given, "")
		for _, kv := range all.ToSlice() {
			if !given[kv.Key] {
				byHand = append(byHand, kv)
			}
		}
		want := run(t.Context(), wrapped.Sampler, byHand...)
		got := run(ctx, wrapped, start...)
		require.ElementsMatch(t, want.Attributes(), got.Attributes())
		excess := max(0, len(given)-limits.AttributeCountLimit)
		if limits.AttributeCountLimit < 0 {
			excess = 0
		}
		if excess == 0 {
			require.Equal(t, want.DroppedAttributes(), got.DroppedAttributes())
		} else {
			require.GreaterOrEqual(t, got.DroppedAttributes(), want.DroppedAttributes())
		}
	})
}
