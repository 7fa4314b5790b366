//go:build ignore

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// This file is added to go.opentelemetry.io/otel/sdk/trace when the rules beside it apply.
// The package cannot import ours, which imports it; so the function is linked by name.
package trace

import (
	_ "unsafe"

	"go.opentelemetry.io/otel/sdk/resource"
)

// Sound: both sides have the same parameters, which a test compiles and runs.
//
//go:linkname otelctxProvider github.com/otelctx/otelctx/instrumentation.provider
func otelctxProvider(tp *TracerProvider, r *resource.Resource, has []SpanProcessor)

// otelctxPublish tells otelctx of a provider that NewTracerProvider is about to return.
func otelctxPublish(tp *TracerProvider) {
	if tp == nil {
		return // It panics.
	}
	var has []SpanProcessor
	for _, s := range *tp.spanProcessors.Load() {
		has = append(has, s.sp)
	}
	otelctxProvider(tp, tp.resource, has)
}
