// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation_test

import (
	"context"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/instrumentation"
)

// A program that gets its provider options from elsewhere can append the options of otelctx.
func ExampleOptions() {
	opts := []sdktrace.TracerProviderOption{sdktrace.WithSampler(sdktrace.AlwaysSample())}
	tp := sdktrace.NewTracerProvider(append(opts, instrumentation.Options()...)...)
	_, span := tp.Tracer("example").Start(context.Background(), "published")
	span.End()
	fmt.Println(tp.Shutdown(context.Background()))
	// Output: <nil>
}
