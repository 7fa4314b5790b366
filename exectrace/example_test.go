// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package exectrace_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	rttrace "runtime/trace"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/exectrace"
)

// The flight recorder keeps the last few seconds of the execution trace in memory. The service
// writes them to a file after a slow request.
func ExampleNewTracerProvider() {
	tp := sdktrace.NewTracerProvider()
	defer func() { _ = tp.Shutdown(context.Background()) }()
	recorder := rttrace.NewFlightRecorder(rttrace.FlightRecorderConfig{MinAge: 5 * time.Second})
	if err := recorder.Start(); err != nil {
		log.Print(err)
		return
	}
	defer recorder.Stop()

	tracer := exectrace.NewTracerProvider(tp).Tracer("example")
	_, span := tracer.Start(context.Background(), "GET /cart")
	slow := true // in a service: the request took too long
	span.End()

	if slow {
		// Open the file with go tool trace, which lists the task GET /cart among the user-defined
		// tasks.
		var file bytes.Buffer
		if _, err := recorder.WriteTo(&file); err != nil {
			log.Print(err)
		}
		fmt.Println(bytes.Contains(file.Bytes(), []byte(span.SpanContext().TraceID().String())))
	}
	// Output: true
}
