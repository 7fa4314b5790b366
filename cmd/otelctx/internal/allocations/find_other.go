// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package allocations

import (
	"errors"
	"fmt"
	"runtime"
)

// Find returns an error that wraps [errors.ErrUnsupported].
func Find(int, bool) (*Sites, error) {
	return nil, fmt.Errorf("allocations on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
