// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package profilersocket

import (
	"context"
	"errors"
	"fmt"
)

// Socket is not supported on this platform.
type Socket struct{}

// Listen returns an error that wraps [errors.ErrUnsupported].
func Listen(string, string) (*Socket, error) {
	return nil, fmt.Errorf("profilersocket.Listen: %w", errors.ErrUnsupported)
}

// Sweep does nothing.
func Sweep(string, string) {}

// Path returns "".
func (*Socket) Path() string { return "" }

// Serve returns nil.
func (*Socket) Serve(int, func([]byte, bool)) error { return nil }

// Drain returns nil.
func (*Socket) Drain(context.Context) error { return nil }

// Stop does nothing.
func (*Socket) Stop() error { return nil }

// Close does nothing.
func (*Socket) Close() error { return nil }
