// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/providers"
)

// resourceProcessor publishes the resource of the providers that it is registered with.
type resourceProcessor struct{ handle *providers.Handle }

var _ sdktrace.SpanProcessor = resourceProcessor{}

// OnStart takes the resource from the provider's first span.
func (p resourceProcessor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if s != nil {
		p.handle.Started(s)
	}
}

// OnEnd does nothing.
func (resourceProcessor) OnEnd(sdktrace.ReadOnlySpan) {}

// ForceFlush does nothing, because nothing is buffered.
func (resourceProcessor) ForceFlush(context.Context) error { return nil }

// Shutdown withdraws the resource of the provider that is being shut down.
func (p resourceProcessor) Shutdown(context.Context) error { return p.handle.Shutdown() }
