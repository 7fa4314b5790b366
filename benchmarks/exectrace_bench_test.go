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

// BenchmarkExecutionTrace starts and ends spans whose ids are logged in execution traces. The
// baseline is the same provider without this logging. The benchmark runs without an execution trace
// and during one, when the SDK creates a user task for every span.
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
