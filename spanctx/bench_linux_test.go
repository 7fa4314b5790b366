// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/spanctx"
)

// BenchmarkSpan starts and ends a span. With processor=noop nothing is published.
func BenchmarkSpan(b *testing.B) {
	for _, bb := range []struct {
		processor string
		option    func() sdktrace.TracerProviderOption
	}{
		{"noop", func() sdktrace.TracerProviderOption { return sdktrace.WithSpanProcessor(oteltest.SpanProcessor{}) }},
		{"default", func() sdktrace.TracerProviderOption { return spanctx.WithPublishing() }},
		{"no-labels", func() sdktrace.TracerProviderOption {
			return spanctx.WithPublishing(spanctx.WithLabels(spanctx.LabelsOff))
		}},
	} {
		b.Run("processor="+bb.processor, func(b *testing.B) {
			tracer := oteltest.Tracer(b, bb.option())
			b.ReportAllocs()
			for b.Loop() {
				_, span := tracer.Start(context.Background(), "span")
				span.End()
			}
		})
	}
}
