// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/universalprofiling"
)

// printer is an exporter that prints spans.
type printer struct{}

func (printer) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		for _, kv := range s.Attributes() {
			fmt.Println(s.Name(), kv.Key, kv.Value.String())
		}
	}
	return nil
}

func (printer) Shutdown(context.Context) error { return nil }

// This service publishes its spans to profilers. It exports its transactions with the stack traces
// that profilers send.
func Example() {
	res := resource.NewSchemaless(attribute.String("service.name", "checkout"))
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithResource(res),
		universalprofiling.WithIntegration(
			universalprofiling.WithResource(res),
			universalprofiling.WithMode(universalprofiling.ModeEnabled),
		),
		sdktrace.WithBatcher(universalprofiling.NewExporter(printer{})),
	)
	_, span := tp.Tracer("example").Start(context.Background(), "request")
	span.SetAttributes(attribute.Int("items", 3))
	span.End()
	if err := tp.Shutdown(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// request items 3
}

// New returns errors to its caller. This example also plays the part of the profiler: it sends
// messages to the socket.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	integration, err := universalprofiling.New(
		universalprofiling.WithMode(universalprofiling.ModeEnabled),
		universalprofiling.WithSocketDir(dir),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(integration),
		sdktrace.WithBatcher(universalprofiling.NewExporter(printer{})),
	)
	_, span := tp.Tracer("example").Start(context.Background(), "request")
	span.End()

	profile(dir, wire.ProfilingCorrelation{
		TraceID: span.SpanContext().TraceID(), TransactionID: span.SpanContext().SpanID(),
		StackTraceID: [16]byte{0x4c, 0x93, 0x26, 0xbb}, Count: 2,
	}.Encode())
	for integration.Stats().Correlations == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := tp.Shutdown(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// request elastic.profiler_stack_trace_ids ["TJMmuwAAAAAAAAAAAAAAAA","TJMmuwAAAAAAAAAAAAAAAA"]
}

// profile sends a message to the only socket in a directory.
func profile(dir string, message []byte) {
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		fmt.Println(files, err)
		return
	}
	conn, err := net.Dial("unixgram", dir+"/"+files[0].Name())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(message); err != nil {
		fmt.Println(err)
	}
}
