// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package tlsvar

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Pointer returns false.
func Pointer(io.ReaderAt, int) (pointer uint64, ok bool) { return 0, false }

// StoppedPointer returns an error that wraps [errors.ErrUnsupported].
func StoppedPointer(context.Context, int) (uint64, error) {
	return 0, fmt.Errorf("stop a thread: %w", errors.ErrUnsupported)
}
