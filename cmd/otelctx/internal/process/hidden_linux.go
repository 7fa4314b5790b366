// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// hidden reports whether a process exists although /proc has no directory for it, as with the mount option
// hidepid=invisible. No signal is sent.
func hidden(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return errors.Is(err, fs.ErrNotExist) && errors.Is(syscall.Kill(pid, 0), syscall.EPERM)
}
