// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package synctestbubble lets a library create its long-lived goroutines, timers and channels outside the
// testing/synctest bubble of a test. A long-lived goroutine inside the bubble would keep the test
// from ending.
package synctestbubble

import (
	"runtime"
	"sync"
)

// leaving serializes calls of Outside from bubbles. left signals that f has returned. The channel
// left is created outside any bubble, so goroutines inside and outside of bubbles may use it.
var (
	leaving sync.Mutex
	left    = make(chan struct{})
)

// Outside calls f and waits for it to return. When called in a bubble, it runs f on a goroutine
// outside the bubble, so that goroutines, channels and timers created by f are outside, too. To
// leave the bubble, it registers f as a cleanup function, because these run outside any bubble, and
// then runs the garbage collector.
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

// cleanUp registers f as a cleanup function of an unreachable object.
//
//go:noinline
func cleanUp(f func()) {
	garbage := new(func()) // contains a pointer, because the tiny allocator could keep an object without pointers alive
	runtime.AddCleanup(garbage, func(f func()) {
		f()
		left <- struct{}{}
	}, f)
}
