// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package timelimit

import "golang.org/x/sys/unix"

// futex is the number of the system call by which threads of a process wait for each other.
const futex = unix.SYS_FUTEX

// blockSignals blocks signals from other processes on the calling thread until restore is called.
// The goroutine must stay on the thread. The kernel delivers a signal to only one thread,
// preferably the main thread. If that thread were waiting for the memory of another process, nobody
// would handle the signal.
//
// Only signals that people and supervisors send are blocked. The Go runtime needs the others: it
// sends some to its own threads, and a fault on a thread that blocks the signal would kill the
// process.
func blockSignals() (restore func()) {
	var blocked, before unix.Sigset_t
	for _, s := range []unix.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP, unix.SIGCONT, unix.SIGWINCH,
	} {
		blocked.Val[0] |= 1 << (s - 1)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return func() {}
	}
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }
}
