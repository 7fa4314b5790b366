// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported is true on platforms where calibration can establish facts.
const Supported = true

// getg returns the address of the calling goroutine's g. It reads a register or a thread-local word
// that always contains g in Go code, and uses no stack. Preemption cannot make the result wrong,
// because a goroutine has the same g on every thread. The pointer stays valid, because the runtime
// never frees a g. It only reuses the g of ended goroutines.
func getg() unsafe.Pointer

// gettid returns the thread id from the kernel. It may be called while pinned, because RawSyscall does
// not enter the scheduler.
func gettid() uint32 {
	tid, _ := unix.RawSyscallNoError(unix.SYS_GETTID, 0, 0, 0)
	return uint32(tid)
}
