// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/spanctx"
)

// show prints the carrier in which a profiler finds a span for the calling thread, and whether it
// is the given span.
func show(span trace.Span) {
	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	// Keep the goroutine on this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spanctx.Refresh(trace.ContextWithSpan(context.Background(), span))
	threads, err := p.Threads(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range threads {
		if t.OwnTID != syscall.Gettid() {
			continue
		}
		if t.Span == nil {
			fmt.Println("no span")
			return
		}
		own := span.SpanContext()
		fmt.Printf("%v: the span: %t, proven: %t, sampled: %t\n", t.Span.Carrier,
			own.TraceID() == t.Span.TraceID && own.SpanID() == t.Span.SpanID, t.Span.Proven, t.Span.TraceFlags&1 == 1)
	}
}

// newProvider returns a TracerProvider that publishes spans, set up as in a service.
func newProvider(opts ...sdktrace.TracerProviderOption) *sdktrace.TracerProvider {
	return sdktrace.NewTracerProvider(append(opts,
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		spanctx.WithPublishing(),
	)...)
}

func ExampleWithPublishing() {
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		spanctx.WithPublishing(),
	)
	defer tp.Shutdown(context.Background())

	_, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	show(span)
	span.End()
	show(span)
	// Output:
	// goroutine_record: the span: true, proven: true, sampled: true
	// no span
}

func ExampleNew() {
	p, err := spanctx.New(spanctx.WithLabels(spanctx.LabelsOff))
	if err != nil {
		fmt.Println(err) // the service continues without publishing
		return
	}
	fmt.Println("requested carriers that are off:", p.Stats().Off)
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		sdktrace.WithSpanProcessor(p),
	)
	defer tp.Shutdown(context.Background())

	_, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	defer span.End()
	show(span)
	// Output:
	// requested carriers that are off: <nil>
	// goroutine_table: the span: true, proven: true, sampled: true
}

// A service has two TracerProviders while it reloads its configuration. The spans of both are published,
// until the last provider is shut down.
func ExampleCurrent() {
	former, reloaded := newProvider(), newProvider()
	for _, tp := range []*sdktrace.TracerProvider{former, reloaded} {
		_, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
		show(span)
		span.End()
	}
	former.Shutdown(context.Background())
	_, span := reloaded.Tracer("shop").Start(context.Background(), "GET /cart")
	show(span)
	span.End()
	fmt.Println(spanctx.Current().Stats().Carriers)
	reloaded.Shutdown(context.Background())
	fmt.Println("still publishing:", spanctx.Current() != nil)
	// Output:
	// goroutine_record: the span: true, proven: true, sampled: true
	// goroutine_record: the span: true, proven: true, sampled: true
	// goroutine_record: the span: true, proven: true, sampled: true
	// [thread_slots goroutine_table goroutine_record]
	// still publishing: false
}

// A pool worker publishes the span of the task that it works on.
func ExampleAttach() {
	tp := newProvider()
	defer tp.Shutdown(context.Background())
	work, done := make(chan context.Context), make(chan struct{})
	go func() {
		for ctx := range work {
			func() {
				defer spanctx.Attach(ctx).Detach()
				show(trace.SpanFromContext(ctx))
			}()
			show(trace.SpanFromContext(ctx))
		}
		close(done)
	}()

	ctx, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	work <- ctx
	close(work)
	<-done
	span.End()
	// Output:
	// goroutine_record: the span: true, proven: true, sampled: true
	// no span
}

func ExampleGo() {
	tp := newProvider()
	defer tp.Shutdown(context.Background())
	ctx, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	defer span.End()

	done := make(chan struct{})
	spanctx.Go(ctx, func(ctx context.Context) {
		show(trace.SpanFromContext(ctx))
		close(done)
	})
	<-done
	// Output:
	// goroutine_record: the span: true, proven: true, sampled: true
}

// Profilers also see unsampled spans, whose attributes are dropped.
func ExamplePublishAll() {
	tp := spanctx.PublishAll(sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		sdktrace.WithSampler(sdktrace.NeverSample()),
	))
	defer tp.Shutdown(context.Background())

	_, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	defer span.End()
	show(span)
	// Output:
	// goroutine_record: the span: true, proven: true, sampled: false
}

// Profilers also see unsampled spans.
func ExampleRecordUnsampled() {
	tp := newProvider(sdktrace.WithSampler(spanctx.RecordUnsampled(sdktrace.NeverSample())))
	defer tp.Shutdown(context.Background())

	_, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	defer span.End()
	show(span)
	// Output:
	// goroutine_record: the span: true, proven: true, sampled: false
}

// Profilers also see the context-scoped attributes of spans.
func ExampleWithAttributeKeys() {
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		spanctx.WithPublishing(spanctx.WithAttributeKeys("http.app")),
	)
	defer tp.Shutdown(context.Background())

	// Keep the goroutine on the thread that is read.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx := scopedattr.ContextWithAttributes(context.Background(),
		attribute.String("http.app", "shop"), attribute.String("enduser.id", "ann"))
	_, span := tp.Tracer("shop").Start(ctx, "GET /cart")
	defer span.End()

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	threads, err := p.Threads(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range threads {
		if t.Span != nil && t.OwnTID == syscall.Gettid() {
			fmt.Println(t.Span.Attributes)
		}
	}
	// Output:
	// [{http.app shop}]
}
