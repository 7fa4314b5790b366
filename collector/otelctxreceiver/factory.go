// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"
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
