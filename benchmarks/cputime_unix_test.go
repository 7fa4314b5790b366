// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package benchmarks

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time that this process has used so far.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
