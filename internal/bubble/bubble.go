// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package bubble lets a library keep its long-lived goroutines, timers and channels out of the
// bubble of a test that runs in testing/synctest. A goroutine that waits for the world
// outside would otherwise keep the test from ever ending.
package bubble

import (
	"runtime"
	"sync"
)

// leaving is held by the goroutine that leaves its bubble; left tells it that it may go on. The
// channel is made outside of any bubble, so both sides may use it.
var (
	leaving sync.Mutex
	left    = make(chan struct{})
)

// Outside calls f and waits for it. In a bubble it calls f on a goroutine outside of it:
// goroutines that f starts, and channels and timers that f makes, are outside too. Then it runs
// the garbage collector, since cleanup functions are what runs outside of any bubble.
func Outside(f func()) {
	if !In() {
		f()
		return
	}
	leaving.Lock()
	defer leaving.Unlock()
	cleanUp(f)
	for {
		runtime.GC()
		for range 1000 {
			select {
			case <-left:
				return
			default:
				runtime.Gosched()
			}
		}
	}
}

// cleanUp has f called when the garbage collector has run.
//
//go:noinline
func cleanUp(f func()) {
	garbage := new(func()) // with a pointer, so that it shares its memory with nothing
	runtime.AddCleanup(garbage, func(f func()) {
		f()
		left <- struct{}{}
	}, f)
}
