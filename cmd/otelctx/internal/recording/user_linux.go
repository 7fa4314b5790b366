// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"os"
	"syscall"

	"github.com/otelctx/otelctx/internal/procfs"
)

// userOf returns the user who started a process, -1 if unknown.
func userOf(pid int) int {
	// This is cheaper than reading the status file. However, the files of a process that is not dumpable
	// belong to root, whoever started the process.
	info, err := os.Stat(procfs.Host().Path(pid, ""))
	if err != nil {
		return -1
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
		return int(st.Uid)
	}
	user, err := procfs.Host().User(pid)
	if err != nil {
		return -1
	}
	return user
}
