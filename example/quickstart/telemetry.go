// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// newTracerProvider returns a TracerProvider whose resource profilers can read from
// now until its Shutdown.
func newTracerProvider(ctx context.Context) (*sdktrace.TracerProvider, error) {
	res, err := newResource(ctx)
	if err != nil {
		// What could be found out is in the resource all the same.
		otel.Handle(err)
	}
	exporting, err := exporterOptions(ctx)
	if err != nil {
		return nil, err
	}
	options := []sdktrace.TracerProviderOption{
		// In place of sdktrace.WithResource: the resource is also published.
		resourcepublisher.WithResource(res), //nolint:contextcheck // Options take no context.
		// Withdraws it when the provider shuts down.
		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
		// The active span is published too, per thread and per goroutine, with its name.
		spanctx.WithPublishing(spanctx.WithSpanNames(true)),
	}
	return sdktrace.NewTracerProvider(append(options, exporting...)...), nil
}

// newResource says who the service is.
func newResource(ctx context.Context) (*resource.Resource, error) {
	return resource.New(ctx,
		resource.WithService(), // A service.instance.id of its own for every start.
		resource.WithAttributes(semconv.ServiceName("quickstart"), semconv.ServiceVersion("0.1.0")),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		// Not resource.WithProcess: it includes the command line, where secrets may be.
		resource.WithProcessPID(),
		resource.WithProcessExecutableName(),
		resource.WithProcessRuntimeName(),
		resource.WithProcessRuntimeVersion(),
		resource.WithFromEnv(), // Last: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
	)
}

// exporterOptions returns the option that exports spans to where the environment
// says, or none if it does not say.
func exporterOptions(ctx context.Context) ([]sdktrace.TracerProviderOption, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	return []sdktrace.TracerProviderOption{sdktrace.WithBatcher(exporter)}, nil
}
