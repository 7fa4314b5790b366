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
// not export that sampler, so this function reads the same environment variables. The provider
// reports invalid values.
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
	default: // parentbased_always_on, unset, or unknown to the SDK
		return sdktrace.ParentBased(sdktrace.AlwaysSample())
	}
}

// ratio returns the ratio from the environment, or 1 if it is missing or invalid. Ratios above 1 have
// the same effect as 1.
func ratio() float64 {
	r, err := strconv.ParseFloat(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")), 64)
	if err != nil || r < 0 {
		return 1
	}
	return r
}
