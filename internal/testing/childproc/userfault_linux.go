// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// uffdAPI and uffdRegister are the kernel's struct uffdio_api and uffdio_register.
type (
	uffdAPI      struct{ api, features, ioctls uint64 }
	uffdRegister struct{ start, size, mode, ioctls uint64 }
)

const (
	ioctlAPI        = 0xC018AA3F
	ioctlRegister   = 0xC020AA00
	version         = 0xAA
	featureThreadID = 1 << 8
	registerMissing = 1
	// A struct uffd_msg has messageSize bytes. In a message about a page fault, the faulting
	// thread's id is at offset threadID.
	messageSize = 32
	threadID    = 24
)

// Stall returns memory that blocks its readers, as a hostile process may do: any access blocks until
// this process ends. The memory is a page-aligned mapping of a memfd with this name. It is unreadable
// until Stall returns, so no reader can have touched it before. await waits until another thread blocks
// on the memory, and returns that thread's id in the thread's own PID namespace.
//
// If this process may not use userfaultfd, usually because it lacks CAP_SYS_PTRACE, the error wraps
// [unix.EPERM], which is an [io/fs.ErrPermission]. On a kernel without CONFIG_USERFAULTFD it wraps
// [unix.ENOSYS], which is an [errors.ErrUnsupported].
func Stall(name string, size int) (memory []byte, await func() (tid int, err error), err error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return nil, nil, fmt.Errorf("userfaultfd: %w", errno)
	}
	if memory, err = hidden(name, size); err != nil {
		return nil, nil, err
	}
	// Sound: the pointers are converted in the argument lists, which keeps their targets alive and
	// in place for the calls. The kernel retains only the address of memory, which is not on the
	// heap.
	hello := uffdAPI{api: version, features: featureThreadID}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&hello))); errno != 0 {
		return nil, nil, fmt.Errorf("ioctl UFFDIO_API: %w", errno)
	}
	all := uffdRegister{
		start: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))), size: uint64(len(memory)), mode: registerMissing,
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlRegister, uintptr(unsafe.Pointer(&all))); errno != 0 {
		return nil, nil, fmt.Errorf("ioctl UFFDIO_REGISTER: %w", errno)
	}
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, nil, fmt.Errorf("mprotect: %w", err)
	}
	return memory, func() (int, error) {
		message := make([]byte, messageSize)
		_, err := unix.Read(int(fd), message)
		return int(binary.NativeEndian.Uint32(message[threadID:])), err
	}, nil
}

// hidden maps a memfd with this name so that it cannot be read.
func hidden(name string, size int) ([]byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return memory, nil
}
