// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
)

// RecordUnsampled returns a sampler that decides as s does, but records what s drops,
// so that profilers are shown these spans too. Their sampled flag stays off, they are
// not exported, and their children are sampled as before.
//
// It costs what recording costs: an unsampled span becomes about as expensive as a
// sampled one is before its export (benchmarks/README.md has figures). Profiles then
// hold ids of spans that no backend has.
//
// nil stands for the sampler that a provider has without an option, which
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG choose.
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

// Description says what the sampler does.
func (r recordUnsampled) Description() string {
	return fmt.Sprintf("RecordUnsampled{%s}", r.Sampler.Description())
}
