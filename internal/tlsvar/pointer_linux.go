// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package tlsvar

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StopLimit is the time in which a thread must stop for [StoppedPointer]. A thread that can stop
// does so as soon as it gets a CPU.
const StopLimit = 500 * time.Millisecond

// ErrNotStopping is the error of a thread that does not stop within [StopLimit].
var ErrNotStopping = fmt.Errorf("the thread did not stop within %v", StopLimit)

// StoppedPointer stops the thread tid with ptrace and returns its thread pointer. It leaves the
// thread in the state that it was in: a running thread runs, a thread in a system call continues
// the call, and a thread in a group stop (SIGSTOP) stays stopped and never gets to run in between.
// Signals that arrive in the meantime are delivered afterwards. But as with any ptrace stop, a few
// system calls, such as epoll_wait, may return EINTR.
//
// The error wraps the error of a system call: EPERM if the caller may not trace the thread or if
// another process traces it, and ESRCH if the thread has exited. It is ctx's error if ctx is done
// first. If the thread does not stop within [StopLimit], because it is in an uninterruptible sleep or
// gets no CPU, StoppedPointer withdraws and the error wraps [ErrNotStopping].
func StoppedPointer(ctx context.Context, tid int) (uint64, error) {
	type result struct {
		pointer uint64
		err     error
	}
	// Seizing a thread waits as long as its process is executing a program (execve), and cannot be
	// cancelled. It therefore happens on a goroutine that can be abandoned.
	done := make(chan result, 1)
	go onTracer(func() (detached bool) {
		pointer, detached, err := stop(ctx, tid)
		done <- result{pointer, err}
		return detached
	})
	select {
	case r := <-done:
		return r.pointer, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// onTracer calls trace on one thread, because the kernel accepts ptrace calls only from the thread
// that has seized the tracee. Unless trace reports that it has detached, the thread exits, whereupon
// the kernel detaches. This is the only way to detach from a thread that has not stopped.
func onTracer(trace func() (detached bool)) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// Go never lets the first thread exit. While this goroutine holds it, another goroutine
		// gets another thread.
		done := make(chan struct{})
		go func() {
			defer close(done)
			onTracer(trace)
		}()
		<-done
		runtime.UnlockOSThread()
		return
	}
	if trace() {
		runtime.UnlockOSThread()
	}
	// A goroutine that ends while it is locked to its thread takes the thread along.
}

// stop implements StoppedPointer. detached is false if the calling thread may still be tracing.
func stop(ctx context.Context, tid int) (pointer uint64, detached bool, err error) {
	if err := ctx.Err(); err != nil {
		return 0, true, err
	}
	if err := unix.PtraceSeize(tid); err != nil {
		return 0, true, fmt.Errorf("seize the thread: %w", err)
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return 0, false, fmt.Errorf("stop the thread: %w", err)
	}
	signal, err := awaitStop(ctx, tid)
	if err != nil {
		return 0, false, fmt.Errorf("stop the thread: %w", err)
	}
	pointer, err = threadPointer(tid)
	if detach := detach(tid, signal); detach != nil {
		return pointer, false, errors.Join(err, fmt.Errorf("detach from the thread: %w", detach))
	}
	return pointer, true, err
}

// awaitStop waits until a seized thread has stopped. If it has stopped in order to receive a
// signal, awaitStop returns the signal, and 0 otherwise.
func awaitStop(ctx context.Context, tid int) (signal int, err error) {
	limit := time.NewTimer(StopLimit)
	defer limit.Stop()
	const firstPause, longestPause = 20 * time.Microsecond, 2 * time.Millisecond
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		// Without WEXITED, the call does not reap the thread, which may be a child of this process.
		// Because of WNOWAIT, the kernel keeps the signal: if this process is killed now, the
		// thread still receives it.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, tid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD): // no longer a tracee: it has exited
			return 0, unix.ESRCH
		case err == nil && info.Signo != 0:
			// The status is signal|event<<8. With an event, the signal is the one that has caused
			// the group stop that the thread is in, or SIGTRAP. It must not be delivered again.
			if status := stopStatus(&info); status>>8 == 0 {
				signal = int(status)
			}
			return signal, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-limit.C:
			return 0, ErrNotStopping
		case <-time.After(pause):
		}
	}
}

// stopStatus returns the field si_status, which unix.Siginfo lacks.
func stopStatus(info *unix.Siginfo) uint32 {
	// Sound: siginfo_t has 128 bytes on all platforms. For SIGCHLD, si_status is at offset 24 on
	// 64-bit platforms.
	return binary.NativeEndian.Uint32((*[128]byte)(unsafe.Pointer(info))[24:])
}

// detach lets a stopped thread continue, and delivers a signal to it unless signal is 0.
func detach(tid, signal int) error {
	// unix.PtraceDetach cannot deliver a signal.
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(signal), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// registers reads a register set of a stopped thread.
func registers(tid, set int, buffer []byte) error {
	iov := unix.Iovec{Base: &buffer[0]}
	iov.SetLen(len(buffer))
	// Sound: the call does not retain iov or the bytes that it points to, and both outlive it.
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), uintptr(set), uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("read registers of the thread: %w", errno)
	}
	return nil
}
