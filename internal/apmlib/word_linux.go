// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package apmlib

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	_ "unsafe" // for linkname

	"github.com/otelctx/otelctx/internal/goruntime"
)

// Supported says whether there may be thread-local words on this platform.
const Supported = true

// iscgo is the runtime's: the C library, or what poses as one, makes the threads. The
// runtime undertakes to keep the name and the type (go.dev/issue/67401). It is set
// before main and never written again.
//
//go:linkname iscgo runtime.iscgo
var iscgo bool

// threadWord returns the word at a distance from the thread pointer, and setThreadWord
// stores to it. Sound only where the word is known to be there, see findWord; callers
// are pinned. Both keep to the thread that they start on, since Go does not preempt
// assembly.
func threadWord(offset int64) uintptr

func setThreadWord(offset int64, v uintptr)

// place says where each thread's word is.
type place struct {
	// offset is the distance from the thread pointer.
	offset int64
	// inM is how far into the runtime's structure of the thread the thread pointer
	// points, if it is to point there; else 0.
	inM uintptr
}

// A pinned goroutine returns errors that are there.
var (
	errWordInUse       = errors.New("the thread-local word is in use")
	errNotInM          = errors.New("the thread pointer does not point into the runtime's structure of the thread")
	errNoThreadPointer = errors.New("the thread pointer cannot be had")
)

// findWord looks at a few threads, and returns where each has a word that nobody uses. A
// program's threads are all made in one way, and each is checked before its word is
// written for the first time.
func findWord(r *goruntime.Runtime) (place, error) {
	find := wordOfGo
	if address, ok := cWord(); ok && address != 0 {
		find = wordOfC
	} else if iscgo {
		return place{}, errors.New("threads are made by what poses as C's library, and there is no cgo to ask for a thread-local word")
	}
	const threads = 3
	var found [threads]place
	if err := onThreads(threads, func(n int) (err error) {
		if found[n], err = find(r); err == nil {
			err = found[n].check(r, 0)
		}
		return err
	}); err != nil {
		return place{}, err
	}
	for _, p := range found {
		if p != found[0] {
			return place{}, fmt.Errorf("threads have the word at different distances: %+v", found)
		}
	}
	return found[0], nil
}

func wordOfC(*goruntime.Runtime) (place, error) {
	address, _ := cWord()
	tp, err := threadPointer()
	return place{offset: int64(address - tp)}, err
}

// check reports why the word of the calling thread must not be written: it holds
// something other than ours. The caller is pinned, or locked to the thread.
func (p place) check(r *goruntime.Runtime, ours uintptr) error {
	if p.inM != 0 {
		tp, err := threadPointer()
		if err != nil {
			return err
		}
		if tp-r.Self().M != p.inM {
			return errNotInM
		}
	}
	if w := threadWord(p.offset); w != 0 && w != ours {
		return errWordInUse
	}
	return nil
}

// onThreads runs f n times, each on a thread of its own, and returns an error if there
// is any.
func onThreads(n int, f func(n int) error) error {
	errs := make([]error, n)
	var all, done sync.WaitGroup
	all.Add(n)
	for i := range n {
		done.Go(func() {
			// The thread is given back: it may not be ours to end.
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
