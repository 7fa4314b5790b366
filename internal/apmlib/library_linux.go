// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package apmlib

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

// Library is the library mapped in this process.
type Library struct {
	records *Records
	// SetStorage alternates between the two storages, so that a concurrent reader can finish reading
	// the old one.
	storages [2][]byte
	current  int
	// pointer is the value of the storage symbol.
	pointer *uint64
	image   *vma.Image
}

// process holds the library of this process, once it is installed.
var process struct {
	mu      sync.Mutex
	library *Library
}

// regionName names the mapping of the records and storages, on kernels that name mappings.
const regionName = "OTELCTX_APM"

// storageSpace is the space reserved for each of the two storages, which precede the records.
const storageSpace = 1024

const _ = uint(storageSpace - wire.MaxProfilingProcessStorage) // the largest storage fits

// Install publishes storage, an encoded process storage, to profilers: first its contents,
// then the words, then the mapping that they search for. It creates the library's file in
// the first of dirs from which code can be mapped, and removes it before it
// returns.
//
// A process has only one library. Later calls replace the storage and ignore dirs. The error says
// why the Go runtime is not supported, or what failed in each of dirs.
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
	// Ignore the error: the mapping works without a name, which is only informative.
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
		// The mapping keeps the file alive for profilers.
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

// createLibrary creates a file with the name of a library.
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
	// The contents must be stored before this: an atomic store becomes visible after the stores
	// that precede it.
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
