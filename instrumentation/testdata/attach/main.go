// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command attach starts a span, then attaches contexts that contain no span. It prints whether its
// goroutine is labeled with the span: at the start, while each context is attached, and after each
// Detach.
package main

import (
	"context"
	"fmt"
	"runtime/pprof"
	"strings"

	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/spanctx"
)

func main() {
	_, span := trace.NewTracerProvider(spanctx.WithPublishing()).Tracer("attach").Start(context.Background(), "work")
	isIn := func() {
		var profile strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
		fmt.Println(strings.Contains(profile.String(), span.SpanContext().SpanID().String()))
	}
	isIn()
	canceled, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, ctx := range []context.Context{context.Background(), canceled} {
		attachment := spanctx.Attach(ctx)
		isIn()
		attachment.Detach()
		isIn()
	}
}
