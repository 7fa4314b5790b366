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

	"github.com/otelctx/otelctx/internal/testing/testenv"
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

// TestAllocations compares each signal with the bare SDK, which is given the same by hand.
func TestAllocations(t *testing.T) {
	// allocated makes one thing of a signal with lists of attributes again and again.
	type allocated func(ctx context.Context, lists ...[]attribute.KeyValue) float64
	span := func(opts ...sdktrace.TracerProviderOption) allocated {
		tracer := newTracer(t, append(opts, sdktrace.WithSpanProcessor(ignore{}))...)
		return func(ctx context.Context, lists ...[]attribute.KeyValue) float64 {
			return allocations(func() {
				var opts []trace.SpanStartOption
				for _, list := range lists {
					opts = append(opts, trace.WithAttributes(list...))
				}
				_, span := tracer.Start(ctx, "work", opts...)
				span.End()
			})
		}
	}
	record := func(lp log.LoggerProvider) allocated {
		logger := lp.Logger("test")
		return func(ctx context.Context, lists ...[]attribute.KeyValue) float64 {
			return allocations(func() {
				var record log.Record
				for _, list := range lists {
					record.AddAttributes(list...)
				}
				logger.Emit(ctx, record)
			})
		}
	}
	measurement := func(mp metric.MeterProvider, kind string, ready bool) allocated {
		measure, err := newMeasure(mp, kind)
		require.NoError(t, err)
		return func(ctx context.Context, lists ...[]attribute.KeyValue) float64 {
			all := slices.Concat(lists...)
			opts := []metric.MeasurementOption{metric.WithAttributes(all...)}
			return allocations(func() {
				switch {
				case len(all) == 0:
					measure(ctx, nil)
				case ready:
					measure(ctx, opts)
				default:
					measure(ctx, []metric.MeasurementOption{metric.WithAttributes(all...)})
				}
			})
		}
	}
	lp := newLogProvider(t, sdklog.WithProcessor(processor{onEmit: func(*sdklog.Record) {}}))
	mp, _ := newMeterProvider(t)
	wrapped := NewMeterProvider(mp, "http.app", "tenant", "shard")
	ctx := ContextWithAttributes(t.Context(), three...)
	for name, tt := range map[string]struct{ bare, scoped allocated }{
		"span":                    {span(), span(WithSampler(nil))},
		"log record":              {record(lp), record(NewLoggerProvider(lp))},
		"counter":                 {measurement(mp, "counter", false), measurement(wrapped, "counter", false)},
		"counter, ready option":   {measurement(mp, "counter", true), measurement(wrapped, "counter", true)},
		"histogram":               {measurement(mp, "histogram", false), measurement(wrapped, "histogram", false)},
		"histogram, ready option": {measurement(mp, "histogram", true), measurement(wrapped, "histogram", true)},
	} {
		if testenv.Race && (name == "span" || name == "log record") {
			continue // The detector empties the pools of the SDK at random.
		}
		for _, n := range []int{0, 1, 4, 12} {
			assert.InDelta(t, tt.bare(t.Context(), own(n)), tt.scoped(t.Context(), own(n)), 0, "%s, %d own, none of the context", name, n)
			byHand, got := tt.bare(t.Context(), own(n), three), tt.scoped(ctx, own(n))
			t.Logf("%s, %d own: %v by hand, %v by the context", name, n, byHand, got)
			assert.LessOrEqual(t, got, byHand, "%s, %d own", name, n)
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
