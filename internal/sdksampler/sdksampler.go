// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sdksampler

import (
	"os"
	"strconv"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Default returns the sampler that a TracerProvider has without an option. The
// SDK does not hand it out, so that it is read from the environment once more; the
// provider reports what is wrong there.
func Default() sdktrace.Sampler {
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
	default: // parentbased_always_on, nothing, and what the SDK does not know
		return sdktrace.ParentBased(sdktrace.AlwaysSample())
	}
}

// ratio returns the ratio of the environment: 1 if there is none that the SDK would
// take. Above 1 it is the same as 1.
func ratio() float64 {
	r, err := strconv.ParseFloat(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")), 64)
	if err != nil || r < 0 {
		return 1
	}
	return r
}
