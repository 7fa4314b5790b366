// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
)

// RecordUnsampled returns a sampler that records the spans that s drops, so that they are
// published, too. Nothing else changes: these spans still have no sampled flag and are not
// exported, and their children are sampled as before.
//
// Such a span costs as much as a sampled span, minus the export. [PublishAll] publishes the same spans
// and does not record them, which costs less. In both cases, profiles contain the ids of spans that are
// in no tracing backend.
//
// If s is nil, RecordUnsampled wraps the provider's default sampler, as chosen by
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG.
func RecordUnsampled(s sdktrace.Sampler) sdktrace.Sampler {
	if s == nil {
		s = sdkspan.DefaultSampler()
	}
	return recordUnsampled{s}
}

type recordUnsampled struct{ sdktrace.Sampler }

// ShouldSample turns Drop into RecordOnly.
func (r recordUnsampled) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	result := r.Sampler.ShouldSample(p)
	if result.Decision == sdktrace.Drop {
		result.Decision = sdktrace.RecordOnly
	}
	return result
}

// Description returns RecordUnsampled{...} around the description of the wrapped sampler.
func (r recordUnsampled) Description() string {
	return fmt.Sprintf("RecordUnsampled{%s}", r.Sampler.Description())
}
