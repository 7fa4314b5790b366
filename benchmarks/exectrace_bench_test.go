// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"io"
	rttrace "runtime/trace"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/exectrace"
)

// BenchmarkExecutionTrace starts and ends spans of a provider of package exectrace, which logs the
// spans' ids in execution traces. The baseline is the same provider without exectrace. With
// traced=yes an execution trace is running, and the SDK creates a user task for each span of both.
func BenchmarkExecutionTrace(b *testing.B) {
	for _, traced := range []string{"no", "yes"} {
		for _, s := range shapes {
			b.Run("traced="+traced+"/shape="+s.shape, func(b *testing.B) {
				tp := provider(b, sdktrace.WithSpanProcessor(noop))
				baseline, candidate := tp.Tracer("benchmarks"), exectrace.NewTracerProvider(tp).Tracer("benchmarks")
				if traced == "yes" {
					require.NoError(b, rttrace.Start(io.Discard))
					defer rttrace.Stop()
				}
				alternate(b, batch,
					func(n int) { s.run(b.Context(), baseline, n) },
					func(n int) { s.run(b.Context(), candidate, n) })
			})
		}
	}
}
