// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package resourcepublisher_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/resourcepublisher"
)

func TestUnsupported(t *testing.T) {
	_, err := resourcepublisher.New(resource.Empty())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NotNil(t, resourcepublisher.WithResource(resource.Empty()))
}
