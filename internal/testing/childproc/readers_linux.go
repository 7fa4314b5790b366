// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import "syscall"

// AdmitReaders lets processes of the same user read this one that are not among its
// ancestors, such as other children of the test, also where Yama would keep them from it.
func (p *Parent) AdmitReaders() {
	const (
		prSetPtracer    = 0x59616d61
		prSetPtracerAny = ^uintptr(0)
	)
	// A kernel without Yama does not know the call and needs none.
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetPtracer, prSetPtracerAny, 0)
	if errno != 0 && errno != syscall.EINVAL {
		p.Must(errno)
	}
}
