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

	// pageSize is the smallest page size of Linux, which divides all others. A pipe has room for at
	// least one page, and accepts it atomically.
	pageSize = 4096
)

// A peeker reads memory of this process that may be unmapped. It writes the memory to a pipe and
// reads it back: if the memory is unmapped, write returns EFAULT, whereas a load would raise a
// signal. Every sandbox allows these system calls. Some forbid process_vm_readv, and qemu-user does
// not implement it.
type peeker struct {
	r, w int
	one  [1]uintptr

	// failed is the error that made the pipe unusable, or 0. After a failed read, old data may be
	// left in the pipe.
	failed unix.Errno
}

func newPeeker() (*peeker, error) {
	var fds [2]int
	// The pipe never blocks, because only bytes that have been written are read.
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe2: %w", err)
	}
	return &peeker{r: fds[0], w: fds[1]}, nil
}

func (p *peeker) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

// peek copies words at addr to dst, up to the first unmapped page, and returns how many it copied.
// It may be called while pinned. It is not safe for concurrent use.
//
// The kernel gets addr as a number, so the garbage collector, the race detector and checkptr do not
// care what is there. dst is converted in the call itself, which keeps it alive and in place.
func (p *peeker) peek(addr uintptr, dst []uintptr) int {
	if addr%wordSize != 0 || p.failed != 0 {
		return 0
	}
	done := 0
	for done < len(dst) {
		source := addr + uintptr(done)*wordSize
		// Do not copy across the end of a page, so that the range is either mapped or unmapped as a
		// whole.
		size := min(uintptr(len(dst)-done)*wordSize, pageSize-source%pageSize)
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.w), source, size)
		if errno == unix.EFAULT {
			break
		}
		if errno == 0 && n == size {
			n, _, errno = unix.RawSyscall(unix.SYS_READ, uintptr(p.r), uintptr(unsafe.Pointer(&dst[done])), size)
		}
		if errno == 0 && n != size {
			errno = unix.EIO // a short write or read, which should not be possible
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
