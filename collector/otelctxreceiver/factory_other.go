// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && (amd64 || arm64))

package otelctxreceiver

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"
)

// Config has no fields, because profiles cannot be recorded on this platform.
type Config struct{}

func defaultConfig() component.Config { return new(Config) }

func createProfiles(context.Context, receiver.Settings, component.Config, xconsumer.Profiles) (xreceiver.Profiles, error) {
	return nil, fmt.Errorf("the otelctx receiver records on Linux, amd64 and arm64: %w", errors.ErrUnsupported)
}
