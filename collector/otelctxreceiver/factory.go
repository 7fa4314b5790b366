// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelctxreceiver records profiles in an OpenTelemetry Collector. It is the
// receiver of the OpenTelemetry eBPF profiler with four additions:
//
//   - If the labels of a goroutine name a span (trace_id and span_id), its samples have a Link to the span.
//     These two labels do not become attributes.
//   - Samples are merged only if all their labels are equal.
//   - The resource of each process has the attributes that the process publishes in its
//     process context ([OTEP 4719]), whatever language it is written in.
//   - All text is valid UTF-8. Backends reject a message if any name in it is not.
//
// The Collector must run with the feature gate service.profilesSupport, and a Collector can have
// only one such receiver. Profiles are recorded on Linux, amd64 and arm64; elsewhere the receiver
// can be configured, but creating it returns an error that wraps [errors.ErrUnsupported].
//
// [OTEP 4719]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
package otelctxreceiver

import (
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"

	"github.com/otelctx/otelctx"
)

// componentType is the receiver's name in configurations.
var componentType = component.MustNewType("otelctx")

// scopeName is the instrumentation scope of the receiver's own telemetry.
const scopeName = "github.com/otelctx/otelctx/collector/otelctxreceiver"

// NewFactory returns the factory of the receiver. The receiver's type is otelctx, and its signal
// is profiles.
func NewFactory() receiver.Factory {
	return xreceiver.NewFactory(componentType, defaultConfig,
		xreceiver.WithProfiles(createProfiles, component.StabilityLevelDevelopment))
}

// Version is the version of the receiver, which is released with the library.
const Version = otelctx.Version
