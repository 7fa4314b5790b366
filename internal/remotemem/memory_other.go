// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package remotemem

import (
	"errors"
	"fmt"
)

// ReadAt returns an error that wraps [errors.ErrUnsupported].
func (Memory) ReadAt([]byte, int64) (int, error) {
	return 0, fmt.Errorf("remotemem.Memory.ReadAt: %w", errors.ErrUnsupported)
}

// ReadParts returns an error that wraps [errors.ErrUnsupported].
func (Memory) ReadParts([]Part) (int, error) {
	return 0, fmt.Errorf("remotemem.Memory.ReadParts: %w", errors.ErrUnsupported)
}
