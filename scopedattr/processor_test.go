// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// processedSpan returns an ended span of a provider that was created before the processor.
func processedSpan(t *testing.T, limit int, own, ctx, later string, opts ...sdktrace.TracerProviderOption) sdktrace.ReadOnlySpan {
	t.Helper()
	limits := sdktrace.NewSpanLimits()
	limits.AttributeCountLimit = limit
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(spans), sdktrace.WithRawSpanLimits(limits))...)
	defer func() { require.NoError(t, tp.Shutdown(t.Context())) }()
	tp.RegisterSpanProcessor(NewSpanProcessor())
	_, span := tp.Tracer("test").Start(with(t.Context(), ctx), "work", trace.WithAttributes(list(own)...))
	span.SetAttributes(list(later)...)
	span.End()
	require.NoError(t, tp.ForceFlush(t.Context()))
	return spans.Ended()[0]
}

func TestSpanProcessor(t *testing.T) {
	for name, tt := range map[string]struct {
		limit                 int
		own, ctx, later, want string
		dropped               int
	}{
		"nothing set":                     {-1, "a=own", "", "", "a=own", 0},
		"added":                           {-1, "a=own", "b=ctx", "", "a=own b=ctx", 0},
		"those given at Start win":        {-1, "a=own", "a=ctx b=ctx", "", "a=own b=ctx", 0},
		"those set later win":             {-1, "", "a=ctx b=ctx", "a=later", "a=later b=ctx", 0},
		"limit before the context's":      {1, "a=own", "b=ctx", "", "a=own", 1},
		"limit before those set later":    {2, "a=own", "b=ctx", "c=later", "a=own b=ctx", 1},
		"an attribute without a key":      {-1, "", "=x a=ctx", "", "a=ctx", 0},
		"no room, but nothing is dropped": {1, "a=own", "a=ctx", "", "a=own", 0},
	} {
		t.Run(name, func(t *testing.T) {
			span := processedSpan(t, tt.limit, tt.own, tt.ctx, tt.later)
			equal(t, tt.want, span.Attributes())
			assert.Equal(t, tt.dropped, span.DroppedAttributes())
			if tt.limit < 0 {
				equal(t, tt.want, processedSpan(t, tt.limit, tt.own, tt.ctx, tt.later, WithSampler(nil)).Attributes(), "together with the sampler")
			}
		})
	}
}
