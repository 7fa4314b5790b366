// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package tlsvar

import (
	"errors"
	"fmt"
)

// Stopped returns an error that wraps [errors.ErrUnsupported].
func Stopped(int, func(threadPointer uint64) error) error {
	return fmt.Errorf("stop a thread: %w", errors.ErrUnsupported)
}
