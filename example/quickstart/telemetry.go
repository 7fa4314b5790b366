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
	_ "github.com/otelctx/otelctx/spanctx/allocs" // for otelctx record --alloc
)

// newTracerProvider returns a TracerProvider. Profilers can read its resource until it is shut
// down.
func newTracerProvider(ctx context.Context) (*sdktrace.TracerProvider, error) {
	res, err := newResource(ctx)
	if err != nil {
		// Report the error and continue: the resource has everything that could be detected.
		otel.Handle(err)
	}
	exporting, err := exporterOptions(ctx)
	if err != nil {
		return nil, err
	}
	options := []sdktrace.TracerProviderOption{
		// This replaces sdktrace.WithResource: the resource is also published.
		resourcepublisher.WithResource(res), //nolint:contextcheck // Options take no context.
		// This publishes the active span, per thread and per goroutine, with its name.
		spanctx.WithPublishing(),
	}
	return sdktrace.NewTracerProvider(append(options, exporting...)...), nil
}

// newResource describes the service.
func newResource(ctx context.Context) (*resource.Resource, error) {
	return resource.New(ctx,
		resource.WithService(), // WithService also sets a new service.instance.id at every start.
		resource.WithAttributes(semconv.ServiceName("quickstart"), semconv.ServiceVersion("0.1.0")),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		// Do not use resource.WithProcess: it includes the command line, which may contain secrets.
		resource.WithProcessPID(),
		resource.WithProcessExecutableName(),
		resource.WithProcessRuntimeName(),
		resource.WithProcessRuntimeVersion(),
		resource.WithFromEnv(), // The last option wins: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
	)
}

// exporterOptions returns an option that exports spans to the endpoint in the environment, or no option
// if the environment has no endpoint.
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
