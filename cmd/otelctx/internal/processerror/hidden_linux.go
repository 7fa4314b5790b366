// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package processerror

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/otelctx/otelctx/internal/procfs"
)

// hidden reports whether a process exists although /proc has no directory for it, as with the mount option
// hidepid=invisible. No signal is sent.
func hidden(pid int) bool {
	if procfs.Host().Foreign() {
		return false
	}
	_, err := os.Stat(procfs.Host().Path(pid, ""))
	return errors.Is(err, fs.ErrNotExist) && errors.Is(syscall.Kill(pid, 0), syscall.EPERM)
}
