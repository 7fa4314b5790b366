// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package tlsvar

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stopped stops the thread tid with ptrace, calls do with its thread pointer, and resumes the
// thread. do must be quick. If the thread was sleeping in a system call, it continues the call. But
// as with any ptrace stop, a few calls such as epoll_wait may return EINTR.
//
// The error wraps the error of do or of a system call: EPERM if the caller may not trace the thread
// or if the thread is traced already, and ESRCH if the thread has exited.
func Stopped(tid int, do func(threadPointer uint64) error) error {
	// The kernel accepts ptrace calls for a tracee only from the thread that has seized it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(tid); err != nil {
		return fmt.Errorf("seize thread %d: %w", tid, err)
	}
	if err := interrupt(tid); err != nil {
		return fmt.Errorf("stop thread %d: %w", tid, err)
	}
	tp, err := threadPointer(tid)
	if err == nil {
		err = do(tp)
	}
	if detach := unix.PtraceDetach(tid); detach != nil && !errors.Is(detach, unix.ESRCH) {
		err = errors.Join(err, fmt.Errorf("detach from thread %d: %w", tid, detach))
	}
	return err
}

// interrupt stops a seized thread. If a signal for the thread arrives first, interrupt delivers it.
func interrupt(tid int) error {
	if err := unix.PtraceInterrupt(tid); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(tid, &status, unix.WALL, nil); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		switch {
		case !status.Stopped():
			return unix.ESRCH
		case status.TrapCause() == unix.PTRACE_EVENT_STOP:
			return nil
		}
		if err := unix.PtraceCont(tid, int(status.StopSignal())); err != nil {
			return err
		}
	}
}

// registers reads a register set of a stopped thread.
func registers(tid, set int, buffer []byte) error {
	iov := unix.Iovec{Base: &buffer[0]}
	iov.SetLen(len(buffer))
	// Sound: the call does not retain iov or the bytes that it points to, and both outlive it.
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), uintptr(set), uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("registers of thread %d: %w", tid, errno)
	}
	return nil
}
