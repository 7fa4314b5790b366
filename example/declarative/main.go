// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command declarative configures OpenTelemetry from the file that OTEL_CONFIG_FILE names. It
// publishes its spans and, as soon as the first one starts, the resource that the file describes.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"go.opentelemetry.io/contrib/otelconf"
	"go.opentelemetry.io/otel"

	"github.com/otelctx/otelctx/instrumentation"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Stdin); err != nil {
		log.Fatal(err)
	}
}

// run works in a span until stdin ends.
func run(ctx context.Context, stdout io.Writer, stdin io.Reader) error {
	sdk, err := otelconf.NewSDK(otelconf.WithTracerProviderOptions(instrumentation.Options()...))
	if err != nil {
		return err
	}
	otel.SetTracerProvider(sdk.TracerProvider())
	_, span := otel.Tracer("declarative").Start(ctx, "work")
	_, _ = fmt.Fprintf(stdout, "look with otelctx inspect %d\n", os.Getpid())
	_, _ = io.Copy(io.Discard, stdin)
	span.End()
	return sdk.Shutdown(ctx)
}
