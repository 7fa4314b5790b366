// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command host creates a TracerProvider and opens the plugin named by its argument. After each step
// it prints a line while it works in a span, and waits for a line on its standard input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"plugin"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

func main() {
	otel.SetTracerProvider(trace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "host"))),
		spanctx.WithPublishing(),
	))
	guest, err := plugin.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// The unchecked type assertions below panic only if the plugin's functions have other types.
	work, err := guest.Lookup("Work")
	if err != nil {
		panic(err)
	}
	second, err := guest.Lookup("NewProvider")
	if err != nil {
		panic(err)
	}
	input := bufio.NewScanner(os.Stdin)
	wait := func() {
		fmt.Println("ready")
		var done atomic.Bool
		go func() {
			input.Scan()
			done.Store(true)
		}()
		for !done.Load() {
			continue // Use CPU time.
		}
	}
	ctx, span := otel.Tracer("host").Start(context.Background(), "host")
	work.(func(context.Context, func()))(ctx, wait)
	wait() // the span of the plugin has ended
	shutdown := second.(func() func(context.Context) error)()
	work.(func(context.Context, func()))(ctx, wait)
	if err := shutdown(ctx); err != nil {
		panic(err)
	}
	wait() // the host's provider still publishes spans
	span.End()
}
