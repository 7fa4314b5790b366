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

// NewPrivate returns an error that wraps [errors.ErrUnsupported].
func NewPrivate(int) (*Region, error) {
	return nil, fmt.Errorf("vma.NewPrivate: %w", errors.ErrUnsupported)
}

// CheckFileSize returns nil: no files are created on this platform.
func CheckFileSize(int) error { return nil }

// Announce does nothing: on this platform, memory is always on the heap.
func (*Region) Announce() error { return nil }

// Retire releases the memory.
func (r *Region) Retire() error {
	r.mem = nil
	return nil
}

// Close releases the memory.
func (r *Region) Close() error { return r.Retire() }
