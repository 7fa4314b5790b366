// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package programs

import "golang.org/x/sys/unix"

// noExec reports whether programs in dir cannot be executed.
func noExec(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0
}
