// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package vma

import (
	"errors"
	"fmt"
	"os"
)

// Image is not supported on this platform.
type Image struct{}

// MapImage returns an error that wraps [errors.ErrUnsupported].
func MapImage(*os.File, int, func([]byte)) (*Image, error) {
	return nil, fmt.Errorf("vma.MapImage: %w", errors.ErrUnsupported)
}

// Bytes returns nil.
func (*Image) Bytes() []byte { return nil }

// Signal does nothing.
func (*Image) Signal(string) {}
