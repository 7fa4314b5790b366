// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command cases creates TracerProviders in various ways, as real programs do, without any
// reference to otelctx. Its argument is the name of a case. It prints a line when the providers
// exist, and exits when its standard input ends.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

func named(service string) trace.TracerProviderOption {
	return trace.WithResource(resource.NewSchemaless(attribute.String("service.name", service)))
}

// start starts a span that never ends.
func start(tp *trace.TracerProvider, name string) {
	_, _ = tp.Tracer("cases").Start(context.Background(), name)
}

var cases = map[string]func(){
	// No span is started, so only the rules can publish this resource: Options waits for the first
	// span.
	"idle": func() { trace.NewTracerProvider(named("idle")) },
	"span": func() { start(trace.NewTracerProvider(named("span")), "work") },
	"global": func() {
		otel.SetTracerProvider(trace.NewTracerProvider(named("global")))
		_, _ = otel.Tracer("cases").Start(context.Background(), "work")
	},
	"without resource": func() { start(trace.NewTracerProvider(), "work") },
	"value": func() {
		newProvider := trace.NewTracerProvider
		start(newProvider(named("value")), "work")
	},
	// opts has spare capacity. The first provider must not affect the second one through it.
	"spread": func() {
		opts := append(make([]trace.TracerProviderOption, 0, 8), named("spread"))
		start(trace.NewTracerProvider(opts...), "one")
		start(trace.NewTracerProvider(opts...), "two")
	},
	"two": func() {
		start(trace.NewTracerProvider(named("first")), "one")
		start(trace.NewTracerProvider(named("second")), "two")
	},
	"next": func() {
		first := trace.NewTracerProvider(named("first"))
		start(trace.NewTracerProvider(named("second")), "two")
		_ = first.Shutdown(context.Background())
	},
	"shut down": func() { _ = trace.NewTracerProvider(named("gone")).Shutdown(context.Background()) },
	"parallel": func() {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				tp := trace.NewTracerProvider(named("same"))
				_, span := tp.Tracer("cases").Start(context.Background(), fmt.Sprint("work ", i))
				span.End()
				_ = tp.Shutdown(context.Background())
			})
		}
		all.Wait()
		start(trace.NewTracerProvider(named("last")), "work")
	},
	"rate": func() {
		trace.NewTracerProvider(named("rate"))
		fmt.Println("rate:", runtime.MemProfileRate)
	},
	"panic": func() {
		defer func() { fmt.Println("panic:", recover()) }()
		trace.NewTracerProvider(nil)
	},
}

func main() {
	do := cases[slices.Concat(os.Args, []string{""})[1]]
	if do == nil {
		fmt.Fprintln(os.Stderr, "no such case")
		os.Exit(2)
	}
	do()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}
