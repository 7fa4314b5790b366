// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ReadAt copies the len(p) bytes at address off into p; anything less is an error. The bytes are
// not a snapshot: the process may write them during the read.
//
// It calls process_vm_readv(2), so an invalid address is an error (EFAULT) and never a fault. The
// error wraps that of the system call: ESRCH if the process has exited; EPERM, which is an
// [io/fs.ErrPermission], without the permission for a ptrace attach (PTRACE_MODE_ATTACH_REALCREDS).
func (m Memory) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	remote := []unix.RemoteIovec{{Base: uintptr(off), Len: len(p)}}
	n, err := unix.ProcessVMReadv(m.pid, local, remote, 0)
	if err == nil && n < len(p) {
		// The kernel stops before the first unreadable page.
		err = unix.EFAULT
	}
	if err != nil {
		return max(n, 0), fmt.Errorf("process_vm_readv of %d bytes at %#x: %w", len(p), off, err)
	}
	return n, nil
}

const (
	// maxParts is the maximum number of parts in one system call, the kernel's IOV_MAX.
	maxParts = 1024
	// fewParts is the maximum number of parts for which the arguments are on the stack.
	fewParts = 24
)

// ReadParts fills parts, one after the other: every byte of a part is read before any byte of the
// next. So the caller can read the same memory twice to detect a change in between. Up to 1024
// parts take one system call.
//
// ReadParts stops at the first part that cannot be read completely and returns the number of
// complete parts. The incomplete part may be partly filled; the parts after it are unchanged. The
// error is nil only if all parts are complete, and wraps the same errors as that of
// [Memory.ReadAt].
//
// The order also holds on machines that reorder loads. The kernel copies the parts in order, and
// takes and releases references to the pages of each. Those are atomic operations, which order the
// copies around them.
func (m Memory) ReadParts(parts []Part) (int, error) {
	for done := 0; done < len(parts); {
		next := parts[done:min(done+maxParts, len(parts))]
		n, err := m.readParts(next)
		done += n
		if err != nil {
			p := parts[done]
			return done, fmt.Errorf("process_vm_readv of %d bytes at %#x: %w", len(p.Data), p.Address, err)
		}
	}
	return len(parts), nil
}

// readParts fills at most maxParts parts in one system call.
func (m Memory) readParts(parts []Part) (int, error) {
	var (
		fewLocal  [fewParts]unix.Iovec
		fewRemote [fewParts]unix.RemoteIovec
	)
	local, remote := fewLocal[:0], fewRemote[:0]
	if len(parts) > fewParts {
		local, remote = make([]unix.Iovec, 0, len(parts)), make([]unix.RemoteIovec, 0, len(parts))
	}
	total := 0
	for i := range parts {
		p := &parts[i]
		if len(p.Data) == 0 {
			continue
		}
		total += len(p.Data)
		local = append(local, unix.Iovec{Base: &p.Data[0]})
		local[len(local)-1].SetLen(len(p.Data))
		remote = append(remote, unix.RemoteIovec{Base: uintptr(p.Address), Len: len(p.Data)})
	}
	if total == 0 {
		return len(parts), nil
	}
	n, err := unix.ProcessVMReadv(m.pid, local, remote, 0)
	if err == nil && n == total {
		return len(parts), nil
	}
	if err == nil {
		// The kernel returns an error only if it has read nothing. A partial read is always caused
		// by an unreadable page.
		err = unix.EFAULT
	}
	for i := range parts {
		if n < len(parts[i].Data) {
			return i, err
		}
		n -= len(parts[i].Data)
	}
	return len(parts), err
}
