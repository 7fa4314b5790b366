// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package bubble

import (
	"time"

	"golang.org/x/sys/unix"
)

// In reports whether the caller runs in a bubble: there the time is not the kernel's, but
// starts in the year 2000. A clock that is set at this very moment looks the same.
func In() bool {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &ts) != nil {
		return false
	}
	return time.Unix(ts.Unix()).Sub(time.Now()).Abs() > time.Minute
}
