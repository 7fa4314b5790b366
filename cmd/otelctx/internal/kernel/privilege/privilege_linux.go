// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities: bit n is capability n of linux/capability.h.
type Set uint64

// recording is the set that [Do] raises: the capabilities for sampling, and the capabilities that include or
// replace them. None of them affects the permission checks of system calls that read files or the memory of
// processes. BPF programs, however, can read any memory: see [Do].
const recording Set = 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_RESOURCE

// restricted reports whether [Restrict] has cleared the effective capabilities.
var restricted atomic.Bool

// Restrict clears the effective capabilities of all threads if they came with the program's file. It must
// be called once, before anything else.
//
// After an error the program must not continue.
func Restrict() error {
	secure, err := atSecure()
	if err != nil || !secure {
		return err
	}
	if unix.Getuid() != unix.Geteuid() || unix.Getgid() != unix.Getegid() {
		return errors.New("set-user-id and set-group-id files are not supported: give the file capabilities")
	}
	sets, err := get()
	if err != nil {
		return err
	}
	sets.keepEffective(0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	// Rule 4 of package unsafe keeps header and sets alive until the call has returned, because the
	// conversions are in the argument list of syscall.AllThreadsSyscall.
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno == syscall.ENOTSUP {
		return errors.New("a program built with cgo cannot give up the capabilities of its file: build it with CGO_ENABLED=0")
	}
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	restricted.Store(true)
	return nil
}

// Do calls f with the capabilities for recording that this program has, and returns the error of f. If the
// capabilities cannot be raised, Do returns an error without calling f. Through BPF, these capabilities give
// access to the memory of all processes and of the kernel, so f must use them only to load and run the
// sampler's programs and events. f must not start goroutines for this work: only the calling thread has the
// capabilities.
func Do(f func() error) error {
	if !restricted.Load() {
		return f()
	}
	// While the thread is locked, no other goroutine uses it, and the runtime does not clone threads from
	// it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sets, err := get()
	if err != nil {
		return err
	}
	sets.keepEffective(sets.permitted() & recording)
	if err := set(sets); err != nil {
		return err
	}
	defer func() {
		sets.keepEffective(0)
		if err := set(sets); err != nil {
			// Never continue with capabilities that the user does not have.
			panic("privilege: " + err.Error())
		}
	}()
	return f()
}

// Usable returns the capabilities that functions called by [Do] have.
func Usable() (Set, error) {
	sets, err := get()
	if err != nil {
		return 0, err
	}
	if restricted.Load() {
		return sets.permitted() & recording, nil
	}
	return sets.effective(), nil
}

// Has reports whether a capability is in the set.
func (s Set) Has(capability int) bool { return s&(1<<capability) != 0 }

// auxSecure is AT_SECURE of linux/auxvec.h.
const auxSecure = 23

// atSecure reports whether the program's file granted more rights than its user has: AT_SECURE of
// getauxval(3).
func atSecure() (bool, error) {
	auxv, err := unix.Auxv()
	if err != nil {
		return false, fmt.Errorf("auxiliary vector: %w", err)
	}
	for _, v := range auxv {
		if v[0] == auxSecure {
			return v[1] != 0, nil
		}
	}
	return false, errors.New("auxiliary vector without AT_SECURE")
}

// sets are the capability sets of a thread, as in capget(2): the lower and the upper 32 capabilities.
type sets [2]unix.CapUserData

func get() (sets, error) {
	var s sets
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &s[0]); err != nil {
		return sets{}, fmt.Errorf("capget: %w", err)
	}
	return s, nil
}

func set(s sets) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &s[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

func (s *sets) permitted() Set { return Set(s[0].Permitted) | Set(s[1].Permitted)<<32 }

func (s *sets) effective() Set { return Set(s[0].Effective) | Set(s[1].Effective)<<32 }

func (s *sets) keepEffective(e Set) { s[0].Effective, s[1].Effective = uint32(e), uint32(e>>32) }
