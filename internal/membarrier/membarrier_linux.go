// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package membarrier

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// From linux/membarrier.h.
const (
	query                    = 0
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

// Announce prepares the process for [Private] and reports whether the kernel has it.
// The first call has the process registered, which takes the kernel some ten
// milliseconds and is done in the background. It may be called concurrently.
func Announce() bool { return announce() }

var announce = sync.OnceValue(func() bool {
	const needed = privateExpedited | registerPrivateExpedited
	commands, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, query, 0, 0)
	if errno != 0 || commands&needed != needed {
		return false
	}
	go func() {
		_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, registerPrivateExpedited, 0, 0)
		ready.Store(errno == 0)
	}()
	return true
})

var ready atomic.Bool

// Ready reports whether the process is registered, so that [Private] works from now on.
func Ready() bool { return ready.Load() }

// Private has every thread of the process pass a full memory barrier: of what a thread
// did before some instruction of its own, everything is seen by the caller when this
// returns, and from that instruction on the thread sees all that the caller did before
// the call. It takes microseconds and does not wait for anybody; it may be called
// concurrently, and while pinned. It returns false, and has done nothing, as long as
// the process is not registered.
func Private() bool {
	_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, privateExpedited, 0, 0)
	return errno == 0
}
