// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wall

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// raisePriority asks the kernel to prefer this process, so that looks are in time on a busy machine. It
// takes CAP_SYS_NICE; without it looks are later, which is reported.
func raisePriority() {
	const priority = -10
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads { // Threads that come later have the priority of the one that starts them.
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, priority)
		}
	}
}
