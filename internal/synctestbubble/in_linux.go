// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package synctestbubble

import (
	"time"

	"golang.org/x/sys/unix"
)

// In reports whether the caller runs in a bubble. In a bubble, the clock of package time starts in
// the year 2000, so In compares it with the kernel's clock. It may wrongly return true while the
// system clock is being set.
func In() bool {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &ts) != nil {
		return false
	}
	return time.Until(time.Unix(ts.Unix())).Abs() > time.Minute
}
