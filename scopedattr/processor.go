// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/attrcontext"
)

// NewSpanProcessor returns a processor that adds the attributes of the context passed to Start to
// each span, except for keys that the span already has. Use it for a TracerProvider that already
// exists, because its sampler can no longer be changed:
//
//	tp.RegisterSpanProcessor(scopedattr.NewSpanProcessor())
//
// It does less than [NewSampler]. Neither samplers nor processors that were registered earlier see
// the attributes. Spans that were started before the processor was registered do not get the
// attributes. If the provider's attribute count limit is reached, attributes of the sampler and
// those given at Start come first, then the context's, then attributes that are set later. It is
// not needed together with NewSampler.
//
// It is safe for concurrent use. Shutdown and ForceFlush do nothing.
func NewSpanProcessor() sdktrace.SpanProcessor { return spanProcessor{} }

type spanProcessor struct{}

// OnStart adds the attributes of ctx, except for keys that span already has.
func (spanProcessor) OnStart(ctx context.Context, span sdktrace.ReadWriteSpan) {
	scoped := attrcontext.From(ctx)
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
