// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"slices"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

// Options returns options that make a TracerProvider publish its spans. Its resource is published
// with the first recorded span. The options can be combined with other options, in any order.
//
//	sdktrace.NewTracerProvider(append(opts, instrumentation.Options()...)...)
func Options() []sdktrace.TracerProviderOption {
	var opts []sdktrace.TracerProviderOption
	for _, p := range processors(nil, nil, nil) {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	return opts
}

// processors returns the span processors to add to a provider. existing are the processors that the
// provider already has. tp is the provider and r its resource, or nil if they are not known yet.
func processors(existing []sdktrace.SpanProcessor, tp *sdktrace.TracerProvider, r *resource.Resource) []sdktrace.SpanProcessor {
	var add []sdktrace.SpanProcessor
	// The resource processor comes first, so that the process context exists when spans are
	// advertised. Otherwise they would be advertised in a separate mapping.
	if !contains[resourceProcessor](existing) {
		if h := providers.Resources.Automatic(); h != nil {
			if tp != nil {
				h.Adopt(tp, r)
			}
			add = append(add, resourceProcessor{h})
		}
	}
	if !contains[*spanctx.SpanProcessor](existing) {
		if p := spanctx.ForProvider(); p != nil {
			add = append(add, p)
		}
	}
	if environment.UniversalProfiling.Bool() && !contains[*universalprofiling.Integration](existing) {
		if p := universalprofiling.ForProvider(); p != nil {
			add = append(add, p)
		}
	}
	return add
}

func contains[P sdktrace.SpanProcessor](list []sdktrace.SpanProcessor) bool {
	return slices.ContainsFunc(list, func(p sdktrace.SpanProcessor) bool { _, ok := p.(P); return ok })
}

// provider adds the processors of [Options] to tp, except those that it already has. r is the
// resource of tp, and existing are its processors. NewTracerProvider calls provider through a
// linkname, see sdktrace.go.
func provider(tp *sdktrace.TracerProvider, r *resource.Resource, existing []sdktrace.SpanProcessor) {
	for _, p := range processors(existing, tp, r) {
		tp.RegisterSpanProcessor(p)
	}
}
