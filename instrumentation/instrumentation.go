// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"slices"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

// Options returns what makes a TracerProvider publish its resource, from its first recorded
// span on, and its spans. They are for one provider. The order in which they stand among
// other options does not matter.
//
//	sdktrace.NewTracerProvider(append(opts, instrumentation.Options()...)...)
func Options() []sdktrace.TracerProviderOption {
	var opts []sdktrace.TracerProviderOption
	for _, p := range processors(nil, nil) {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	return opts
}

// processors returns what a provider that has some already is to have too. r is its
// resource, or nil if that is not known yet.
func processors(has []sdktrace.SpanProcessor, r *resource.Resource) []sdktrace.SpanProcessor {
	var add []sdktrace.SpanProcessor
	// First, so that spans are advertised in the process context, and not beside it.
	if !contains[*resourceProcessor](has) {
		p := &resourceProcessor{}
		if r != nil {
			p.serve(r)
		}
		add = append(add, p)
	}
	if !contains[*spanctx.SpanProcessor](has) {
		if p := spanctx.ForProvider(); p != nil {
			add = append(add, p)
		}
	}
	if environment.UniversalProfiling.Bool() && !contains[*universalprofiling.Integration](has) {
		if p := universalprofiling.ForProvider(); p != nil {
			add = append(add, p)
		}
	}
	return add
}

func contains[P sdktrace.SpanProcessor](has []sdktrace.SpanProcessor) bool {
	return slices.ContainsFunc(has, func(p sdktrace.SpanProcessor) bool { _, ok := p.(P); return ok })
}

// provider adds to a provider, which has a resource and processors, what [Options] would
// have. NewTracerProvider calls it by name, see sdktrace.go.
func provider(tp *sdktrace.TracerProvider, r *resource.Resource, has []sdktrace.SpanProcessor) {
	for _, p := range processors(has, r) {
		tp.RegisterSpanProcessor(p)
	}
}
