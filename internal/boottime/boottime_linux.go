// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package boottime

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Now returns the time since boot in nanoseconds, always more than 0.
func Now() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("clock_gettime CLOCK_BOOTTIME: %w", err)
	}
	ns := ts.Nano()
	if ns <= 0 {
		// A time namespace can shift the clock below zero.
		return 0, fmt.Errorf("clock_gettime CLOCK_BOOTTIME: %d ns", ns)
	}
	return uint64(ns), nil
}
