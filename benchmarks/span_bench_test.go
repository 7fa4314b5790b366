// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// noop is the baseline: a provider without any processor would not even make
// spans that record.
type noop struct{}

func (noop) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (noop) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (noop) Shutdown(context.Context) error                  { return nil }
func (noop) ForceFlush(context.Context) error                { return nil }

// tracers returns the tracer of a provider with the processor that the name says.
var tracers = []struct {
	processor string
	tracer    func(testing.TB) trace.Tracer
}{
	{"noop", func(tb testing.TB) trace.Tracer { return tracer(tb, noop{}) }},
	{"publisher", func(tb testing.TB) trace.Tracer { return tracer(tb, newPublisher(tb, typicalResource())) }},
}

func tracer(tb testing.TB, processor sdktrace.SpanProcessor) trace.Tracer {
	tb.Helper()
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithResource(typicalResource()),
		sdktrace.WithSpanProcessor(processor),
	)
	tb.Cleanup(func() { require.NoError(tb, tp.Shutdown(context.Background())) })
	return tp.Tracer("benchmarks")
}

// BenchmarkSpan starts and ends a span.
func BenchmarkSpan(b *testing.B) {
	for _, t := range tracers {
		b.Run("processor="+t.processor, func(b *testing.B) {
			tracer := t.tracer(b)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				_, span := tracer.Start(ctx, "work")
				span.End()
			}
		})
	}
}

func TestPublisherDoesNotAllocateOnTheSpanPath(t *testing.T) {
	allocs := map[string]float64{}
	for _, tr := range tracers {
		t.Run(tr.processor, func(t *testing.T) {
			tracer := tr.tracer(t)
			allocs[tr.processor] = testing.AllocsPerRun(1000, func() {
				_, span := tracer.Start(t.Context(), "work")
				span.End()
			})
		})
	}
	if _, ok := allocs["publisher"]; !ok {
		t.Skip("nothing is published on this platform")
	}
	assert.InDelta(t, allocs["noop"], allocs["publisher"], 0, "allocations per span")
}
