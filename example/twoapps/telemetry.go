// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"

	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
	"github.com/otelctx/otelctx/spanctx"
)

// telemetry is the instrumentation of the server.
type telemetry struct {
	tracers    trace.TracerProvider
	loggers    log.LoggerProvider
	meters     metric.MeterProvider
	propagator propagation.TextMapPropagator

	report   *report
	shutdown func(context.Context) error
}

// newTelemetry returns providers of all three signals that record the attributes of contexts, and
// publishes resource, active span and attributes for profilers.
func newTelemetry(ctx context.Context) (*telemetry, error) {
	r, res := newReport(), resource.NewSchemaless(semconv.ServiceName("twoapps"))
	spans := []sdktrace.TracerProviderOption{
		// This replaces sdktrace.WithResource, and also publishes the resource for profilers until
		// the provider shuts down.
		resourcepublisher.WithResource(res), //nolint:contextcheck // Options take no context.
		// This publishes the active span for profilers, with the attribute appKey of its context.
		spanctx.WithPublishing(spanctx.WithAttributeKeys(appKey)),
		// This replaces sdktrace.WithSampler. nil is the default sampler.
		scopedattr.WithSampler(nil),
		sdktrace.WithSyncer(spanReport{r}),
	}
	logs := []sdklog.LoggerProviderOption{sdklog.WithResource(res), sdklog.WithProcessor(sdklog.NewSimpleProcessor(logReport{r}))}
	metrics := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(r.reader)}
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		spanExporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, err
		}
		logExporter, err := otlploghttp.New(ctx)
		if err != nil {
			return nil, err
		}
		metricExporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, err
		}
		spans = append(spans, sdktrace.WithBatcher(spanExporter))
		logs = append(logs, sdklog.WithProcessor(sdklog.NewBatchProcessor(logExporter)))
		metrics = append(metrics, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metricExporter)))
	}
	tp, lp, mp := sdktrace.NewTracerProvider(spans...), sdklog.NewLoggerProvider(logs...), sdkmetric.NewMeterProvider(metrics...)
	return &telemetry{
		tracers: tp,
		loggers: scopedlog.NewLoggerProvider(lp),
		// Metrics may have only the attribute appKey: with userKey, each user would be a time series.
		meters:     scopedattr.NewMeterProvider(mp, appKey),
		propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
		report:     r,
		shutdown: func(ctx context.Context) error {
			ctx = context.WithoutCancel(ctx) // Export the remaining telemetry even if ctx is done.
			return errors.Join(tp.Shutdown(ctx), lp.Shutdown(ctx), mp.Shutdown(ctx))
		},
	}, nil
}
