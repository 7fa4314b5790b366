// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	otelpyroscope "github.com/grafana/otel-profiling-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

// noop is the baseline's processor, which does nothing. Without a processor the SDK would record no
// spans.
var noop = oteltest.SpanProcessor{}

// published maps the name of a carrier to the options that disable names and all other carriers, except
// the goroutine table, which is always on.
var published = map[string][]spanctx.Option{
	"slots":  {spanctx.WithSpanNames(false), spanctx.WithLabels(spanctx.LabelsOff)},
	"gslots": {spanctx.WithSpanNames(false), spanctx.WithLabels(spanctx.LabelsOff), spanctx.WithThreadSlots(false)},
	"record": {spanctx.WithSpanNames(false), spanctx.WithThreadSlots(false)},
}

// tracers lists the configurations to compare.
var tracers = []struct {
	processor string
	tracer    func(testing.TB) trace.Tracer
}{
	{"none", func(tb testing.TB) trace.Tracer { return provider(tb).Tracer("benchmarks") }},
	{"noop", func(tb testing.TB) trace.Tracer { return tracer(tb, noop) }},
	{"publisher", func(tb testing.TB) trace.Tracer { return tracer(tb, newPublisher(tb, oteltest.Resource())) }},
	{"slots", carriers(published["slots"]...)},
	{"slots1", carriers(append(published["slots"], spanctx.WithDatadogLayout())...)},
	{"gslots", carriers(published["gslots"]...)},
	{"record", carriers(published["record"]...)},
	{"default", carriers()},
	{"unnamed", carriers(spanctx.WithSpanNames(false))},
	{"datadog-labels", carriers(spanctx.WithDatadogLabels(true))},
	{"keys3", carriers(spanctx.WithSpanNames(false), spanctx.WithAttributeKeys("http.app", "http.route", "tenant"))},
	{"universal", func(tb testing.TB) trace.Tracer { return tracer(tb, newIntegration(tb, universalprofiling.ModeAuto)) }},
	{"universal-kept", func(tb testing.TB) trace.Tracer {
		i := newIntegration(tb, universalprofiling.ModeEnabled)
		_ = universalprofiling.NewExporter(tracetest.NewNoopExporter()) // the integration keeps ended transactions for this exporter
		return tracer(tb, i)
	}},
	{"grafana", func(tb testing.TB) trace.Tracer {
		return otelpyroscope.NewTracerProvider(provider(tb, sdktrace.WithSpanProcessor(noop))).Tracer("benchmarks")
	}},
}

// carriers returns a constructor of a tracer whose spans are published, as opts say.
func carriers(opts ...spanctx.Option) func(testing.TB) trace.Tracer {
	return func(tb testing.TB) trace.Tracer { return tracer(tb, newSpanProcessor(tb, opts...)) }
}

// scoped returns a context with the attributes that processor=keys3 publishes. Only the candidate
// uses it, so that the result includes the whole cost of the attributes.
func scoped(ctx context.Context) context.Context {
	return attrcontext.With(ctx,
		attribute.String("http.app", "shop"), attribute.String("http.route", "/cart/{id}"), attribute.Int("tenant", 1234))
}

// provider returns a provider with the typical resource. It is shut down at the end.
func provider(tb testing.TB, opts ...sdktrace.TracerProviderOption) *sdktrace.TracerProvider {
	tb.Helper()
	return oteltest.TracerProvider(tb, append(opts, sdktrace.WithResource(oteltest.Resource()))...)
}

func tracer(tb testing.TB, processor sdktrace.SpanProcessor) trace.Tracer {
	tb.Helper()
	return provider(tb, sdktrace.WithSpanProcessor(processor)).Tracer("benchmarks")
}

// newSpanProcessor returns a processor with all requested carriers. It skips the benchmark if this
// platform does not support publishing spans, and fails the benchmark if a carrier is unavailable.
func newSpanProcessor(tb testing.TB, opts ...spanctx.Option) *spanctx.SpanProcessor {
	tb.Helper()
	p, err := spanctx.New(opts...)
	if errors.Is(err, errors.ErrUnsupported) {
		noResult(tb, err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Shutdown(context.Background())) })
	require.NoError(tb, p.Stats().Off)
	return p
}

// newIntegration returns an integration for Universal Profiling.
func newIntegration(tb testing.TB, mode universalprofiling.Mode) *universalprofiling.Integration {
	tb.Helper()
	i, err := universalprofiling.New(universalprofiling.WithMode(mode), universalprofiling.WithSocketDir(tb.TempDir()))
	if err != nil {
		noResult(tb, err)
	}
	tb.Cleanup(func() { require.NoError(tb, i.Shutdown(context.Background())) })
	return i
}

// shapes lists the ways in which spans are nested. Each run starts and ends n spans per level of
// nesting.
var shapes = []struct {
	shape string
	run   func(ctx context.Context, tracer trace.Tracer, n int)
}{
	// One after another, without parents.
	{"flat", flat},
	// One after another, below a live parent that becomes active again each time.
	{"child", func(ctx context.Context, tracer trace.Tracer, n int) {
		ctx, parent := tracer.Start(ctx, "request")
		defer parent.End()
		flat(ctx, tracer, n)
	}},
	// Three nested spans.
	{"depth3", func(ctx context.Context, tracer trace.Tracer, n int) {
		for range n {
			ctx, first := tracer.Start(ctx, "request")
			ctx, second := tracer.Start(ctx, "work")
			_, third := tracer.Start(ctx, "query")
			third.End()
			second.End()
			first.End()
		}
	}},
	// Without parents, on one goroutine per processor.
	{"parallel", func(ctx context.Context, tracer trace.Tracer, n int) {
		var wg sync.WaitGroup
		procs := runtime.GOMAXPROCS(0)
		for i := range procs {
			wg.Go(func() { flat(ctx, tracer, (n+i)/procs) })
		}
		wg.Wait()
	}},
}

func flat(ctx context.Context, tracer trace.Tracer, n int) {
	for range n {
		_, span := tracer.Start(ctx, "work")
		span.End()
	}
}

// batch is the number of operations per measurement.
const batch = 2_000

// BenchmarkSpan starts and ends spans. The baseline is a processor that does nothing. processor=noop
// compares it with itself, which shows the noise.
func BenchmarkSpan(b *testing.B) {
	for _, s := range shapes {
		for _, t := range tracers {
			b.Run("shape="+s.shape+"/processor="+t.processor, func(b *testing.B) {
				baseline, candidate := tracer(b, noop), t.tracer(b)
				ctx := b.Context()
				if t.processor == "keys3" {
					ctx = scoped(ctx)
				}
				alternate(b, batch,
					func(n int) { s.run(b.Context(), baseline, n) },
					func(n int) { s.run(ctx, candidate, n) })
			})
		}
	}
}

// BenchmarkLiveSpans starts and ends spans while a number of others stay live.
func BenchmarkLiveSpans(b *testing.B) {
	for _, live := range []int{0, 200, 1_000, 3_000, 10_000, 100_000} {
		for _, t := range tracers {
			if t.processor != "noop" && t.processor != "slots" && t.processor != "default" {
				continue
			}
			b.Run(fmt.Sprintf("live=%d/processor=%s", live, t.processor), func(b *testing.B) {
				baseline, candidate := tracer(b, noop), t.tracer(b)
				var spans []trace.Span
				for range live {
					for _, tracer := range []trace.Tracer{baseline, candidate} {
						_, span := tracer.Start(b.Context(), "request")
						spans = append(spans, span)
					}
				}
				alternate(b, batch,
					func(n int) { flat(b.Context(), baseline, n) },
					func(n int) { flat(b.Context(), candidate, n) })
				for _, span := range spans {
					span.End()
				}
			})
		}
	}
}

// BenchmarkChurn keeps many spans live. Each operation ends the oldest of them and starts a new one.
func BenchmarkChurn(b *testing.B) {
	const live = 10_000
	for _, t := range tracers {
		if t.processor != "noop" && t.processor != "slots" && t.processor != "default" {
			continue
		}
		b.Run(fmt.Sprintf("live=%d/processor=%s", live, t.processor), func(b *testing.B) {
			churn := func(tracer trace.Tracer) func(n int) {
				spans, next := make([]trace.Span, live), 0
				for i := range spans {
					_, spans[i] = tracer.Start(b.Context(), "request")
				}
				return func(n int) {
					for range n {
						spans[next].End()
						_, spans[next] = tracer.Start(b.Context(), "request")
						next = (next + 1) % live
					}
				}
			}
			alternate(b, batch, churn(tracer(b, noop)), churn(t.tracer(b)))
		})
	}
}

// BenchmarkUnsampledSpan starts and ends unsampled spans. recorded=no drops them, like the baseline;
// recorded=yes records them because of spanctx.RecordUnsampled. With processor=all they are not
// recorded, but published by spanctx.PublishAll.
func BenchmarkUnsampledSpan(b *testing.B) {
	drop := sdktrace.NeverSample()
	for _, t := range []struct {
		recorded, processor string
		sampler             sdktrace.Sampler
	}{
		{"no", "noop", drop},
		{"no", "default", drop},
		{"no", "all", drop},
		{"yes", "noop", spanctx.RecordUnsampled(drop)},
		{"yes", "default", spanctx.RecordUnsampled(drop)},
	} {
		b.Run("recorded="+t.recorded+"/processor="+t.processor, func(b *testing.B) {
			baseline := provider(b, sdktrace.WithSampler(drop), sdktrace.WithSpanProcessor(noop)).Tracer("benchmarks")
			opts := []sdktrace.TracerProviderOption{sdktrace.WithSampler(t.sampler)}
			var tracer trace.Tracer
			switch t.processor {
			case "all":
				tracer = spanctx.PublishAll(provider(b, opts...)).Tracer("benchmarks")
			case "default":
				tracer = provider(b, append(opts, sdktrace.WithSpanProcessor(newSpanProcessor(b)))...).Tracer("benchmarks")
			default:
				tracer = provider(b, append(opts, sdktrace.WithSpanProcessor(noop))...).Tracer("benchmarks")
			}
			alternate(b, batch,
				func(n int) { flat(b.Context(), baseline, n) },
				func(n int) { flat(b.Context(), tracer, n) })
		})
	}
}

// extraAllocations maps a processor to the number of allocations per span that it adds to those of a
// processor that does nothing.
var extraAllocations = map[string]float64{"publisher": 0, "slots": 0, "slots1": 0, "gslots": 0, "record": 1, "default": 1, "unnamed": 1, "datadog-labels": 5, "keys3": 1, "universal": 0, "universal-kept": 0}

func TestAllocationsOnTheSpanPath(t *testing.T) {
	allocs := map[string]float64{}
	for _, tr := range tracers {
		t.Run(tr.processor, func(t *testing.T) {
			tracer := tr.tracer(t)
			ctx := t.Context()
			if tr.processor == "keys3" {
				ctx = scoped(ctx)
			}
			allocs[tr.processor] = testing.AllocsPerRun(1000, func() {
				_, span := tracer.Start(ctx, "work")
				span.End()
			})
		})
	}
	for processor, more := range extraAllocations {
		if got, ok := allocs[processor]; ok {
			assert.InDelta(t, allocs["noop"]+more, got, 0, "allocations per span with processor=%s", processor)
		}
	}
}
