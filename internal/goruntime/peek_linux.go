// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	wordSize = unsafe.Sizeof(uintptr(0))

	// pageSize divides every page size of Linux. A pipe holds at least that much and accepts it atomically.
	pageSize = 4096
)

// A peeker copies memory of this process that may be unmapped. It lets the kernel copy the memory
// into a pipe: for unmapped memory, write returns EFAULT instead of raising a signal. A pipe needs
// only the most common system calls, which every sandbox allows. Some sandboxes forbid
// process_vm_readv, and qemu-user does not implement it.
type peeker struct {
	r, w int
	one  [1]uintptr

	// failed is the error that made the pipe unusable, or 0. After a failed read, the pipe may still
	// contain old data.
	failed unix.Errno
}

func newPeeker() (*peeker, error) {
	var fds [2]int
	// The pipe never blocks: bytes are read only after they were written.
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe2: %w", err)
	}
	return &peeker{r: fds[0], w: fds[1]}, nil
}

func (p *peeker) close() {
	_ = unix.Close(p.r) // the contents are not needed
	_ = unix.Close(p.w)
}

// peek copies words at addr to dst, and returns how many it could read before the first unmapped page.
// It may be called while pinned. It is not safe for concurrent use.
//
// addr is passed to the kernel as a number, so its target does not matter to the garbage collector, the
// race detector or checkptr. dst is converted in the call itself, which keeps it alive and in place.
func (p *peeker) peek(addr uintptr, dst []uintptr) int {
	if addr%wordSize != 0 || p.failed != 0 {
		return 0
	}
	done := 0
	for done < len(dst) {
		source := addr + uintptr(done)*wordSize
		// Copy up to the end of the page, which is either mapped or not.
		size := min(uintptr(len(dst)-done)*wordSize, pageSize-source%pageSize)
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.w), source, size)
		if errno == unix.EFAULT {
			break
		}
		if errno == 0 && n == size {
			n, _, errno = unix.RawSyscall(unix.SYS_READ, uintptr(p.r), uintptr(unsafe.Pointer(&dst[done])), size)
		}
		if errno == 0 && n != size {
			errno = unix.EIO // A short write or read is impossible here.
		}
		if errno != 0 {
			p.failed = errno
			break
		}
		done += int(size / wordSize)
	}
	return done
}

// word returns the word at addr, or 0 if it is unmapped.
func (p *peeker) word(addr uintptr) uintptr {
	if p.peek(addr, p.one[:]) == 0 {
		return 0
	}
	return p.one[0]
}
