// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"fmt"
	"maps"
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
	adds     attrs
	seen     []attribute.KeyValue
	params   sdktrace.SamplingParameters
}

func (c *customSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	c.seen = append([]attribute.KeyValue(nil), p.Attributes...)
	c.params = p
	state, _ := trace.ParseTraceState("custom=1")
	return sdktrace.SamplingResult{Decision: c.decision, Attributes: c.adds.list(), Tracestate: state}
}

func (c *customSampler) Description() string { return "Custom{7}" }

// recorder keeps what ended, and what a span had when the first processor saw it.
type recorder struct {
	*tracetest.SpanRecorder

	sets  attrs
	first [][]attribute.KeyValue
}

func (r *recorder) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	r.first = append(r.first, s.Attributes())
	s.SetAttributes(r.sets.list()...)
	r.SpanRecorder.OnStart(ctx, s)
}

func newRecorder(sets attrs) *recorder {
	return &recorder{SpanRecorder: tracetest.NewSpanRecorder(), sets: sets}
}

func newTracer(t *testing.T, opts ...sdktrace.TracerProviderOption) trace.Tracer {
	t.Helper()
	tp := sdktrace.NewTracerProvider(opts...)
	t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
	return tp.Tracer("test")
}

func TestSpans(t *testing.T) {
	for _, tt := range []struct {
		name      string
		ctx       []attrs // what the context had added
		start     attrs   // given at Start
		sampler   attrs   // added by the sampler
		processor attrs   // set by a processor at the start
		set       attrs   // set later

		seen, first, want attrs // by the sampler, by the first processor, in the end
	}{
		{
			name: "a span without any", seen: attrs{}, first: attrs{}, want: attrs{},
		}, {
			name: "on the span", ctx: []attrs{{"a": "ctx"}},
			seen: attrs{"a": "ctx"}, first: attrs{"a": "ctx"}, want: attrs{"a": "ctx"},
		}, {
			name: "the later of the context's wins", ctx: []attrs{{"a": "outer", "b": "outer"}, {"a": "inner"}},
			seen: attrs{"a": "inner", "b": "outer"}, first: attrs{"a": "inner", "b": "outer"}, want: attrs{"a": "inner", "b": "outer"},
		}, {
			name: "beside those given at Start", ctx: []attrs{{"a": "ctx"}}, start: attrs{"b": "start"},
			seen: attrs{"a": "ctx", "b": "start"}, first: attrs{"a": "ctx", "b": "start"}, want: attrs{"a": "ctx", "b": "start"},
		}, {
			name: "those given at Start win", ctx: []attrs{{"a": "ctx"}}, start: attrs{"a": "start"},
			seen: attrs{"a": "start"}, first: attrs{"a": "start"}, want: attrs{"a": "start"},
		}, {
			name: "the sampler's win", ctx: []attrs{{"a": "ctx", "b": "ctx"}}, sampler: attrs{"a": "sampler", "c": "sampler"},
			seen: attrs{"a": "ctx", "b": "ctx"}, first: attrs{"a": "sampler", "b": "ctx", "c": "sampler"}, want: attrs{"a": "sampler", "b": "ctx", "c": "sampler"},
		}, {
			name: "Start over the sampler, as without the context", ctx: []attrs{{"a": "ctx"}}, sampler: attrs{"a": "sampler"}, start: attrs{"a": "start"},
			seen: attrs{"a": "start"}, first: attrs{"a": "start"}, want: attrs{"a": "start"},
		}, {
			name: "a processor's win", ctx: []attrs{{"a": "ctx", "b": "ctx"}}, processor: attrs{"a": "processor"},
			seen: attrs{"a": "ctx", "b": "ctx"}, first: attrs{"a": "ctx", "b": "ctx"}, want: attrs{"a": "processor", "b": "ctx"},
		}, {
			name: "those set later win", ctx: []attrs{{"a": "ctx", "b": "ctx"}}, set: attrs{"a": "set"},
			seen: attrs{"a": "ctx", "b": "ctx"}, first: attrs{"a": "ctx", "b": "ctx"}, want: attrs{"a": "set", "b": "ctx"},
		}, {
			name: "all at once", ctx: []attrs{{"a": "1", "b": "1", "c": "1", "d": "1", "e": "1"}, {"b": "2"}},
			sampler: attrs{"c": "sampler"}, start: attrs{"d": "start"}, set: attrs{"e": "set"},
			seen:  attrs{"a": "1", "b": "2", "c": "1", "d": "start", "e": "1"},
			first: attrs{"a": "1", "b": "2", "c": "sampler", "d": "start", "e": "1"},
			want:  attrs{"a": "1", "b": "2", "c": "sampler", "d": "start", "e": "set"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sampler := &customSampler{decision: sdktrace.RecordAndSample, adds: tt.sampler}
			rec := newRecorder(tt.processor)
			tracer := newTracer(t, WithSampler(sampler), sdktrace.WithSpanProcessor(rec))
			_, span := tracer.Start(with(t.Context(), tt.ctx...), "work", trace.WithAttributes(tt.start.list()...))
			span.SetAttributes(tt.set.list()...)
			span.End()
			assert.Equal(t, tt.seen, asAttrs(t, sampler.seen), "the sampler's")
			assert.Equal(t, tt.first, asAttrs(t, rec.first[0]), "the first processor's")
			assert.Equal(t, tt.want, asAttrs(t, rec.Ended()[0].Attributes()))
			assert.Zero(t, rec.Ended()[0].DroppedAttributes())
			assert.Equal(t, "custom=1", span.SpanContext().TraceState().String())
		})
	}
}

func TestSpanTypes(t *testing.T) {
	rec := newRecorder(nil)
	_, span := newTracer(t, WithSampler(nil), sdktrace.WithSpanProcessor(rec)).Start(ContextWithAttributes(t.Context(), everyType()...), "work")
	span.End()
	assert.ElementsMatch(t, everyType(), rec.Ended()[0].Attributes())
}

// TestSpanScope starts spans here and there in contexts.
func TestSpanScope(t *testing.T) {
	rec := newRecorder(nil)
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
	inside := start(with(outside, attrs{"a": "1"}), "server")
	start(inside, "child")
	start(inside, "new root", trace.WithNewRoot())
	start(with(inside, attrs{"a": "2"}), "deeper")
	start(inside, "sibling")
	start(outside, "outside")
	got := map[string]attrs{}
	for _, s := range rec.Ended() {
		got[s.Name()] = asAttrs(t, s.Attributes())
	}
	assert.Equal(t, map[string]attrs{
		"before": {}, "server": {"a": "1"}, "child": {"a": "1"}, "new root": {"a": "1"}, "deeper": {"a": "2"}, "sibling": {"a": "1"}, "outside": {},
	}, got)
}

// TestSpansOptIn uses a provider that was not asked to.
func TestSpansOptIn(t *testing.T) {
	rec := newRecorder(nil)
	_, span := newTracer(t, sdktrace.WithSpanProcessor(rec)).Start(with(t.Context(), attrs{"a": "1"}), "work")
	span.End()
	assert.Empty(t, rec.Ended()[0].Attributes())
}

// names returns n attributes with a prefix.
func names(prefix string, n int) attrs {
	a := attrs{}
	for i := range n {
		a[fmt.Sprint(prefix, i)] = ""
	}
	return a
}

// and returns the attributes of both.
func (a attrs) and(b attrs) attrs {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// TestSpanLimits has more attributes than are allowed. A limit of few comes from the
// environment.
func TestSpanLimits(t *testing.T) {
	for _, tt := range []struct {
		name          string
		limit         int
		start, sample attrs
		ctx           attrs
		want          attrs
		dropped       int
	}{
		{"no room for the context's", 2, attrs{"s1": "", "s2": ""}, nil, attrs{"a": "", "b": ""}, attrs{"s1": "", "s2": ""}, 2},
		{"room for some, by key", 3, attrs{"s1": "", "s2": ""}, nil, attrs{"a": "", "b": ""}, attrs{"s1": "", "s2": "", "a": ""}, 1},
		{"room for all", 4, attrs{"s1": "", "s2": ""}, nil, attrs{"a": "", "b": ""}, attrs{"s1": "", "s2": "", "a": "", "b": ""}, 0},
		{"no attributes", 0, nil, nil, attrs{"a": "", "b": ""}, attrs{}, 2},
		{"no limit", -1, attrs{"s1": ""}, nil, attrs{"a": ""}, attrs{"s1": "", "a": ""}, 0},
		{"the sampler's and those given at Start come first", 2, attrs{"s1": ""}, attrs{"p1": ""}, attrs{"a": ""}, attrs{"s1": "", "p1": ""}, 1},
		{"an equal key takes no room", 1, attrs{"a": "start"}, nil, attrs{"a": "ctx"}, attrs{"a": "start"}, 0},
		{"8 of 9", 8, names("s", 7), nil, attrs{"a": "", "b": ""}, names("s", 7).and(attrs{"a": ""}), 1},
		{"20 of 30", 20, names("s", 18), names("p", 1), names("a", 11), names("s", 18).and(names("p", 1)).and(attrs{"a0": ""}), 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var opts []sdktrace.TracerProviderOption
			if tt.limit >= fewAttributes {
				limits := sdktrace.NewSpanLimits()
				limits.AttributeCountLimit = tt.limit
				opts = append(opts, sdktrace.WithRawSpanLimits(limits))
			} else {
				t.Setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", strconv.Itoa(tt.limit))
			}
			rec := newRecorder(nil)
			tracer := newTracer(t, append(opts, sdktrace.WithSpanProcessor(rec),
				WithSampler(&customSampler{decision: sdktrace.RecordAndSample, adds: tt.sample}))...)
			_, span := tracer.Start(with(t.Context(), tt.ctx), "work", trace.WithAttributes(tt.start.list()...))
			span.End()
			assert.Equal(t, tt.want, asAttrs(t, rec.Ended()[0].Attributes()))
			assert.Equal(t, tt.dropped, rec.Ended()[0].DroppedAttributes())
		})
	}
}

// TestSpanInvalidAttributes counts what cannot be set once, as without the context.
func TestSpanInvalidAttributes(t *testing.T) {
	rec := newRecorder(nil)
	tracer := newTracer(t, WithSampler(nil), sdktrace.WithSpanProcessor(rec))
	for i, n := range []int{1, fewAttributes} {
		_, span := tracer.Start(with(t.Context(), attrs{"a": "1"}), "work",
			trace.WithAttributes(append(names("s", n).list(), attribute.String("", "x"))...))
		span.End()
		assert.Equal(t, names("s", n).and(attrs{"a": "1"}), asAttrs(t, rec.Ended()[i].Attributes()))
		assert.Equal(t, 1, rec.Ended()[i].DroppedAttributes())
	}
}

func TestSpanValueLimit(t *testing.T) {
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = 3
	rec := newRecorder(nil)
	_, span := newTracer(t, sdktrace.WithRawSpanLimits(limits), sdktrace.WithSpanProcessor(rec), WithSampler(nil)).Start(
		with(t.Context(), attrs{"a": "123456"}), "work")
	span.End()
	assert.Equal(t, attrs{"a": "123"}, asAttrs(t, rec.Ended()[0].Attributes()))
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
		&customSampler{decision: sdktrace.RecordOnly, adds: attrs{"x": "y"}},
	} {
		t.Run(s.Description(), func(t *testing.T) {
			wrapped := NewSampler(s)
			assert.Equal(t, "ContextScopedAttributes{"+s.Description()+"}", wrapped.Description())
			for name, ctx := range parents {
				for i := range 64 {
					p := sdktrace.SamplingParameters{ParentContext: ctx, TraceID: trace.TraceID{0: 1, 8: byte(i * 4)}, Name: "work", Kind: trace.SpanKindServer}
					byHand := p
					p.ParentContext = with(ctx, attrs{"sample": "yes"})
					byHand.Attributes = []attribute.KeyValue{attribute.String("sample", "yes")}
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
	yes, no := with(t.Context(), attrs{"z": "", "sample": "yes", "b": ""}), with(t.Context(), attrs{"sample": "no"})
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
	rec := newRecorder(nil)
	tracer := newTracer(t, WithSampler(clearing{sdktrace.AlwaysSample()}), sdktrace.WithSpanProcessor(rec))
	ctx := with(t.Context(), attrs{"a": "1", "b": "2"})
	for i := range 2 {
		_, span := tracer.Start(ctx, "work", trace.WithAttributes(attribute.Int("s", 1)))
		span.End()
		assert.Equal(t, attrs{"a": "1", "b": "2", "s": "1"}, asAttrs(t, rec.Ended()[i].Attributes()))
	}
}

// TestSamplerInsideOthers has a sampler above that records what this one drops.
func TestSamplerInsideOthers(t *testing.T) {
	rec := newRecorder(nil)
	_, span := newTracer(t, sdktrace.WithSampler(recordAll{NewSampler(sdktrace.NeverSample())}), sdktrace.WithSpanProcessor(rec)).Start(
		with(t.Context(), attrs{"a": "1"}), "work")
	span.End()
	assert.Equal(t, attrs{"a": "1"}, asAttrs(t, rec.Ended()[0].Attributes()))
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
	rec := newRecorder(nil)
	_, span := newTracer(t, WithSampler(nil), sdktrace.WithSpanProcessor(rec)).Start(nil, "work") //nolint:staticcheck // SA1012: what is tested
	span.End()
	assert.Empty(t, rec.Ended()[0].Attributes())
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
						_, got := scoped.Start(with(ctx, attrs{"a": "1"}), "work")
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
	ctx := with(t.Context(), attrs{"a": "1"})
	rec := newRecorder(nil)
	_, span := newTracer(t, WithSampler(nil), sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(rec)).Start(ctx, "work")
	span.End()
	_, span = newTracer(t, sdktrace.WithSampler(sdktrace.NeverSample()), WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(rec)).Start(ctx, "work")
	span.End()
	require.Len(t, rec.Ended(), 2)
	assert.Empty(t, rec.Ended()[0].Attributes())
	assert.Equal(t, attrs{"a": "1"}, asAttrs(t, rec.Ended()[1].Attributes()))
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
		set := AttributesFromContext(ctx)
		byHand := append([]attribute.KeyValue(nil), start...)
		given := map[attribute.Key]bool{}
		for _, kv := range append(append([]attribute.KeyValue(nil), own...), start...) {
			given[kv.Key] = given[kv.Key] || kv.Valid()
		}
		delete(given, "")
		for _, kv := range set.ToSlice() {
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
