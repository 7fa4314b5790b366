// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

import "golang.org/x/sys/unix"

// futex is the number of the system call in which threads of a process wait for each other.
const futex = unix.SYS_FUTEX

// leaveSignals leaves what others send to this process to its other threads, until restore is
// called. The goroutine has to stay on the thread. The kernel tells one thread of a signal, the
// main thread if it can. One that waits for the memory of another process does not hear of it,
// and then nobody does.
//
// Blocked are only the signals that people and supervisors send. The Go runtime sends others to
// its own threads, and those of faults end a process that blocks them.
func leaveSignals() (restore func()) {
	var others, before unix.Sigset_t
	for _, s := range []unix.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP, unix.SIGCONT, unix.SIGWINCH,
	} {
		others.Val[0] |= 1 << (s - 1)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &others, &before); err != nil {
		return func() {}
	}
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }
}
