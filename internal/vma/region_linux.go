// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is a private, zeroed, readable and writable mapping that a name in
// /proc/pid/maps leads to and that no forked child inherits.
//
// A Region is not safe for concurrent use; its memory is whatever its owner makes
// of it.
type Region struct {
	mem  []byte
	name string
	// memfdErr is why there is no memfd behind the mapping; nil if there is one.
	memfdErr error
}

// New maps size bytes, rounded up to whole pages, that [Region.Announce] will make
// findable as name (at most 79 bytes without '[', ']', '\\', '$', '`': the kernel's
// rule). Pages that are never touched cost no memory.
//
// The mapping is backed by a memfd of that name, which is closed again, or where
// the system denies memfds is anonymous (OTEP 4719, publication protocol, steps 2
// to 5). Any failure leaves nothing behind.
func New(name string, size int) (*Region, error) {
	page := os.Getpagesize()
	if size <= 0 || size > (1<<40) {
		return nil, fmt.Errorf("mapping of %d bytes: %w", size, unix.EINVAL)
	}
	size = (size + page - 1) / page * page

	fd, memfdErr := memfd(name, size)
	flags := unix.MAP_PRIVATE
	if memfdErr != nil {
		fd = -1
		flags |= unix.MAP_ANONYMOUS
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if fd >= 0 {
		// The mapping keeps the memfd's name; a close that fails has still closed.
		_ = unix.Close(fd)
	}
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(fmt.Errorf("madvise MADV_DONTFORK: %w", err), munmap(mem))
	}
	return &Region{mem: mem, name: name, memfdErr: memfdErr}, nil
}

// memfd returns a memory file of the given size.
func memfd(name string, size int) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		// Linux before 6.3 does not know MFD_NOEXEC_SEAL.
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	for {
		err = unix.Ftruncate(fd, int64(size))
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("ftruncate memfd: %w", err)
	}
	return fd, nil
}

// Bytes returns the mapped memory, page-aligned. It must not be touched after
// [Region.Close].
func (r *Region) Bytes() []byte { return r.mem }

// Address returns where in this process the memory starts.
func (r *Region) Address() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem))))
}

// Announce asks the kernel to name the mapping. It always asks, also where it is
// known to fail: profilers watch for this very call as the signal to look (OTEP
// 4719, publication protocol, step 10).
//
// A kernel without CONFIG_ANON_VMA_NAME refuses, which is no error as long as the
// memfd's name is there to be found. The error says that neither is.
func (r *Region) Announce() error {
	name, err := unix.BytePtrFromString(r.name)
	if err != nil {
		return err
	}
	// Sound: the pointer is converted in the argument list, which keeps name alive
	// and in place for the call. The kernel copies the name.
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME,
		uintptr(r.Address()), uintptr(len(r.mem)), uintptr(unsafe.Pointer(name)), 0)
	if errno != 0 && r.memfdErr != nil {
		return fmt.Errorf("mapping cannot be named: %w; prctl PR_SET_VMA_ANON_NAME: %w", r.memfdErr, errno)
	}
	return nil
}

// Close unmaps the memory. Closing again does nothing.
func (r *Region) Close() error {
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	return munmap(mem)
}

func munmap(mem []byte) error {
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("munmap: %w", err)
	}
	return nil
}
