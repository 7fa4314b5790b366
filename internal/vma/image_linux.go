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

// Image is a file in memory as a loader would map it: a part that is executed, and
// behind it one that is written. It stays for ever; forked children inherit it.
type Image struct{ mem []byte }

// MapImage maps a file. Its first text bytes are mapped to be read and executed. What
// is behind them, rounded up to whole pages, is mapped privately to be read and
// written. text is a multiple of the page size. prepare gets all of the mapping and may
// touch only what is behind text. It is called before the part that is executed, which
// readers look for, is there. Any failure leaves nothing behind; where the file system
// or a policy denies code it wraps [os.ErrPermission].
func MapImage(f *os.File, text int, prepare func(mem []byte)) (*Image, error) {
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size, err := wholePages(int(stat.Size()))
	if err != nil {
		return nil, err
	}
	if text <= 0 || text >= size || text%os.Getpagesize() != 0 {
		return nil, fmt.Errorf("image of %d bytes with %d of text: %w", size, text, unix.EINVAL)
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes: %w", size, err)
	}
	place := func(from, to, prot int) error {
		// Sound: the range is ours, and one system call replaces what is there.
		_, err := unix.MmapPtr(int(f.Fd()), int64(from), unsafe.Pointer(&mem[from]), uintptr(to-from), prot,
			unix.MAP_PRIVATE|unix.MAP_FIXED)
		return err
	}
	if err := place(text, size, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("mmap of data: %w", err), munmap(mem))
	}
	prepare(mem)
	if err := place(0, text, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("mmap of code: %w", err), munmap(mem))
	}
	return &Image{mem: mem}, nil
}

// Bytes returns the memory, all of which may be read.
func (i *Image) Bytes() []byte { return i.mem }

// Signal makes the system call that names process contexts, on the part of the image
// that is executed. The kernel never names that, since a file is behind it; but
// profilers watch for the call and look at the process's mappings anew.
func (i *Image) Signal(name string) {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return
	}
	// Sound: the pointers are converted in the argument list, which keeps them alive
	// and in place for the call. Its failure is what is expected.
	_, _, _ = unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_VMA, //nolint:dogsled // see above
		unix.PR_SET_VMA_ANON_NAME,
		uintptr(unsafe.Pointer(unsafe.SliceData(i.mem))), uintptr(os.Getpagesize()), uintptr(unsafe.Pointer(b)), 0)
}
