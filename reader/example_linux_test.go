// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// Read the resource that a process publishes. This example reads its own process; a profiler reads
// others in the same way.
func Example() {
	ctx := context.Background()
	pub, err := resourcepublisher.New(
		resource.NewSchemaless(
			attribute.String("service.name", "checkout"),
			attribute.String("service.version", "1.2.3"),
		),
		resourcepublisher.WithEnabled(true),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pub.Shutdown(ctx)

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	pc, err := p.ProcessContext(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, kv := range pc.Resource.GetAttributes() {
		fmt.Printf("%s = %s\n", kv.GetKey(), kv.GetValue().GetStringValue())
	}
	// Output:
	// service.name = checkout
	// service.version = 1.2.3
}

// Reading can fail for several reasons. Most processes, for example, publish no context.
func ExampleProcess_ProcessContext_errors() {
	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()

	_, err = p.ProcessContext(context.Background())
	switch {
	case errors.Is(err, reader.ErrNoContext):
		fmt.Println("try again once the process has had time to publish")
	case errors.Is(err, reader.ErrBusy):
		fmt.Println("try again in a moment")
	case errors.Is(err, reader.ErrProcessGone):
		fmt.Println("forget it")
	case errors.Is(err, reader.ErrNotPermitted):
		fmt.Println("run as the same user, or with CAP_SYS_PTRACE")
	}
	// Output:
	// try again once the process has had time to publish
}

// Find out whether a cached context is still current.
func ExampleProcess_Changed() {
	ctx := context.Background()
	named := func(service string) *resource.Resource {
		return resource.NewSchemaless(attribute.String("service.name", service))
	}
	pub, err := resourcepublisher.New(named("checkout"), resourcepublisher.WithEnabled(true))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pub.Shutdown(ctx)

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	pc, err := p.ProcessContext(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Changed(pc.PublishedAtNS))

	if err := pub.Update(named("checkout-v2")); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Changed(pc.PublishedAtNS))
	// Output:
	// false <nil>
	// true <nil>
}

// List the threads that have an active span. This example reads its own process, which has one
// span.
func ExampleProcess_Threads() {
	ctx := context.Background()
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
		spanctx.WithPublishing(),
	)
	defer tp.Shutdown(ctx)
	// Keep the goroutine with the span on its thread while the threads are read.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, span := tp.Tracer("shop").Start(ctx, "GET /cart")
	defer span.End()

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	threads, err := p.Threads(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range threads {
		if t.Span == nil {
			continue // most threads have no active span
		}
		fmt.Println("the span:", trace.SpanID(t.Span.SpanID) == span.SpanContext().SpanID())
		fmt.Println("from the", t.Span.Carrier, "proven:", t.Span.Proven)
	}
	// Output:
	// the span: true
	// from the goroutine_record proven: true
}

// Print some of the data that a BPF program needs to find the active span of the thread that it
// samples.
func ExampleProcess_ThreadLayout() {
	ctx := context.Background()
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
		spanctx.WithPublishing(),
	)
	defer tp.Shutdown(ctx)

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	layout, err := p.ThreadLayout(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range layout.Carriers {
		switch c.Kind {
		case reader.GoroutineTable:
			fmt.Printf("%v, %v: %d entries of %d bytes\n", c.Kind, c.Source, c.Table.Capacity, c.Table.EntrySize)
		case reader.ThreadSlots:
			fmt.Printf("%v, %v: %d slots of %d bytes, the span id at %d\n",
				c.Kind, c.Source, c.Table.Capacity, c.Table.EntrySize, c.Table.Fields["span_id"])
		case reader.GoroutineRecord:
			fmt.Printf("%v, %v: behind the labels: %t\n", c.Kind, c.Source, c.Record.Offset > 0)
		}
	}
	fmt.Println("goroutine ids are readable:", layout.Runtime.GGoid != 0)
	// Output:
	// thread_slots, advertised: 65536 slots of 64 bytes, the span id at 16
	// goroutine_table, advertised: 65536 entries of 16 bytes
	// goroutine_record, advertised: behind the labels: true
	// goroutine ids are readable: true
}

// Find all processes that publish a resource. This example prints only its own.
func ExamplePublishers() {
	ctx := context.Background()
	pub, err := resourcepublisher.New(resource.NewSchemaless(attribute.String("service.name", "checkout")))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pub.Shutdown(ctx)

	for p, err := range reader.Publishers(ctx) {
		if err != nil {
			continue // a process that cannot be examined, usually for lack of permission
		}
		if pc, err := p.ProcessContext(ctx); err == nil && p.PID() == os.Getpid() {
			fmt.Println(pc.Resource.GetAttributes()[0].GetValue().GetStringValue())
		}
		p.Close()
	}
	// Output:
	// checkout
}
