// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"

	datadog "github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
	otelpyroscope "github.com/grafana/otel-profiling-go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// labelPatterns lists patterns with profiler labels that users or other libraries set.
var labelPatterns = []pattern{
	{inRoot: pprofDo, about: "pprof.Do inside a span: in it"},
	{inRoot: pprofDoAfter, about: "the same: after it, in the same span"},
	{inRoot: pprofDoChild, about: "a child span inside pprof.Do: in it, after it, and after Do"},
	{run: pprofDoOutside, about: "a span inside pprof.Do: in it, and after it"},
	{inRoot: pprofDoEqual, about: "100 calls of pprof.Do with equal labels in one span, in the later ones and after them"},
	{inRoot: pprofDoChildren, about: "101 children after a pprof.Do, in the parent between them"},
	{run: pprofDoEndedElsewhere, about: "after pprof.Do, whose span has ended elsewhere meanwhile"},
	{inRoot: pprofDoGoroutine, about: "a goroutine started in pprof.Do in a span"},
	{run: spanDo, about: "spanctx.Do inside a span: in it, in a goroutine started there, and after it"},
	{run: setLabels, about: "after SetGoroutineLabels in a span"},
	{run: setLabelsRefresh, about: "the same, after `spanctx.Refresh`"},
	{run: setLabelsCleared, about: "after SetGoroutineLabels(context.Background()) in a span"},
	{inRoot: setLabelsChild, about: "after SetGoroutineLabels in a child, in the parent after the child"},
	{run: labels11, about: "a goroutine with 11 labels of the user's, in a span"},
	{inRoot: labels11Inside, about: "11 labels set inside the span"},
	{run: labelsLong, about: "a label of the user's with a long key and value, in a span"},
	{run: otherGrafana, about: "grafana/otel-profiling-go around the provider: in a root and a child"},
	{run: otherGrafanaAfter, about: "the same: after the child, and after the root"},
	{run: otherGrafanaElsewhere, about: "the same: in the parent, after the child has ended elsewhere"},
	{run: otherGrafanaDo, about: "the same with pprof.Do in the span"},
}

// samplingPatterns lists patterns with unsampled spans, which processors see only if they are
// recorded, and with several providers.
var samplingPatterns = []pattern{
	{run: unsampledRoot, about: "an unsampled root"},
	{inRoot: unsampledRootInherits, about: "an unsampled root on a goroutine that was started in a span: that is shown"},
	{run: unsampledChild, about: "an unsampled child of a sampled parent: the parent is shown"},
	{run: sampledChildOfUnsampled, about: "a sampled child of an unsampled parent, and after it"},
	{run: sampledRatio, about: "roots of which TraceIDRatioBased samples half"},
	{run: sampledRecordOnly, about: "a sampler that records and does not sample"},
	{run: sampledRecordUnsampled, about: "spanctx.RecordUnsampled around NeverSample: root and child"},
	{run: unsampledAttach, about: "Attach of an unsampled span's context, inside a live one: nothing"},
	{run: secondProvider, about: "spans of a second provider that publishes"},
	{inRoot: secondProviderInside, about: "a span of a second provider inside one of the first, and after it"},
	{inRoot: silentProvider, about: "a span of a provider that does not publish, inside one that is shown"},
	{run: endedInOnStart, about: "a span that an earlier processor has ended in OnStart"},
	{run: providerShutdown, about: "after the Shutdown of the second of two providers, spans of the first", alone: true},
	{run: providerShutdownFirst, about: "after the Shutdown of the first of two providers, spans of the second", alone: true},
}

// datadogPatterns lists patterns in which dd-trace-go runs beside otelctx. Each needs its own process,
// because dd-trace-go publishes a process context, too.
var datadogPatterns = []pattern{
	{run: otherDatadog, about: "dd-trace-go: a Datadog span inside a span", alone: true},
	{run: otherDatadogAfter, about: "the same: after the Datadog span, in the span", alone: true},
	{run: otherDatadogOutside, about: "the same: a span inside a Datadog span, and after it", alone: true},
}

func pprofDo(r *run, ctx context.Context) {
	pprof.Do(ctx, userLabel, r.stayIn)
}

func pprofDoAfter(r *run, ctx context.Context) {
	pprof.Do(ctx, userLabel, func(context.Context) {})
	r.stayIn(ctx)
}

func pprofDoChild(r *run, parent context.Context) {
	pprof.Do(parent, userLabel, func(inside context.Context) {
		ctx, child := r.start(inside, "child")
		r.in(ctx)
		child.End()
		r.in(inside)
	})
	r.in(parent)
}

func pprofDoOutside(r *run) {
	pprof.Do(context.Background(), userLabel, func(ctx context.Context) {
		r.stayInNew(r.tracer, ctx)
		r.out()
	})
}

func pprofDoEqual(r *run, ctx context.Context) {
	for i := range 100 {
		pprof.Do(ctx, userLabel, func(inside context.Context) {
			child, other := r.start(inside, "child")
			if i > 94 {
				r.in(child)
			}
			other.End()
			if i > 94 {
				r.in(inside)
			}
		})
	}
	r.in(ctx)
}

func pprofDoChildren(r *run, ctx context.Context) {
	pprof.Do(ctx, userLabel, func(context.Context) {})
	for i := range 101 {
		_, child := r.start(ctx, "child")
		child.End()
		if i > 90 {
			r.in(ctx)
		}
	}
}

func pprofDoEndedElsewhere(r *run) {
	ctx, span := r.root("root")
	pprof.Do(ctx, userLabel, func(context.Context) {
		r.elsewhere(func() { span.End() })
		r.out()
	})
	r.stayOut()
}

func pprofDoGoroutine(r *run, ctx context.Context) {
	pprof.Do(ctx, userLabel, func(context.Context) {
		// The span may be missing: the goroutine has inherited only the user's labels, and nothing tells
		// a reader which goroutine started it.
		inside(onGoroutine, func() { r.either(ctx) })
	})
}

func spanDo(r *run) {
	ctx, span := r.root("root")
	spanctx.Do(ctx, userLabel, func(ctx context.Context) {
		r.in(ctx)
		var group sync.WaitGroup
		group.Go(func() { r.in(ctx) })
		group.Wait()
		r.in(ctx)
	})
	r.in(ctx)
	span.End()
	r.out()
}

func setLabels(r *run) {
	ctx, span := r.root("root")
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, userLabel))
	r.stayIn(ctx)
	span.End()
	r.out()
}

func setLabelsRefresh(r *run) {
	ctx, span := r.root("root")
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, userLabel))
	spanctx.Refresh(ctx)
	r.stayIn(ctx)
	span.End()
	r.out()
}

func setLabelsCleared(r *run) {
	ctx, span := r.root("root")
	pprof.SetGoroutineLabels(context.Background())
	r.stayIn(ctx)
	span.End()
	r.out()
}

func setLabelsChild(r *run, parent context.Context) {
	ctx, child := r.start(parent, "child")
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, userLabel))
	r.in(ctx)
	child.End()
	r.stayIn(parent)
}

// labels returns n labels of a user. Their keys sort before and after the keys of otelctx.
func labels(n int) pprof.LabelSet {
	var pairs []string
	for i := range n {
		pairs = append(pairs, fmt.Sprintf("%c%d", 'm'+i, i), "value")
	}
	return pprof.Labels(pairs...)
}

func labels11(r *run) {
	pprof.Do(context.Background(), labels(11), func(ctx context.Context) { r.stayInNew(r.tracer, ctx) })
}

func labels11Inside(r *run, outside context.Context) {
	pprof.Do(outside, labels(11), r.stayIn)
}

func labelsLong(r *run) {
	long := pprof.Labels("a key of more than fifteen bytes", fmt.Sprintf("%0100d", 1))
	pprof.Do(context.Background(), long, func(ctx context.Context) { r.stayInNew(r.tracer, ctx) })
}

// grafana returns the tracer of grafana/otel-profiling-go around the provider.
func (r *run) grafana() trace.Tracer {
	return otelpyroscope.NewTracerProvider(r.provider,
		otelpyroscope.WithSpanIDLabelScope(otelpyroscope.ScopeAllSpans)).Tracer("scoreboard")
}

func otherGrafana(r *run) {
	tracer := r.grafana()
	parent, root := tracer.Start(context.Background(), "root")
	r.in(parent)
	ctx, child := tracer.Start(parent, "child")
	r.stayIn(ctx)
	child.End()
	root.End()
}

func otherGrafanaAfter(r *run) {
	tracer := r.grafana()
	parent, root := tracer.Start(context.Background(), "root")
	_, child := tracer.Start(parent, "child")
	child.End()
	r.stayIn(parent)
	root.End()
	r.out()
}

func otherGrafanaElsewhere(r *run) {
	tracer := r.grafana()
	parent, root := tracer.Start(context.Background(), "root")
	_, child := tracer.Start(parent, "child")
	r.elsewhere(func() {
		child.End()
		// End has set the parent's labels on this goroutine, as it does on any goroutine that ends
		// a child. Remove them.
		pprof.SetGoroutineLabels(context.Background())
	})
	r.stayIn(parent)
	root.End()
	r.out()
}

func otherGrafanaDo(r *run) {
	ctx, root := r.grafana().Start(context.Background(), "root")
	pprof.Do(ctx, userLabel, r.stayIn)
	r.in(ctx)
	root.End()
}

// with returns a tracer of another provider, which publishes its spans and has the given sampler. The
// other provider is never shut down, because that would affect the service's provider.
func (*run) with(sampler sdktrace.Sampler) trace.Tracer {
	return sdktrace.NewTracerProvider(spanctx.WithPublishing(), sdktrace.WithSampler(sampler)).Tracer("scoreboard")
}

func unsampledRoot(r *run) {
	ctx, span := r.with(sdktrace.NeverSample()).Start(context.Background(), "unsampled")
	twice(func() { r.as(ctx) })
	span.End()
}

func unsampledRootInherits(r *run, outer context.Context) {
	tracer := r.with(sdktrace.NeverSample())
	var group sync.WaitGroup
	group.Go(func() {
		_, span := tracer.Start(context.Background(), "unsampled")
		r.stayIn(outer)
		span.End()
		r.in(outer)
	})
	group.Wait()
}

func unsampledChild(r *run) {
	tracer := r.with(sdktrace.ParentBased(sdktrace.AlwaysSample(), sdktrace.WithLocalParentSampled(sdktrace.NeverSample())))
	parent, root := tracer.Start(context.Background(), "parent")
	_, child := tracer.Start(parent, "unsampled")
	r.stayIn(parent)
	child.End()
	r.in(parent)
	root.End()
}

func sampledChildOfUnsampled(r *run) {
	tracer := r.with(sdktrace.ParentBased(sdktrace.NeverSample(), sdktrace.WithLocalParentNotSampled(sdktrace.AlwaysSample())))
	parent, root := tracer.Start(context.Background(), "unsampled")
	ctx, child := tracer.Start(parent, "sampled")
	r.stayIn(ctx)
	child.End()
	r.out()
	root.End()
}

func sampledRatio(r *run) {
	tracer := r.with(sdktrace.TraceIDRatioBased(0.5))
	for range 4 {
		ctx, span := tracer.Start(context.Background(), "root")
		twice(func() { r.as(ctx) })
		span.End()
	}
}

// recordOnly is a sampler that records all spans and samples none.
type recordOnly struct{}

func (recordOnly) ShouldSample(sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return sdktrace.SamplingResult{Decision: sdktrace.RecordOnly}
}

func (recordOnly) Description() string { return "record only" }

func sampledRecordOnly(r *run) { r.stayInNew(r.with(recordOnly{}), context.Background()) }

func sampledRecordUnsampled(r *run) {
	tracer := r.with(spanctx.RecordUnsampled(sdktrace.NeverSample()))
	parent, root := tracer.Start(context.Background(), "root")
	r.in(parent)
	ctx, child := tracer.Start(parent, "child")
	r.in(ctx)
	child.End()
	r.in(parent)
	root.End()
}

func unsampledAttach(r *run) {
	unsampled, span := r.with(sdktrace.NeverSample()).Start(context.Background(), "unsampled")
	own, root := r.root("own")
	attachment := spanctx.Attach(unsampled)
	twice(func() { r.as(unsampled) })
	attachment.Detach()
	r.in(own)
	root.End()
	span.End()
}

func secondProvider(r *run) {
	r.stayInNew(r.with(sdktrace.AlwaysSample()), context.Background())
	r.out()
}

func secondProviderInside(r *run, parent context.Context) {
	ctx, child := r.with(sdktrace.AlwaysSample()).Start(parent, "child")
	r.in(ctx)
	child.End()
	r.in(parent)
}

func silentProvider(r *run, outer context.Context) {
	_, span := sdktrace.NewTracerProvider().Tracer("scoreboard").Start(outer, "silent")
	r.stayIn(outer)
	span.End()
	r.in(outer)
}

// ender is a processor that ends each span in OnStart.
type ender struct{}

func (ender) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if span, ok := s.(trace.Span); ok {
		span.End()
	}
}

func (ender) OnEnd(sdktrace.ReadOnlySpan)      {}
func (ender) Shutdown(context.Context) error   { return nil }
func (ender) ForceFlush(context.Context) error { return nil }

func endedInOnStart(r *run) {
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ender{}), spanctx.WithPublishing()).Tracer("scoreboard")
	_, span := tracer.Start(context.Background(), "ended")
	r.stayOut()
	span.End()
	r.out()
}

func providerShutdown(r *run) {
	second := sdktrace.NewTracerProvider(spanctx.WithPublishing())
	must(second.Shutdown(context.Background()))
	rootSpanBlocking(r)
}

func providerShutdownFirst(r *run) {
	r.shutDownOne.Do(func() {
		r.another = sdktrace.NewTracerProvider(spanctx.WithPublishing())
		must(r.sdk.Shutdown(context.Background()))
	})
	r.stayInNew(r.another.Tracer("scoreboard"), context.Background())
}

// startDatadog starts dd-trace-go's tracer, without an agent.
var startDatadog = sync.OnceFunc(func() {
	must(datadog.Start(datadog.WithService("scoreboard"), datadog.WithLogStartup(false), datadog.WithLogger(silence{}),
		datadog.WithProfilerCodeHotspots(true), datadog.WithProfilerEndpoints(true), datadog.WithAgentTimeout(1)))
})

// silence is a dd-trace-go logger that discards everything, because the agent is missing.
type silence struct{}

func (silence) Log(string) {}

func otherDatadog(r *run) {
	startDatadog()
	outer, span := r.root("root")
	other, ctx := datadog.StartSpanFromContext(outer, "datadog")
	r.stayIn(ctx)
	other.Finish()
	span.End()
}

func otherDatadogAfter(r *run) {
	startDatadog()
	outer, span := r.root("root")
	other, _ := datadog.StartSpanFromContext(outer, "datadog")
	other.Finish()
	r.stayIn(outer)
	span.End()
	r.out()
}

func otherDatadogOutside(r *run) {
	startDatadog()
	other, outside := datadog.StartSpanFromContext(context.Background(), "datadog")
	ctx, span := r.start(outside, "root")
	r.stayIn(ctx)
	span.End()
	r.out()
	other.Finish()
}
