// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ownmem

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageSize is the smallest page size of Linux, which divides all others. A pipe has room for at least
// one page, and accepts it atomically.
const pageSize = 4096

// Reader reads memory of this process. It is not safe for concurrent use.
type Reader struct {
	r, w int
	// failed is the error that made the pipe unusable, or 0. After a failed read, old data may be
	// left in the pipe.
	failed unix.Errno
}

// New returns a Reader. It fails if there are no free file descriptors.
func New() (*Reader, error) {
	var fds [2]int
	// The pipe never blocks, because only bytes that have been written are read.
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe2: %w", err)
	}
	return &Reader{r: fds[0], w: fds[1]}, nil
}

// Close closes the pipe.
func (p *Reader) Close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

// Failed returns the error that has made the Reader unusable, or 0.
func (p *Reader) Failed() unix.Errno { return p.failed }

// Copy copies the memory at an address to dst, up to the first unmapped page, and returns the number
// of bytes copied. It neither allocates nor blocks.
//
// The kernel gets the address as a number, so the garbage collector, the race detector and checkptr
// do not care what is there. dst is converted in the call itself, which keeps it alive and in place.
func (p *Reader) Copy(dst []byte, address uintptr) int {
	if p.failed != 0 {
		return 0
	}
	done := 0
	for done < len(dst) {
		source := address + uintptr(done)
		if source < address {
			break // the end of the address space
		}
		// Do not copy across the end of a page, so that the range is either mapped or unmapped as a
		// whole.
		size := min(uintptr(len(dst)-done), pageSize-source%pageSize)
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
		done += int(size)
	}
	return done
}
