// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// customSampler adds attributes and a trace state, and notes what it was shown.
type customSampler struct {
	decision sdktrace.SamplingDecision
	adds     string
	seen     []attribute.KeyValue
}

func (c *customSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	c.seen = append([]attribute.KeyValue(nil), p.Attributes...)
	state, _ := trace.ParseTraceState("custom=1")
	return sdktrace.SamplingResult{Decision: c.decision, Attributes: list(c.adds), Tracestate: state}
}

func (c *customSampler) Description() string { return "Custom{7}" }

// recorder keeps what ended, and what a span had when the first processor saw it.
type recorder struct {
	*tracetest.SpanRecorder

	sets  string
	first [][]attribute.KeyValue
}

func (r *recorder) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	r.first = append(r.first, s.Attributes())
	s.SetAttributes(list(r.sets)...)
	r.SpanRecorder.OnStart(ctx, s)
}

func newRecorder(sets string) *recorder {
	return &recorder{SpanRecorder: tracetest.NewSpanRecorder(), sets: sets}
}

func newTracer(t *testing.T, opts ...sdktrace.TracerProviderOption) trace.Tracer {
	t.Helper()
	tp := sdktrace.NewTracerProvider(opts...)
	t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
	return tp.Tracer("test")
}

// TestSpans has others add attributes and see what there is. What Start alone does is
// tested with the other signals.
func TestSpans(t *testing.T) {
	for name, tt := range map[string]struct {
		ctx     []string // what the context had added
		start   string   // given at Start
		sampler string   // added by the sampler
		onStart string   // set by a processor at the start
		set     string   // set later

		seen, first, want string // by the sampler, by the first processor, in the end
	}{
		"none": {},
		"the context's": {
			ctx: []string{"a=ctx"}, start: "b=start",
			seen: "a=ctx b=start", first: "a=ctx b=start", want: "a=ctx b=start",
		},
		"those given at Start win": {
			ctx: []string{"a=ctx"}, start: "a=start",
			seen: "a=start", first: "a=start", want: "a=start",
		},
		"the sampler's win": {
			ctx: []string{"a=ctx b=ctx"}, sampler: "a=sampler c=sampler",
			seen: "a=ctx b=ctx", first: "a=sampler b=ctx c=sampler", want: "a=sampler b=ctx c=sampler",
		},
		"Start over the sampler, as without the context": {
			ctx: []string{"a=ctx"}, sampler: "a=sampler", start: "a=start",
			seen: "a=start", first: "a=start", want: "a=start",
		},
		"a processor's win": {
			ctx: []string{"a=ctx b=ctx"}, onStart: "a=processor",
			seen: "a=ctx b=ctx", first: "a=ctx b=ctx", want: "a=processor b=ctx",
		},
		"all at once, those set later win": {
			ctx: []string{"a=1 b=1 c=1 d=1 e=1", "b=2"}, sampler: "c=sampler", start: "d=start", set: "e=set",
			seen: "a=1 b=2 c=1 d=start e=1", first: "a=1 b=2 c=sampler d=start e=1", want: "a=1 b=2 c=sampler d=start e=set",
		},
	} {
		t.Run(name, func(t *testing.T) {
			sampler := &customSampler{decision: sdktrace.RecordAndSample, adds: tt.sampler}
			rec := newRecorder(tt.onStart)
			tracer := newTracer(t, WithSampler(sampler), sdktrace.WithSpanProcessor(rec))
			_, span := tracer.Start(with(t.Context(), tt.ctx...), "work", trace.WithAttributes(list(tt.start)...))
			span.SetAttributes(list(tt.set)...)
			span.End()
			equal(t, tt.seen, sampler.seen, "the sampler's")
			equal(t, tt.first, rec.first[0], "the first processor's")
			equal(t, tt.want, rec.Ended()[0].Attributes())
			assert.Zero(t, rec.Ended()[0].DroppedAttributes())
			assert.Equal(t, "custom=1", span.SpanContext().TraceState().String())
		})
	}
}

// TestSpanScope starts spans here and there in contexts.
func TestSpanScope(t *testing.T) {
	rec := newRecorder("")
	tracer := newTracer(t, WithSampler(nil), sdktrace.WithSpanProcessor(rec))
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
	assert.Len(t, rec.Ended(), len(want))
	for _, s := range rec.Ended() {
		equal(t, want[s.Name()], s.Attributes(), s.Name())
	}
}

// TestSpanLimits has more attributes than are allowed. A limit of few comes from the
// environment.
func TestSpanLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limit                    int
		start, sample, ctx, want string
		dropped                  int
	}{
		"no room for the context's": {2, "s1= s2=", "", "a= b=", "s1= s2=", 2},
		"room for some, by key":     {3, "s1= s2=", "", "a= b=", "s1= s2= a=", 1},
		"room for all":              {4, "s1= s2=", "", "a= b=", "s1= s2= a= b=", 0},
		"no attributes":             {0, "", "", "a= b=", "", 2},
		"no limit":                  {-1, "s1=", "", "a=", "s1= a=", 0},
		"the sampler's and those given at Start come first": {2, "s1=", "p1=", "a=", "s1= p1=", 1},
		"an equal key takes no room":                        {1, "a=start", "", "a=ctx", "a=start", 0},
		"8 of 9":                                            {8, some("s", 7), "", "a= b=", some("s", 7) + " a=", 1},
		"20 of 30":                                          {20, some("s", 18), "p0=", some("a", 11), some("s", 18) + " p0= a0=", 10},
	} {
		t.Run(name, func(t *testing.T) {
			var opts []sdktrace.TracerProviderOption
			if tt.limit >= fewAttributes {
				limits := sdktrace.NewSpanLimits()
				limits.AttributeCountLimit = tt.limit
				opts = append(opts, sdktrace.WithRawSpanLimits(limits))
			} else {
				t.Setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", strconv.Itoa(tt.limit))
			}
			rec := newRecorder("")
			tracer := newTracer(t, append(opts, sdktrace.WithSpanProcessor(rec),
				WithSampler(&customSampler{decision: sdktrace.RecordAndSample, adds: tt.sample}))...)
			_, span := tracer.Start(with(t.Context(), tt.ctx), "work", trace.WithAttributes(list(tt.start)...))
			span.End()
			equal(t, tt.want, rec.Ended()[0].Attributes())
			assert.Equal(t, tt.dropped, rec.Ended()[0].DroppedAttributes())
		})
	}
	t.Run("of a value", func(t *testing.T) {
		limits := sdktrace.NewSpanLimits()
		limits.AttributeValueLengthLimit = 3
		rec := newRecorder("")
		_, span := newTracer(t, sdktrace.WithRawSpanLimits(limits), sdktrace.WithSpanProcessor(rec), WithSampler(nil)).Start(
			with(t.Context(), "a=123456"), "work")
		span.End()
		equal(t, "a=123", rec.Ended()[0].Attributes())
	})
}

// TestSpanInvalidAttributes counts what cannot be set once, as without the context.
func TestSpanInvalidAttributes(t *testing.T) {
	rec := newRecorder("")
	tracer := newTracer(t, WithSampler(nil), sdktrace.WithSpanProcessor(rec))
	for i, n := range []int{1, fewAttributes} {
		_, span := tracer.Start(with(t.Context(), "a=1"), "work", trace.WithAttributes(list(some("s", n)+" =x")...))
		span.End()
		equal(t, some("s", n)+" a=1", rec.Ended()[i].Attributes())
		assert.Equal(t, 1, rec.Ended()[i].DroppedAttributes())
	}
}

// TestSamplersDecide compares the decisions of samplers with what they are inside of
// NewSampler.
func TestSamplersDecide(t *testing.T) {
	byAttribute := &attributeSampler{}
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
		&customSampler{decision: sdktrace.RecordOnly, adds: "x=y"},
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
					p.ParentContext = ctx
					require.Equal(t, s.ShouldSample(p), wrapped.ShouldSample(p), "without attributes in the context")
				}
			}
		})
	}
}

// attributeSampler samples what has an attribute sample=yes.
type attributeSampler struct{}

func (attributeSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	// Sets are made in place, of what is passed.
	set := attribute.NewSet(p.Attributes...)
	if v, ok := set.Value("sample"); ok && v.AsString() == "yes" {
		return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

func (attributeSampler) Description() string { return "Attribute" }

// TestSamplerByAttribute decides by an attribute that only the context has, from many
// goroutines that share it.
func TestSamplerByAttribute(t *testing.T) {
	tracer := newTracer(t, WithSampler(attributeSampler{}), sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder()))
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

// clearing is a sampler that writes to what it is shown.
type clearing struct{ sdktrace.Sampler }

func (c clearing) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	for i := range p.Attributes {
		p.Attributes[i] = attribute.Int("cleared", i)
	}
	return c.Sampler.ShouldSample(p)
}

// TestSamplerWrites has a sampler write to what it is shown: to nothing that is used
// again.
func TestSamplerWrites(t *testing.T) {
	rec := newRecorder("")
	tracer := newTracer(t, WithSampler(clearing{sdktrace.AlwaysSample()}), sdktrace.WithSpanProcessor(rec))
	ctx := with(t.Context(), "a=1 b=2")
	for i := range 2 {
		_, span := tracer.Start(ctx, "work", trace.WithAttributes(attribute.Int("s", 1)))
		span.End()
		equal(t, "a=1 b=2 s=1", rec.Ended()[i].Attributes())
	}
}

// TestSamplerInsideOthers has a sampler above that records what this one drops.
func TestSamplerInsideOthers(t *testing.T) {
	rec := newRecorder("")
	_, span := newTracer(t, sdktrace.WithSampler(recordAll{NewSampler(sdktrace.NeverSample())}), sdktrace.WithSpanProcessor(rec)).Start(
		with(t.Context(), "a=1"), "work")
	span.End()
	equal(t, "a=1", rec.Ended()[0].Attributes())
}

type recordAll struct{ sdktrace.Sampler }

func (r recordAll) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	result := r.Sampler.ShouldSample(p)
	result.Decision = sdktrace.RecordOnly
	return result
}

// TestSamplerNilContext asks without a context, as the SDK never does.
func TestSamplerNilContext(t *testing.T) {
	s := NewSampler(sdktrace.AlwaysSample())
	assert.Equal(t, sdktrace.RecordAndSample, s.ShouldSample(sdktrace.SamplingParameters{}).Decision)
}

// fixedID gives every root span the same trace id.
type fixedID struct{ id trace.TraceID }

func (f fixedID) NewIDs(context.Context) (trace.TraceID, trace.SpanID)  { return f.id, trace.SpanID{1} }
func (f fixedID) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return trace.SpanID{1} }

// TestSamplerFromEnvironment compares with a provider that has no such option.
func TestSamplerFromEnvironment(t *testing.T) {
	// The provider reports what is wrong in the environment, each time.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { fmt.Fprintln(os.Stderr, err) })) })
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
				bare, scoped := newTracer(t, id), newTracer(t, id, WithSampler(nil))
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

// TestWithSamplerLast has the last sampler hold, as it does in the SDK.
func TestWithSamplerLast(t *testing.T) {
	ctx := with(t.Context(), "a=1")
	rec := newRecorder("")
	_, span := newTracer(t, WithSampler(nil), sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(rec)).Start(ctx, "work")
	span.End()
	_, span = newTracer(t, sdktrace.WithSampler(sdktrace.NeverSample()), WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(rec)).Start(ctx, "work")
	span.End()
	require.Len(t, rec.Ended(), 2)
	assert.Empty(t, rec.Ended()[0].Attributes())
	equal(t, "a=1", rec.Ended()[1].Attributes())
}

// FuzzSpan compares with the bare SDK that is given the same by hand: what a context has
// and neither Start nor the sampler gives, behind what Start gives.
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
		wrapped := func(s sdktrace.Sampler) sdktrace.Sampler { // as with that limit in the environment
			w := NewSampler(s).(*sampler)
			if limits.AttributeCountLimit >= 0 {
				w.few = min(w.few, limits.AttributeCountLimit)
			}
			return w
		}
		run := func(ctx context.Context, wrap func(sdktrace.Sampler) sdktrace.Sampler, attributes ...attribute.KeyValue) sdktrace.ReadOnlySpan {
			rec := tracetest.NewSpanRecorder()
			tp := sdktrace.NewTracerProvider(sdktrace.WithRawSpanLimits(limits), sdktrace.WithSpanProcessor(rec), sdktrace.WithSampler(wrap(adding{own})))
			_, span := tp.Tracer("").Start(ctx, "work", trace.WithAttributes(attributes...))
			span.SetAttributes(later...)
			span.End()
			return rec.Ended()[0]
		}
		ctx := t.Context()
		for _, list := range scoped {
			ctx = ContextWithAttributes(ctx, list...)
		}
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
		want := run(t.Context(), func(s sdktrace.Sampler) sdktrace.Sampler { return s }, byHand...)
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

// adding is a sampler that adds attributes.
type adding struct{ attrs []attribute.KeyValue }

func (a adding) ShouldSample(sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample, Attributes: a.attrs}
}
func (adding) Description() string { return "Adding" }
