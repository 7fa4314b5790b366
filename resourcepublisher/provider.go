// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// WithResource does the same as [sdktrace.WithResource], and also publishes the resource. Readers
// see the same resource as the TracerProvider: r merged over OTEL_RESOURCE_ATTRIBUTES and
// OTEL_SERVICE_NAME. A nil r stands for [resource.Default], as in a provider without the option.
//
// It publishes immediately, so that readers see the resource before NewTracerProvider returns. If the
// provider also publishes spans (package spanctx), the context is withdrawn when it is shut down, and
// replaced when a later provider is set up. A provider that publishes only its resource needs [Current]
// for that, which is also a span processor:
//
//	sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
//	)
//
// An option cannot return an error: if publishing fails, the error goes to [otel.Handle], and the
// provider works as usual. No error is reported if publishing is disabled.
func WithResource(r *resource.Resource, opts ...Option) sdktrace.TracerProviderOption {
	if r == nil {
		r = resource.Default()
	}
	if _, err := New(providerResource(r), opts...); err != nil && !errors.Is(err, ErrDisabled) {
		otel.Handle(err)
	}
	return sdktrace.WithResource(r)
}

// providerResource returns the resource that a TracerProvider makes from r. It ignores errors
// because the provider reports them.
func providerResource(r *resource.Resource) *resource.Resource {
	env, _ := resource.New(context.Background(), resource.WithFromEnv())
	merged, _ := resource.Merge(env, r)
	return merged
}
