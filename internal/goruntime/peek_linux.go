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

	// pageSize divides every page size that Linux has, and is what a pipe holds at least and takes at once.
	pageSize = 4096
)

// A peeker copies memory of this process that may not be there. The kernel copies it, into a pipe: where nothing is
// mapped, write returns EFAULT instead of raising a signal. A pipe takes nothing but the commonest system calls, which no
// sandbox forbids; process_vm_readv is forbidden in some, and absent under qemu-user.
type peeker struct {
	r, w int
	one  [1]uintptr

	// failed is why nothing is read any more, as the pipe is out of step; 0 if it is not.
	failed unix.Errno
}

func newPeeker() (*peeker, error) {
	var fds [2]int
	// Never block: bytes are read only after they were written.
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe2: %w", err)
	}
	return &peeker{r: fds[0], w: fds[1]}, nil
}

func (p *peeker) close() {
	_ = unix.Close(p.r) // nothing is lost with the contents
	_ = unix.Close(p.w)
}

// peek copies the words at addr to dst and returns how many it could read before the first unmapped page. It may be
// called while pinned. One caller at a time: the callers are strung together by the order of observations.
//
// addr is handed to the kernel as a number only. So it does not matter to the collector, the race
// detector or checkptr what it points at. dst is converted in the call itself, which keeps it alive
// and in place.
func (p *peeker) peek(addr uintptr, dst []uintptr) int {
	if addr%wordSize != 0 || p.failed != 0 {
		return 0
	}
	done := 0
	for done < len(dst) {
		from := addr + uintptr(done)*wordSize
		// Up to the end of the page: what lies there is copied whole or not at all.
		size := min(uintptr(len(dst)-done)*wordSize, pageSize-from%pageSize)
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.w), from, size)
		if errno == unix.EFAULT {
			break
		}
		if errno == 0 && n == size {
			n, _, errno = unix.RawSyscall(unix.SYS_READ, uintptr(p.r), uintptr(unsafe.Pointer(&dst[done])), size)
		}
		if errno == 0 && n != size {
			errno = unix.EIO // There was room, and then as many bytes.
		}
		if errno != 0 {
			p.failed = errno
			break
		}
		done += int(size / wordSize)
	}
	return done
}

// word returns the word at addr, or 0 if there is none.
func (p *peeker) word(addr uintptr) uintptr {
	if p.peek(addr, p.one[:]) == 0 {
		return 0
	}
	return p.one[0]
}
