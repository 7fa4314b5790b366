// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command library is built as a library for C programs. Each copy has its own Go runtime.
package main

import (
	"C"
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

var (
	stop atomic.Bool
	done = make(chan struct{})
)

// Begin publishes a resource and spans, starts a goroutine that works in a span, and returns. Both
// the service and the span are called name.
//
//export Begin
func Begin(name *C.char) {
	service := C.GoString(name)
	tp := trace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", service))),
		spanctx.WithPublishing(),
		universalprofiling.WithIntegration(),
	)
	started := make(chan struct{})
	go func() {
		defer close(done)
		_, span := tp.Tracer("").Start(context.Background(), service)
		close(started)
		for !stop.Load() {
			continue // Use CPU time.
		}
		span.End()
		if err := tp.Shutdown(context.Background()); err != nil {
			panic(err)
		}
	}()
	<-started
}

// End stops the goroutine that Begin started, and shuts down the provider. The resource stays
// published.
//
//export End
func End() {
	stop.Store(true)
	<-done
}

func main() {}
