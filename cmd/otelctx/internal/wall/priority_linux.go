// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wall

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// raisePriority raises the scheduling priority of this process, so that snapshots are on time on a busy
// machine. Without CAP_SYS_NICE it has no effect; snapshots may then be late, which the result reports.
func raisePriority() {
	const priority = -10
	// Repeat until there are no new threads: a thread inherits the priority of its creator, which may not
	// have been raised yet.
	raised := map[string]bool{}
	for more := true; more; {
		more = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range threads {
			if tid, err := strconv.Atoi(t.Name()); err == nil && !raised[t.Name()] {
				raised[t.Name()], more = true, true
				_ = unix.Setpriority(unix.PRIO_PROCESS, tid, priority)
			}
		}
	}
}
