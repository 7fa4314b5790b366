// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package userfault

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// api and register are the kernel's struct uffdio_api and uffdio_register.
type (
	api      struct{ api, features, ioctls uint64 }
	register struct{ start, size, mode, ioctls uint64 }
)

const (
	ioctlAPI        = 0xC018AA3F
	ioctlRegister   = 0xC020AA00
	version         = 0xAA
	registerMissing = 1
	messageSize     = 32
)

// Stall makes whoever touches memory, by whatever way, wait until this process has
// ended. memory is whole pages, of a memfd or anonymous, that nobody has touched yet.
//
// The error wraps [unix.EPERM], which is an [io/fs.ErrPermission], without CAP_SYS_PTRACE,
// and [unix.ENOSYS], which is an [errors.ErrUnsupported], of a kernel without
// CONFIG_USERFAULTFD.
func Stall(memory []byte) error {
	_, err := StallAndTell(memory)
	return err
}

// StallAndTell is [Stall], and await waits until one more thread has touched memory and
// waits for what is there.
func StallAndTell(memory []byte) (await func() error, err error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return nil, fmt.Errorf("userfaultfd: %w", errno)
	}
	// Sound: the pointers are converted in the argument lists, which keeps what they
	// point at alive and in place for the calls. The kernel remembers none of them, but
	// the address of memory, which is not of the heap.
	hello := api{api: version}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&hello))); errno != 0 {
		return nil, fmt.Errorf("ioctl UFFDIO_API: %w", errno)
	}
	all := register{
		start: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))), size: uint64(len(memory)), mode: registerMissing,
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlRegister, uintptr(unsafe.Pointer(&all))); errno != 0 {
		return nil, fmt.Errorf("ioctl UFFDIO_REGISTER: %w", errno)
	}
	return func() error {
		_, err := unix.Read(int(fd), make([]byte, messageSize))
		return err
	}, nil
}
