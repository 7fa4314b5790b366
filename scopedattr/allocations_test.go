// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// three are attributes that a context has, or a call.
var three = []attribute.KeyValue{
	attribute.String("http.app", "shop"), attribute.String("tenant", "gold"), attribute.Int("shard", 7),
}

// own returns n attributes of a span, record or measurement itself.
func own(n int) []attribute.KeyValue {
	var list []attribute.KeyValue
	for i := range n {
		list = append(list, attribute.Int(fmt.Sprint("own", i), i))
	}
	return list
}

// skipUnderRace skips tests of how much is allocated.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if underRace {
		t.Skip("the race detector makes pools allocate at random")
	}
}

// allocations returns how many f makes once what is remembered has been.
func allocations(f func()) float64 {
	f()
	return testing.AllocsPerRun(500, f)
}

// ignore is a span processor that does nothing, for spans to be recorded.
type ignore struct{}

func (ignore) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (ignore) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (ignore) Shutdown(context.Context) error                  { return nil }
func (ignore) ForceFlush(context.Context) error                { return nil }

// TestSpanAllocations compares with the bare SDK, which is given the same by hand.
func TestSpanAllocations(t *testing.T) {
	skipUnderRace(t)
	bare, scoped := newTracer(t, sdktrace.WithSpanProcessor(ignore{})), newTracer(t, sdktrace.WithSpanProcessor(ignore{}), WithSampler(nil))
	ctx := ContextWithAttributes(t.Context(), three...)
	start := func(tracer trace.Tracer, ctx context.Context, lists ...[]attribute.KeyValue) float64 {
		return allocations(func() {
			var opts []trace.SpanStartOption
			for _, list := range lists {
				opts = append(opts, trace.WithAttributes(list...))
			}
			_, span := tracer.Start(ctx, "work", opts...)
			span.End()
		})
	}
	assert.InDelta(t, start(bare, t.Context()), start(scoped, t.Context()), 0, "without attributes")
	for _, n := range []int{0, 1, 4, 12} {
		var lists [][]attribute.KeyValue
		if n > 0 {
			lists = append(lists, own(n))
		}
		byHand := start(bare, t.Context(), append(lists, three)...)
		got := start(scoped, ctx, lists...)
		t.Logf("%d own: %v by hand, %v by the context", n, byHand, got)
		assert.LessOrEqual(t, got, byHand, "%d own attributes", n)
	}
}

// TestLogAllocations compares with the bare SDK, which is given the same by hand.
func TestLogAllocations(t *testing.T) {
	skipUnderRace(t)
	lp := newLogProvider(t, sdklog.WithProcessor(processor{onEmit: func(*sdklog.Record) {}}))
	bare, scoped := lp.Logger("test"), NewLoggerProvider(lp).Logger("test")
	ctx := ContextWithAttributes(t.Context(), three...)
	emit := func(logger log.Logger, ctx context.Context, lists ...[]attribute.KeyValue) float64 {
		return allocations(func() {
			var record log.Record
			for _, list := range lists {
				record.AddAttributes(list...)
			}
			logger.Emit(ctx, record)
		})
	}
	for _, n := range []int{0, 1, 4, 12} {
		assert.InDelta(t, emit(bare, t.Context(), own(n)), emit(scoped, t.Context(), own(n)), 0, "without attributes")
		byHand, got := emit(bare, t.Context(), own(n), three), emit(scoped, ctx, own(n))
		t.Logf("%d own: %v by hand, %v by the context", n, byHand, got)
		assert.LessOrEqual(t, got, byHand, "%d own attributes", n)
	}
}

// TestMetricAllocations compares with the bare SDK, which is given the same by hand.
func TestMetricAllocations(t *testing.T) {
	skipUnderRace(t)
	mp, _ := newMeterProvider(t)
	wrapped := NewMeterProvider(mp, "http.app", "tenant", "shard")
	ctx := ContextWithAttributes(t.Context(), three...)
	for _, kind := range []string{"counter", "histogram"} {
		measure := func(mp metric.MeterProvider, ctx context.Context, lists ...[]attribute.KeyValue) (built, made float64) {
			i, err := newMeasure(mp, kind)
			require.NoError(t, err)
			all := slices.Concat(lists...)
			ready := []metric.MeasurementOption{metric.WithAttributes(all...)}
			if len(all) == 0 {
				ready = nil
			}
			return allocations(func() { i(ctx, ready) }), allocations(func() {
				if len(all) == 0 {
					i(ctx, nil)
					return
				}
				i(ctx, []metric.MeasurementOption{metric.WithAttributes(all...)})
			})
		}
		for _, n := range []int{0, 1, 4, 12} {
			bareBuilt, bareMade := measure(mp, t.Context(), own(n))
			built, made := measure(wrapped, t.Context(), own(n))
			assert.InDelta(t, bareBuilt, built, 0, "without attributes")
			assert.InDelta(t, bareMade, made, 0, "without attributes")
			bareBuilt, bareMade = measure(mp, t.Context(), own(n), three)
			built, made = measure(wrapped, ctx, own(n))
			t.Logf("%s, %d own: %v and %v by hand, %v and %v by the context", kind, n, bareBuilt, bareMade, built, made)
			assert.LessOrEqual(t, built, bareBuilt)
			assert.LessOrEqual(t, made, bareMade)
		}
	}
}

// newMeasure returns a function that measures with an instrument. It converts options
// without allocating more with one provider than with another.
func newMeasure(mp metric.MeterProvider, kind string) (func(context.Context, []metric.MeasurementOption), error) {
	if kind == "counter" {
		i, err := mp.Meter("test").Int64Counter(kind)
		return func(ctx context.Context, opts []metric.MeasurementOption) {
			if len(opts) == 0 {
				i.Add(ctx, 1)
				return
			}
			i.Add(ctx, 1, opts[0])
		}, err
	}
	i, err := mp.Meter("test").Float64Histogram(kind)
	return func(ctx context.Context, opts []metric.MeasurementOption) {
		if len(opts) == 0 {
			i.Record(ctx, 1)
			return
		}
		i.Record(ctx, 1, opts[0])
	}, err
}

// TestFreshContextAllocations counts what each request costs that has a context of its
// own, with two measurements in it: no more than to give the same by hand each time.
func TestFreshContextAllocations(t *testing.T) {
	skipUnderRace(t)
	mp, _ := newMeterProvider(t)
	bare, err := newMeasure(mp, "counter")
	require.NoError(t, err)
	scoped, err := newMeasure(NewMeterProvider(mp, "http.app"), "counter")
	require.NoError(t, err)
	request := own(2)
	app := three[:1]
	byHand := allocations(func() {
		for range 2 {
			bare(t.Context(), []metric.MeasurementOption{metric.WithAttributes(append(slices.Clone(request), app...)...)})
		}
	})
	made := allocations(func() { ContextWithAttributes(t.Context(), three...) })
	got := allocations(func() {
		ctx := ContextWithAttributes(t.Context(), three...)
		for range 2 {
			scoped(ctx, []metric.MeasurementOption{metric.WithAttributes(request...)})
		}
	})
	t.Logf("%v by hand, %v by the context and %v to make it", byHand, got-made, made)
	assert.LessOrEqual(t, got-made, byHand)
}
