// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/refresh"
	"github.com/otelctx/otelctx/reader"
)

// TestUntilGone checks that a process that seems to be gone for a moment, as it does while it executes a program, has
// not ended.
func TestUntilGone(t *testing.T) {
	gone := fmt.Errorf("pid 7: %w", reader.ErrProcessGone)
	updates := 0
	ended, err := refresh.Until(t.Context(), time.Millisecond, 3, func(first bool) error {
		updates++
		assert.Equal(t, updates == 1, first)
		if updates == 2 || updates == 4 {
			return gone
		}
		return nil
	})
	require.NoError(t, err)
	assert.False(t, ended)
	assert.Equal(t, 5, updates)

	ended, err = refresh.Until(t.Context(), time.Millisecond, 3, func(first bool) error {
		if first {
			return nil
		}
		return gone
	})
	require.NoError(t, err)
	assert.True(t, ended)

	_, err = refresh.Until(t.Context(), time.Millisecond, 3, func(bool) error { return gone })
	require.ErrorIs(t, err, reader.ErrProcessGone)
}
