// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sdkspan

import (
	"os"
	"strconv"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// DefaultSampler returns the sampler that a TracerProvider uses if no option sets one. The SDK does
// not export it, so this function derives it from the same environment variables. It ignores
// invalid values, because the provider reports them.
func DefaultSampler() sdktrace.Sampler {
	switch strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER"))) {
	case "always_on":
		return sdktrace.AlwaysSample()
	case "always_off":
		return sdktrace.NeverSample()
	case "traceidratio":
		return sdktrace.TraceIDRatioBased(ratio())
	case "parentbased_always_off":
		return sdktrace.ParentBased(sdktrace.NeverSample())
	case "parentbased_traceidratio":
		return sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio()))
	default: // parentbased_always_on, not set, or a value that the SDK does not know
		return sdktrace.ParentBased(sdktrace.AlwaysSample())
	}
}

// ratio returns the sampling ratio from the environment, or 1 if it is not set or invalid. A ratio
// above 1 has the same effect as 1.
func ratio() float64 {
	r, err := strconv.ParseFloat(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")), 64)
	if err != nil || r < 0 {
		return 1
	}
	return r
}
