// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && (amd64 || arm64))

package otelctxreceiver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUnsupported(t *testing.T) {
	_, err := NewFactory().(xreceiver.Factory).CreateProfiles(t.Context(), receivertest.NewNopSettings(componentType),
		NewFactory().CreateDefaultConfig(), consumertest.NewNop())
	assert.ErrorIs(t, err, errors.ErrUnsupported)
}
