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

// Library is the library as it is in this process.
type Library struct {
	records *Records
	// storages are where process storages go, in turns, so that a reader in flight
	// keeps a whole old one.
	storages [2][]byte
	current  int
	// pointer is the storage symbol.
	pointer *uint64
	image   *vma.Image
}

// process has the library of this process, once there is one.
var process struct {
	mu      sync.Mutex
	library *Library
}

// regionName names the mapping of the records and storages, where mappings have names.
const regionName = "OTELCTX_APM"

// storageSpace is what there is for a storage. Records start behind two of them.
const storageSpace = 1024

const _ = uint(storageSpace - wire.MaxProfilingProcessStorage) // it fits

// Install shows storage, an encoded process storage, to profilers: its contents first,
// then the words, then the mapping that they look for. The library's file is made in
// the first of dirs that has code mapped from it, and not there any more when Install
// returns.
//
// A process has one library for life. After the first call the storage replaces the one
// before and dirs do not count. The error says why there is none: what is not known of
// the Go runtime, or for each of dirs what failed.
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
	// The name is for people: it may be missing.
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

// mapFrom maps the library from a file in a directory.
func (l *Library) mapFrom(dir string, generated *Image, storage []byte) (*vma.Image, error) {
	f, err := createLibrary(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = f.Close()
		// The mapping keeps it, and profilers read it there.
		_ = os.Remove(f.Name())
	}()
	if err := vma.CheckFileSize(len(generated.File)); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if _, err := f.Write(generated.File); err != nil {
		return nil, err
	}
	image, err := vma.MapImage(f, generated.Text, func(mem []byte) {
		// Sound: generated says that these words are there, aligned.
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

// createLibrary creates a file with a name that is one of a library.
func createLibrary(dir string) (*os.File, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return os.CreateTemp(dir, fmt.Sprintf("%sotelctx-%d-*%s", wire.ProfilingLibraryPrefix, os.Getpid(), wire.ProfilingLibrarySuffix))
}

// SetStorage replaces the process storage. What is too long stays out.
func (l *Library) SetStorage(storage []byte) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if len(storage) <= storageSpace {
		l.setStorage(storage)
	}
}

func (l *Library) setStorage(storage []byte) {
	l.current = 1 - l.current
	at := l.storages[l.current]
	copy(at, storage)
	// Behind the contents: atomic stores are seen after what precedes them.
	atomic.StoreUint64(l.pointer, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(at)))))
}

// Withdraw takes the process storage back.
func (l *Library) Withdraw() {
	process.mu.Lock()
	defer process.mu.Unlock()
	atomic.StoreUint64(l.pointer, 0)
}

// Records returns the records of the process's threads.
func (l *Library) Records() *Records { return l.records }
