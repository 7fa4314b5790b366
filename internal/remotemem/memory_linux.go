// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ReadAt copies the len(p) bytes at address off into p; anything less is an
// error. The bytes are not one snapshot: their process may write them meanwhile.
//
// It calls process_vm_readv(2), so that a wild address is an error (EFAULT) and
// never a fault. The error wraps the system call's: ESRCH if the process is gone;
// EPERM, which is an [io/fs.ErrPermission], without the access of a ptrace attach
// (PTRACE_MODE_ATTACH_REALCREDS).
func (m Memory) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	remote := []unix.RemoteIovec{{Base: uintptr(off), Len: len(p)}}
	n, err := unix.ProcessVMReadv(m.pid, local, remote, 0)
	if err == nil && n < len(p) {
		// The kernel stops before the first page that cannot be read.
		err = unix.EFAULT
	}
	if err != nil {
		return max(n, 0), fmt.Errorf("process_vm_readv of %d bytes at %#x: %w", len(p), off, err)
	}
	return n, nil
}
