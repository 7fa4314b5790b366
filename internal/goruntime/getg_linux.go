// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported reports whether calibration can establish any fact on this platform.
const Supported = true

// getg returns the address of the caller's g. It reads one register or one thread-local word, which
// in Go code always holds g, and uses no stack. Preemption cannot make the result wrong, since a
// goroutine keeps its g wherever it runs. The pointer stays valid: the runtime reuses the g of
// ended goroutines but never frees one.
func getg() unsafe.Pointer

// gettid returns the thread id from the kernel. It may be called while pinned, because RawSyscall does
// not enter the scheduler.
func gettid() uint32 {
	tid, _ := unix.RawSyscallNoError(unix.SYS_GETTID, 0, 0, 0)
	return uint32(tid)
}
