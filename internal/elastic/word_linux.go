// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package elastic

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	_ "unsafe" // for linkname

	"github.com/otelctx/otelctx/internal/goruntime"
)

// Supported is true on platforms that can have thread-local words.
const Supported = true

// iscgo is a variable of the runtime. It is true if the C library, or a package that replaces it,
// creates threads. The runtime promises to keep the name and the type (go.dev/issue/67401). It is
// set before main and never changes.
//
//go:linkname iscgo runtime.iscgo
var iscgo bool

// threadWord loads the word at an offset from the thread pointer, and setThreadWord stores to it.
// They are sound only for offsets that findWord has returned. Callers must be pinned, or locked to
// the thread. Each call stays on one thread, because Go does not preempt assembly.
func threadWord(offset int64) uintptr

func setThreadWord(offset int64, v uintptr)

// wordLocation says where each thread has its word.
type wordLocation struct {
	// offset is the word's offset from the thread pointer.
	offset int64
	// inM is the offset at which the thread pointer points into m, the runtime's structure of the
	// thread. It is 0 if the thread pointer points elsewhere.
	inM uintptr
}

// These errors are allocated in advance, because pinned goroutines return them and must not
// allocate.
var (
	errWordInUse       = errors.New("the thread-local word is in use")
	errNotInM          = errors.New("the thread pointer does not point into the runtime's structure of the thread")
	errNoThreadPointer = errors.New("the thread pointer cannot be read")
)

// findWord returns the location of a word that should be unused on every thread. It examines only
// three threads, because a program creates all of its threads in the same way. check examines each
// thread again before its word is first written.
func findWord(r *goruntime.Runtime) (wordLocation, error) {
	find := wordOfGo
	if address, ok := cWord(); ok && address != 0 {
		find = wordOfC
	} else if iscgo {
		return wordLocation{}, errors.New("threads are created by a replacement for the C library, and without cgo it cannot provide a thread-local word")
	}
	const threads = 3
	var found [threads]wordLocation
	if err := onThreads(threads, func(n int) (err error) {
		if found[n], err = find(r); err == nil {
			err = found[n].check(r, 0)
		}
		return err
	}); err != nil {
		return wordLocation{}, err
	}
	for _, p := range found {
		if p != found[0] {
			return wordLocation{}, fmt.Errorf("threads have the word at different offsets: %+v", found)
		}
	}
	return found[0], nil
}

func wordOfC(*goruntime.Runtime) (wordLocation, error) {
	address, _ := cWord()
	tp, err := threadPointer()
	return wordLocation{offset: int64(address - tp)}, err
}

// check returns an error if the word of the calling thread must not be written: it holds a value
// other than 0 or record, or the thread pointer is not where it is on other threads. The caller is
// pinned, or locked to the thread.
func (p wordLocation) check(r *goruntime.Runtime, record uintptr) error {
	if p.inM != 0 {
		tp, err := threadPointer()
		if err != nil {
			return err
		}
		if tp-r.Self().M != p.inM {
			return errNotInM
		}
	}
	if w := threadWord(p.offset); w != 0 && w != record {
		return errWordInUse
	}
	return nil
}

// onThreads runs f n times in parallel, each on its own thread, and returns the first error.
func onThreads(n int, f func(n int) error) error {
	errs := make([]error, n)
	var all, done sync.WaitGroup
	all.Add(n)
	for i := range n {
		done.Go(func() {
			// Unlock the thread at the end. The runtime destroys the thread of a goroutine that
			// exits while locked, and C may have created the thread.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
			errs[i] = f(i)
		})
	}
	done.Wait()
	return cmp.Or(errs...)
}
