// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

// TestReceived checks the attributes that the Collector receives with each signal from two
// applications in one process, and from code that belongs to neither. They include attributes of
// several types, one that the signal overrides, and one that only the signal has.
func TestReceived(t *testing.T) {
	c := startCollector(t, grpcProtobuf)
	ctx := t.Context()

	spans, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(c.endpoint), otlptracegrpc.WithInsecure())
	require.NoError(t, err)
	tp := sdktrace.NewTracerProvider(
		scopedattr.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
		sdktrace.WithBatcher(spans),
	)
	records, err := otlploggrpc.New(ctx, otlploggrpc.WithEndpointURL(c.endpoint), otlploggrpc.WithInsecure())
	require.NoError(t, err)
	lp := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(records)))
	points, err := otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpointURL(c.endpoint), otlpmetricgrpc.WithInsecure())
	require.NoError(t, err)
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(points)))

	tracer := tp.Tracer("test")
	logger := scopedlog.NewLoggerProvider(lp).Logger("test")
	counter, err := scopedattr.NewMeterProvider(mp, "http.app", "overridden", "weights").Meter("test").Int64Counter("requests")
	require.NoError(t, err)

	own := []attribute.KeyValue{attribute.String("overridden", "own"), attribute.Bool("own", true)}
	serve := func(ctx context.Context) {
		_, span := tracer.Start(ctx, "request", trace.WithAttributes(own...))
		defer span.End()
		var record log.Record
		record.AddAttributes(own...)
		logger.Emit(ctx, record)
		counter.Add(ctx, 1, metric.WithAttributes(own...))
	}
	app := func(name string) context.Context {
		return scopedattr.ContextWithAttributes(ctx,
			attribute.String("http.app", name), attribute.String("overridden", "context"),
			attribute.Float64Slice("weights", []float64{0.5, 2}), attribute.Int("not on metrics", 7))
	}
	serve(app("shop"))
	serve(app("blog"))
	serve(ctx)
	require.NoError(t, tp.Shutdown(ctx))
	require.NoError(t, lp.Shutdown(ctx))
	require.NoError(t, mp.Shutdown(ctx))

	none := map[string]any{"overridden": "own", "own": true}
	on := func(name string, metrics bool) map[string]any {
		m := map[string]any{"overridden": "own", "own": true, "http.app": name, "weights": []any{0.5, 2.0}}
		if !metrics {
			m["not on metrics"] = int64(7)
		}
		return m
	}
	all := []map[string]any{on("shop", false), on("blog", false), none}
	assert.ElementsMatch(t, all, c.spanAttributes())
	assert.ElementsMatch(t, all, c.logAttributes())
	assert.ElementsMatch(t, []map[string]any{on("shop", true), on("blog", true), none}, c.pointAttributes())
}

func (c *collector) spanAttributes() (list []map[string]any) {
	for _, traces := range c.traces.AllTraces() {
		for _, rs := range traces.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					list = append(list, s.Attributes().AsRaw())
				}
			}
		}
	}
	return list
}

func (c *collector) logAttributes() (list []map[string]any) {
	for _, logs := range c.logs.AllLogs() {
		for _, rl := range logs.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					list = append(list, r.Attributes().AsRaw())
				}
			}
		}
	}
	return list
}

func (c *collector) pointAttributes() (list []map[string]any) {
	for _, metrics := range c.metrics.AllMetrics() {
		for _, rm := range metrics.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					for _, p := range m.Sum().DataPoints().All() {
						list = append(list, p.Attributes().AsRaw())
					}
				}
			}
		}
	}
	return list
}
