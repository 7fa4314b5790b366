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

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

// three is the list of attributes that a context or a call gets.
var three = []attribute.KeyValue{
	attribute.String("http.app", "shop"), attribute.String("tenant", "gold"), attribute.Int("shard", 7),
}

// allocations returns the number of allocations per call of f, after its caches are warm.
func allocations(f func()) float64 {
	f()
	return testing.AllocsPerRun(500, f)
}

// TestAllocations checks the allocations of each signal against the bare SDK with the same
// attributes passed explicitly.
func TestAllocations(t *testing.T) {
	// measure returns the allocations per span, log record or measurement with these attributes.
	type measure func(ctx context.Context, lists ...[]attribute.KeyValue) float64
	span := func(opts ...sdktrace.TracerProviderOption) measure {
		tracer := oteltest.Tracer(t, append(opts, sdktrace.WithSpanProcessor(oteltest.SpanProcessor{}))...)
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
	record := func(lp log.LoggerProvider) measure {
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
	measurement := func(mp metric.MeterProvider, kind string, ready bool) measure {
		measure, err := oteltest.Instruments[kind](mp.Meter("test"))
		require.NoError(t, err)
		return func(ctx context.Context, lists ...[]attribute.KeyValue) float64 {
			all := slices.Concat(lists...)
			opts := []metric.MeasurementOption{metric.WithAttributes(all...)}
			return allocations(func() {
				switch {
				case len(all) == 0:
					measure(ctx, 1)
				case ready:
					measure(ctx, 1, opts...)
				default:
					measure(ctx, 1, metric.WithAttributes(all...))
				}
			})
		}
	}
	lp := oteltest.LoggerProvider(t, sdklog.WithProcessor(oteltest.LogProcessor{}))
	mp, _ := oteltest.MeterProvider(t)
	wrapped := NewMeterProvider(mp, "http.app", "tenant", "shard")
	ctx := ContextWithAttributes(t.Context(), three...)
	tests := map[string]struct{ bare, scoped measure }{
		"span":       {span(), span(WithSampler(nil))},
		"log record": {record(lp), record(scopedlog.NewLoggerProvider(lp))},
	}
	for _, kind := range []string{"int64counter", "float64histogram"} {
		for _, ready := range []bool{false, true} {
			tests[fmt.Sprintf("%s, option ready: %t", kind, ready)] = struct{ bare, scoped measure }{
				measurement(mp, kind, ready), measurement(wrapped, kind, ready),
			}
		}
	}
	for name, tt := range tests {
		if testenv.Race && (name == "span" || name == "log record") {
			continue // The race detector randomly empties the SDK's pools.
		}
		for _, n := range []int{0, 1, 4, 12} {
			assert.InDelta(t, tt.bare(t.Context(), own(n)), tt.scoped(t.Context(), own(n)), 0, "%s, %d own, none in the context", name, n)
			byHand, got := tt.bare(t.Context(), own(n), three), tt.scoped(ctx, own(n))
			t.Logf("%s, %d own: %v explicit, %v from the context", name, n, byHand, got)
			assert.LessOrEqual(t, got, byHand, "%s, %d own", name, n)
		}
	}
}

// TestFreshContextAllocations counts the allocations of a request that creates a context and makes
// two measurements with it. Without the allocations for the context, they must not exceed those of
// passing the attributes explicitly.
func TestFreshContextAllocations(t *testing.T) {
	mp, _ := oteltest.MeterProvider(t)
	bare, err := mp.Meter("test").Int64Counter("bare")
	require.NoError(t, err)
	scoped, err := NewMeterProvider(mp, "http.app").Meter("test").Int64Counter("scoped")
	require.NoError(t, err)
	request := own(2)
	app := three[:1]
	byHand := allocations(func() {
		for range 2 {
			bare.Add(t.Context(), 1, metric.WithAttributes(append(slices.Clone(request), app...)...))
		}
	})
	contextOnly := allocations(func() { ContextWithAttributes(t.Context(), three...) })
	got := allocations(func() {
		ctx := ContextWithAttributes(t.Context(), three...)
		for range 2 {
			scoped.Add(ctx, 1, metric.WithAttributes(request...))
		}
	})
	t.Logf("%v explicit, %v from the context and %v to create it", byHand, got-contextOnly, contextOnly)
	assert.LessOrEqual(t, got-contextOnly, byHand)
}
