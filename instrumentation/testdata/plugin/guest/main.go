// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command guest is a plugin: its spans are those of the host's provider.
package main

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// Work works in a span of the plugin.
func Work(ctx context.Context, work func()) {
	_, span := otel.Tracer("guest").Start(ctx, "guest")
	defer span.End()
	work()
}

// NewProvider makes the plugin's own provider the global one, and returns what shuts it down.
func NewProvider() func(context.Context) error {
	tp := trace.NewTracerProvider(spanctx.WithPublishing())
	otel.SetTracerProvider(tp)
	return tp.Shutdown
}

func main() {}
