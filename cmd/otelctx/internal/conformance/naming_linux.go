// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelNamesMappings reports whether the kernel supports prctl(PR_SET_VMA_ANON_NAME). It tries to name a
// page of this process.
var kernelNamesMappings = sync.OnceValue(func() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(page) }()
	name := []byte("otelctx\x00")
	// This is sound because the kernel copies the name, and the page outlives the call.
	err = unix.Prctl(unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME,
		uintptr(unsafe.Pointer(&page[0])), uintptr(len(page)), uintptr(unsafe.Pointer(&name[0])))
	return err == nil
})

// namingCounter uses a tracepoint to count a process's calls of prctl(PR_SET_VMA). It needs a mounted
// tracefs and permission to read it, which root has.
type namingCounter struct {
	fds []int
	err error
}

func newNamingCounter(threads []int) *namingCounter {
	n := &namingCounter{}
	err := checkCounting()
	for _, tid := range threads {
		if err == nil {
			err = n.add(tid)
		}
	}
	if err != nil {
		n.err = fmt.Errorf("count calls of prctl: %w", err)
		n.close()
	}
	return n
}

// checkCounting calls prctl and returns an error if the tracepoint does not count the call. That happens
// while a BPF program that returns 0 is attached to the tracepoint.
func checkCounting() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var self namingCounter
	defer self.close()
	if err := self.add(unix.Gettid()); err != nil {
		return err
	}
	// The range is empty, so this call names no memory.
	_ = unix.Prctl(unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME, 0, 0, 0)
	if calls, err := self.count(); err != nil || calls > 0 {
		return err
	}
	return errors.New("another tool's BPF program hides calls of prctl")
}

func (n *namingCounter) add(tid int) error {
	id, err := os.ReadFile("/sys/kernel/tracing/events/syscalls/sys_enter_prctl/id")
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(id)), 10, 64)
	if err != nil {
		return err
	}
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: number, Bits: unix.PerfBitInherit}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if errors.Is(err, unix.ESRCH) {
		return nil // the thread has exited
	}
	if err != nil {
		return err
	}
	n.fds = append(n.fds, fd)
	filter := fmt.Appendf(nil, "option == %d\x00", unix.PR_SET_VMA)
	// This is sound because the kernel copies the filter during the call.
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PERF_EVENT_IOC_SET_FILTER, uintptr(unsafe.Pointer(&filter[0]))); errno != 0 {
		return errno
	}
	return nil
}

// count returns the number of calls so far. It returns an error if calls cannot be counted.
func (n *namingCounter) count() (int, error) {
	total := 0
	for _, fd := range n.fds {
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err != nil {
			return 0, err
		}
		total += int(binary.NativeEndian.Uint64(b[:]))
	}
	return total, n.err
}

func (n *namingCounter) close() {
	for _, fd := range n.fds {
		_ = unix.Close(fd)
	}
	n.fds = nil
}
