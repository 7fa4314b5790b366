// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported says whether calibration can find out anything on this platform.
const Supported = true

// getg returns the address of the caller's g. It reads one register or one thread-local word, which
// in Go code always holds g. It touches no stack. Preemption cannot make the result wrong, since a
// goroutine keeps its g wherever it runs. The runtime keeps every g for the life of the process
// (goroutines that end leave theirs to others), so the pointer stays valid.
func getg() unsafe.Pointer

// gettid asks the kernel. RawSyscall does not tell the scheduler, so it may be used while pinned.
func gettid() uint32 {
	tid, _ := unix.RawSyscallNoError(unix.SYS_GETTID, 0, 0, 0)
	return uint32(tid)
}
