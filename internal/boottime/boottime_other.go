// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package boottime

import (
	"errors"
	"fmt"
	"time"
)

// Now returns an error that wraps [errors.ErrUnsupported].
func Now() (uint64, error) {
	return 0, fmt.Errorf("boottime.Now: %w", errors.ErrUnsupported)
}

// Ahead returns an error that wraps [errors.ErrUnsupported].
func Ahead(string) (time.Duration, error) {
	return 0, fmt.Errorf("boottime.Ahead: %w", errors.ErrUnsupported)
}

// Offset returns an error that wraps [errors.ErrUnsupported].
func Offset(string) (time.Duration, error) {
	return 0, fmt.Errorf("boottime.Offset: %w", errors.ErrUnsupported)
}
