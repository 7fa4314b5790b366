// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package burner

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// Used returns for how long a child has used the processors so far, all of its threads
// together.
func Used(c *childproc.Child) (time.Duration, error) {
	// The clock of another process's CPU time, as clock_getcpuclockid(3) makes it.
	const sched = 2
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^c.PID()<<3|sched), &ts)
	return time.Duration(ts.Nano()), err
}
