// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package ownmem

import (
	"errors"
	"fmt"
)

// Reader is not supported on this platform.
type Reader struct{}

// New returns an error that wraps [errors.ErrUnsupported].
func New() (*Reader, error) { return nil, fmt.Errorf("ownmem.New: %w", errors.ErrUnsupported) }

// Close does nothing.
func (*Reader) Close() {}

// Copy returns 0.
func (*Reader) Copy([]byte, uintptr) int { return 0 }
