// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spanpath"
)

// NewSampler returns a sampler that decides like next, and calls spanctx.Refresh for each span that next
// drops. The SDK does not call processors for such a span, so without Refresh the thread would keep
// publishing its previous span, which may belong to another goroutine's transaction. Samples in a
// dropped span are attributed to the span that the goroutine is in.
//
// A nil next stands for the sampler of a provider without a sampler option, which
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG choose.
func NewSampler(next sdktrace.Sampler) sdktrace.Sampler {
	if next == nil {
		next = sdkspan.DefaultSampler()
	}
	return sampler{next}
}

type sampler struct{ sdktrace.Sampler }

// ShouldSample calls the wrapped sampler, and spanctx.Refresh if it drops the span.
func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := s.Sampler.ShouldSample(p)
	if r.Decision == sdktrace.Drop {
		spanpath.Refresh(p.ParentContext, false)
	}
	return r
}

// Description returns UniversalProfiling{...} around the description of the wrapped sampler.
func (s sampler) Description() string {
	return fmt.Sprintf("UniversalProfiling{%s}", s.Sampler.Description())
}
