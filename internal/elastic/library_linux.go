// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package elastic

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Library is the library that is mapped in this process.
type Library struct {
	records *Records
	// storages are two buffers that SetStorage fills alternately, so that a concurrent reader can
	// finish reading the old one.
	storages [2][]byte
	current  int
	// pointer is the library's symbol that points to the process storage.
	pointer *uint64
	image   *vma.Image
}

// process holds the library once it is installed.
var process struct {
	mu      sync.Mutex
	library *Library
}

// regionName is the name of the mapping that contains the storages and the records. Kernels without
// CONFIG_ANON_VMA_NAME do not show it.
const regionName = "OTELCTX_APM"

// storageSpace is the size in bytes of each of the two storages. The records follow them.
const storageSpace = 1024

const _ = uint(storageSpace - wire.MaxProfilingProcessStorage) // the largest storage fits

// Install maps the library and publishes storage, an encoded process storage. Everything is in
// place before the mapping that profilers search for appears. Install creates the library's file in
// the first of dirs from which code can be mapped, and removes it before it returns.
//
// A process has only one library. Once it is mapped, calls replace its storage and ignore the other
// arguments; they return the library together with the error of [Records.Err], if any. Every call
// fails if storage is too long. Before the library is mapped, a call also fails if the Go runtime
// is not supported, if there is no memory for the records, or if the library cannot be mapped from
// any of dirs. In the last case, the error says why for each directory.
func Install(dirs []string, storage []byte, r *goruntime.Runtime) (*Library, error) {
	if len(storage) > storageSpace {
		return nil, fmt.Errorf("process storage of %d bytes, at most %d", len(storage), storageSpace)
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	if l := process.library; l != nil {
		l.setStorage(storage)
		return l, l.records.Err()
	}
	l, err := install(dirs, storage, r)
	if err != nil {
		return nil, err
	}
	process.library = l
	return l, nil
}

func install(dirs []string, storage []byte, r *goruntime.Runtime) (*Library, error) {
	region, err := vma.NewAnonymous(regionName, 2*storageSpace+maxThreads*wire.ProfilingThreadSize)
	if err != nil {
		return nil, err
	}
	b := region.Bytes()
	l := &Library{storages: [2][]byte{b[:storageSpace], b[storageSpace : 2*storageSpace]}}
	if l.records, err = newRecords(b[2*storageSpace:][:maxThreads*wire.ProfilingThreadSize], r); err == nil {
		err = l.mapFromFirst(dirs, storage)
	}
	if err != nil {
		return nil, errors.Join(err, region.Close())
	}
	l.image.Signal(wire.ProcessContextName)
	// Ignore the error: the name is only informative.
	_ = region.Announce()
	return l, nil
}

// mapFromFirst maps the library from a file in the first directory that allows it.
func (l *Library) mapFromFirst(dirs []string, storage []byte) error {
	machine := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
	}
	generated, err := Generate(machine, os.Getpagesize())
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if l.image, err = l.mapFrom(dir, generated, storage); err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("no directory allows the library to be mapped: %w", errors.Join(errs...))
}

// mapFrom maps the library from a temporary file in dir.
func (l *Library) mapFrom(dir string, generated *Image, storage []byte) (*vma.Image, error) {
	f, err := createLibrary(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = f.Close()
		// The mapping keeps the file's contents alive.
		_ = os.Remove(f.Name())
	}()
	if err := vma.CheckFileSize(len(generated.File)); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if _, err := f.Write(generated.File); err != nil {
		return nil, err
	}
	image, err := vma.MapImage(f, generated.Text, func(mem []byte) {
		// Sound: these offsets are within the image and aligned.
		l.pointer = (*uint64)(unsafe.Pointer(&mem[generated.Storage]))
		offset := (*uint64)(unsafe.Pointer(&mem[generated.Descriptor+wordSize]))
		*offset = uint64(l.records.word)
		l.setStorage(storage)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return image, nil
}

// createLibrary creates an empty file whose name profilers recognize as a library's.
func createLibrary(dir string) (*os.File, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return os.CreateTemp(dir, fmt.Sprintf("%sotelctx-%d-*%s", wire.ProfilingLibraryPrefix, os.Getpid(), wire.ProfilingLibrarySuffix))
}

// SetStorage replaces the process storage. It does nothing if storage is too long.
func (l *Library) SetStorage(storage []byte) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if len(storage) <= storageSpace {
		l.setStorage(storage)
	}
}

func (l *Library) setStorage(storage []byte) {
	l.current = 1 - l.current
	target := l.storages[l.current]
	copy(target, storage)
	// The atomic store makes the contents visible before the pointer.
	atomic.StoreUint64(l.pointer, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(target)))))
}

// Withdraw unpublishes the process storage.
func (l *Library) Withdraw() {
	process.mu.Lock()
	defer process.mu.Unlock()
	atomic.StoreUint64(l.pointer, 0)
}

// Records returns the records of the process's threads.
func (l *Library) Records() *Records { return l.records }
