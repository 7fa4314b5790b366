// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
)

// supported returns an error if no process can be read.
func supported() error { return procfs.Host().CheckNamespace() }

// monotonicNow returns the time of CLOCK_MONOTONIC, the clock of the Go runtime, in nanoseconds. It
// returns 0 if the clock cannot be read.
func monotonicNow() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return t.Nano()
}
