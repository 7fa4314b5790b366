// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

import (
	"errors"
	"fmt"
)

// Command is unsupported on this platform.
type Command struct{}

// Start returns an error that wraps [errors.ErrUnsupported].
func Start([]string) (*Command, error) {
	return nil, fmt.Errorf("launch: %w", errors.ErrUnsupported)
}

// PID returns 0.
func (*Command) PID() int { return 0 }

// Resume does nothing.
func (*Command) Resume() error { return nil }

// Kill does nothing.
func (*Command) Kill() {}

// Ended returns nil.
func (*Command) Ended() <-chan struct{} { return nil }

// ExitCode returns 0.
func (*Command) ExitCode() int { return 0 }

// PassSignals does nothing.
func (*Command) PassSignals() (stop func()) { return func() {} }
