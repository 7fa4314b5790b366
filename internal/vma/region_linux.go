// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// New maps size bytes, rounded up to whole pages. [Region.Announce] gives the mapping its name, in
// which the kernel allows at most 79 bytes, and none of '[', ']', '\\', '$' and '`'. Untouched
// pages use no memory.
//
// The mapping is backed by a memfd with the same name, whose descriptor New closes. If the system
// denies memfds or files of this size, or [MemfdVariable] is true, the mapping is anonymous (OTEP
// 4719, publication protocol, steps 2 to 5). If New fails, nothing stays mapped.
func New(name string, size int) (*Region, error) {
	size, err := wholePages(size)
	if err != nil {
		return nil, err
	}
	fd, memfdErr := memfd(name, size)
	r, err := newRegion(name, size, fd)
	if memfdErr == nil {
		// The mapping still has the memfd's name. Even if closing fails, the descriptor is closed.
		_ = unix.Close(fd)
	}
	if err != nil {
		return nil, err
	}
	r.memfdErr = memfdErr
	return r, nil
}

func wholePages(size int) (int, error) {
	page := os.Getpagesize()
	if size <= 0 || int64(size) > 1<<40 {
		return 0, fmt.Errorf("mapping of %d bytes: %w", size, unix.EINVAL)
	}
	return (size + page - 1) / page * page, nil
}

// newRegion maps fd, or anonymous memory if it is negative.
func newRegion(name string, size, fd int) (*Region, error) {
	size, err := wholePages(size)
	if err != nil {
		return nil, err
	}
	flags := unix.MAP_PRIVATE
	if fd < 0 {
		flags |= unix.MAP_ANONYMOUS
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	// A reader must not find published memory in a forked child (OTEP 4719). Private memory may be
	// inherited.
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil && name != "" {
		return nil, errors.Join(fmt.Errorf("madvise MADV_DONTFORK: %w", err), munmap(mem))
	}
	// Prevent huge pages, which would use memory for parts that are never touched. Ignore the
	// error: kernels without huge pages reject the call.
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
	return &Region{mem: mem, mapped: true, name: name}, nil
}

// NewAnonymous is like [New], but the mapping is not backed by a memfd. If the kernel cannot name
// mappings, Announce still returns no error, but readers can find the memory only by its contents.
func NewAnonymous(name string, size int) (*Region, error) {
	return newRegion(name, size, -1)
}

// NewPrivate maps size bytes, rounded up to whole pages, which other processes do not find.
func NewPrivate(size int) (*Region, error) { return newRegion("", size, -1) }

// CheckFileSize returns an error that wraps EFBIG if RLIMIT_FSIZE prevents this process from making
// a file of size bytes. Call it before any operation that makes a file larger. Otherwise that
// operation would also send SIGXFSZ. In a C program with a Go library (c-shared or c-archive), Go
// installs no handler for this signal, so it kills the program.
func CheckFileSize(size int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return fmt.Errorf("getrlimit RLIMIT_FSIZE: %w", err)
	}
	if uint64(size) > limit.Cur {
		return fmt.Errorf("file of %d bytes where RLIMIT_FSIZE is %d: %w", size, limit.Cur, unix.EFBIG)
	}
	return nil
}

// memfd returns a memory file of the given size. Its size and contents cannot change: someone who
// opens the file through /proc/pid/map_files could otherwise truncate it, whereupon the next access to
// the mapping would raise SIGBUS. The mapping is private, so it never writes to the file.
func memfd(name string, size int) (int, error) {
	if disabled, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(os.Getenv(MemfdVariable)))); err == nil && disabled {
		return -1, fmt.Errorf("memfd: disabled by %s", MemfdVariable)
	}
	if err := CheckFileSize(size); err != nil {
		return -1, fmt.Errorf("memfd: %w", err)
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		// Linux before 6.3 does not know MFD_NOEXEC_SEAL and returns EINVAL. A system call filter
		// may return any error.
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
	// Ignore the error: a system call filter may deny the call, and the memfd works without seals.
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return fd, nil
}

// Announce asks the kernel to name the mapping. It makes the system call even if the kernel is
// known to reject it, because profilers watch for this call and then scan the process's mappings
// (OTEP 4719, publication protocol, step 10).
//
// A kernel without CONFIG_ANON_VMA_NAME rejects the call. Announce then returns an error if the
// mapping should have a memfd but has none, because readers cannot find the mapping. For private
// memory and memory on the heap, Announce does nothing.
func (r *Region) Announce() error {
	if r.name == "" {
		return nil
	}
	name, err := unix.BytePtrFromString(r.name)
	if err != nil {
		return err
	}
	// Sound: the pointer is converted in the argument list, which keeps name alive and in place
	// during the call. The kernel copies the name.
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME,
		uintptr(r.Address()), uintptr(len(r.mem)), uintptr(unsafe.Pointer(name)), 0)
	if errno != 0 && r.memfdErr != nil {
		return fmt.Errorf("mapping cannot be named: %w; prctl PR_SET_VMA_ANON_NAME: %w", r.memfdErr, errno)
	}
	return nil
}

// Retire replaces the mapping with an unnamed, zeroed mapping at the same addresses, which uses no
// memory. That mapping stays forever, so late writers do no harm. Use Retire if it is impossible to
// wait for writers. The Region cannot be used afterwards. Memory on the heap is left to the garbage collector.
func (r *Region) Retire() error {
	mem := r.mem
	r.mem = nil
	if mem == nil || !r.mapped {
		return nil
	}
	// A single system call replaces the mapping, so the addresses are mapped at all times.
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("replace mapping: %w", err)
	}
	return nil
}

// Close unmaps the memory. Memory on the heap is left to the garbage collector. A second call does
// nothing.
func (r *Region) Close() error {
	mem := r.mem
	r.mem = nil
	if mem == nil || !r.mapped {
		return nil
	}
	return munmap(mem)
}

func munmap(mem []byte) error {
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("munmap: %w", err)
	}
	return nil
}
