// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command guest is a plugin that starts spans with the host's provider.
package main

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// Work calls work in a span of the plugin.
func Work(ctx context.Context, work func()) {
	_, span := otel.Tracer("guest").Start(ctx, "guest")
	defer span.End()
	work()
}

// NewProvider sets the plugin's own provider as the global one, and returns its Shutdown function.
func NewProvider() func(context.Context) error {
	tp := trace.NewTracerProvider(spanctx.WithPublishing())
	otel.SetTracerProvider(tp)
	return tp.Shutdown
}

func main() {}
