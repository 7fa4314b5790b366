// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package vma

import (
	"errors"
	"fmt"
)

// New returns an error that wraps [errors.ErrUnsupported].
func New(string, int) (*Region, error) {
	return nil, fmt.Errorf("vma.New: %w", errors.ErrUnsupported)
}

// NewAnonymous returns an error that wraps [errors.ErrUnsupported].
func NewAnonymous(string, int) (*Region, error) {
	return nil, fmt.Errorf("vma.NewAnonymous: %w", errors.ErrUnsupported)
}

// Announce returns an error that wraps [errors.ErrUnsupported].
func (*Region) Announce() error {
	return fmt.Errorf("vma.Region.Announce: %w", errors.ErrUnsupported)
}

// Retire does nothing.
func (*Region) Retire() error { return nil }

// Close does nothing.
func (*Region) Close() error { return nil }
