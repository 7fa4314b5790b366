//go:build ignore

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// The rules in this directory add this file to go.opentelemetry.io/otel/sdk/trace. That package
// cannot import package instrumentation, which imports the SDK, so this file calls a function of
// instrumentation through go:linkname.
package trace

import (
	_ "unsafe"

	"go.opentelemetry.io/otel/sdk/resource"
)

// This is sound because both declarations have the same signature. TestInjected compiles and runs
// it.
//
//go:linkname otelctxProvider github.com/otelctx/otelctx/instrumentation.provider
func otelctxProvider(tp *TracerProvider, r *resource.Resource, has []SpanProcessor)

// otelctxPublish passes the provider that NewTracerProvider is about to return to otelctx.
func otelctxPublish(tp *TracerProvider) {
	if tp == nil {
		return // NewTracerProvider is panicking.
	}
	var has []SpanProcessor
	for _, s := range *tp.spanProcessors.Load() {
		has = append(has, s.sp)
	}
	otelctxProvider(tp, tp.resource, has)
}
