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

// Image is a file mapped as a loader would map it: an executable part is followed by a writable
// part. It is never unmapped, and forked children inherit it.
type Image struct{ mem []byte }

// MapImage maps a file privately. Its first text bytes become readable and executable. The rest,
// rounded up to whole pages, becomes readable and writable. text must be a multiple of the page
// size.
//
// Readers search for the executable part, so MapImage maps it last. Before that, it calls prepare
// with the whole mapping. prepare may access only the part after text.
//
// If MapImage fails, nothing stays mapped. The error wraps [os.ErrPermission] if the file system or
// a policy denies executable mappings.
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
		// Sound: the range belongs to mem, and one system call replaces the mapping.
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

// Bytes returns the memory of the image. All of it is readable, but only the part after the text is
// writable.
func (i *Image) Bytes() []byte { return i.mem }

// Signal makes the prctl call by which publishers name their process contexts, but applies it to
// the executable part of the image. The kernel always rejects the call, because the mapping is
// backed by a file. But profilers watch for such calls, and then scan the process's mappings again.
func (i *Image) Signal(name string) {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return
	}
	// Sound: the pointers are converted in the argument list, which keeps them alive and in place
	// during the call. Ignore the result, because the call always fails.
	_, _, _ = unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_VMA, //nolint:dogsled // see above
		unix.PR_SET_VMA_ANON_NAME,
		uintptr(unsafe.Pointer(unsafe.SliceData(i.mem))), uintptr(os.Getpagesize()), uintptr(unsafe.Pointer(b)), 0)
}
