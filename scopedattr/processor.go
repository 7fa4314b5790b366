// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/contextattr"
)

// NewSpanProcessor returns a processor that adds to each span the attributes of the context
// that it is started with, unless the span has the key. It is for a TracerProvider that
// exists already and takes no sampler any more:
//
//	tp.RegisterSpanProcessor(scopedattr.NewSpanProcessor())
//
// It does less than [NewSampler]. Samplers do not see the attributes, and neither does the
// OnStart of processors that were registered before it. Spans that were started before it was
// registered have none. The provider's limit on the number of attributes may leave room for
// some only. Then those of the sampler and those given at Start have their places first. The
// context's come before those that are set later. Beside NewSampler it is not needed.
//
// It is safe for concurrent use. Shutdown and ForceFlush do nothing.
func NewSpanProcessor() sdktrace.SpanProcessor { return spanProcessor{} }

type spanProcessor struct{}

// OnStart adds what the span lacks of the context's attributes.
func (spanProcessor) OnStart(ctx context.Context, span sdktrace.ReadWriteSpan) {
	scoped := contextattr.From(ctx)
	if scoped == nil || span == nil {
		return
	}
	_, missing := below(span.Attributes(), scoped.Attrs())
	span.SetAttributes(missing...)
}

// OnEnd does nothing.
func (spanProcessor) OnEnd(sdktrace.ReadOnlySpan) {}

// Shutdown does nothing.
func (spanProcessor) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (spanProcessor) ForceFlush(context.Context) error { return nil }
