// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"
)

// componentType is the receiver's name in configurations. scopeName is the scope of its own telemetry.
var componentType = component.MustNewType("otelctx")

const scopeName = "github.com/otelctx/otelctx/collector/otelctxreceiver"

// NewFactory returns the factory of the receiver. Its type is otelctx, and its signal is profiles.
func NewFactory() receiver.Factory {
	return xreceiver.NewFactory(componentType, defaultConfig,
		xreceiver.WithProfiles(createProfiles, component.StabilityLevelDevelopment))
}
