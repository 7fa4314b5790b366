// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"testing"

	"github.com/stretchr/testify/assert"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// RecordUnsampled(nil) wraps the provider's default sampler.
func TestRecordUnsampledNil(t *testing.T) {
	for env, sampled := range map[string]bool{"parentbased_always_on": true, "always_off": false} {
		t.Setenv("OTEL_TRACES_SAMPLER", env)
		tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(RecordUnsampled(nil)))
		_, span := tp.Tracer("test").Start(t.Context(), "a")
		assert.True(t, span.IsRecording(), env)
		assert.Equal(t, sampled, span.SpanContext().IsSampled(), env)
		span.End()
	}
}
