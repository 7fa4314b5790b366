// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rule makes a system call fail, or kill the process, under certain conditions.
type Rule struct {
	// Call is the system call's number.
	Call uint32
	// Args are conditions that must all hold. If there are none, every call fails.
	Args []Arg
	// Errno is the error. If it is 0, the call does nothing and succeeds.
	Errno syscall.Errno
	// Kill is true if the call kills the process instead.
	Kill bool
}

// Arg is a condition on the lower 32 bits of an argument: the bits in Mask must equal Value.
type Arg struct {
	Index       int
	Mask, Value uint32
}

// Deny installs a seccomp filter for this process and its future children. A system call that matches
// a rule is not executed, and returns the rule's Errno or kills the process. Call Deny only in a
// child, because a filter cannot be removed.
func Deny(rules ...Rule) error {
	var program []unix.SockFilter
	for _, r := range rules {
		program = append(program, r.program()...)
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	_, err := filter(program, 0)
	return err
}

// filter installs a seccomp filter for all threads of this process.
func filter(program []unix.SockFilter, flags uintptr) (listener int, err error) {
	// Both calls must be made by the same thread; TSYNC then applies the filter to all others.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// Sound: the pointer is converted in the argument list. That keeps fprog, and through it
	// program, alive and in place during the call.
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC|flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return 0, fmt.Errorf("seccomp: %w", errno)
	}
	return int(fd), nil
}

// Offsets in struct seccomp_data.
const (
	dataCall = 0
	dataArgs = 16
)

// program returns BPF instructions for a seccomp filter. If the rule matches, they return its errno.
// Otherwise they continue with the next rule.
func (r Rule) program() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// left is the number of instructions between a comparison and the next rule. The comparison
	// skips them if the values differ.
	left := uint8(3*len(r.Args) + 1)
	p := []unix.SockFilter{
		load(dataCall),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: r.Call, Jf: left},
	}
	for _, a := range r.Args {
		left -= 3
		p = append(p,
			load(dataArgs+8*uint32(a.Index)), // little endian
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: a.Mask},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: a.Value, Jf: left},
		)
	}
	action := unix.SECCOMP_RET_ERRNO | uint32(r.Errno)
	if r.Kill {
		action = unix.SECCOMP_RET_KILL_PROCESS
	}
	return append(p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action})
}
