// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package bubble lets a library create its long-lived goroutines, timers and channels outside the
// testing/synctest bubble of a test. Inside, a goroutine that waits for an outside event would keep
// the test from ending.
package bubble

import (
	"runtime"
	"sync"
)

// leaving serializes calls of Outside from bubbles. left signals that f has returned. The channel is
// created outside any bubble, so goroutines inside and outside may use it.
var (
	leaving sync.Mutex
	left    = make(chan struct{})
)

// Outside calls f and waits for it to return. When called in a bubble, it runs f on a goroutine
// outside the bubble, so that goroutines, channels and timers created by f are outside, too. It does
// so by registering f as a cleanup function, which runs outside any bubble, and then runs the
// garbage collector.
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
	garbage := new(func()) // Has a pointer, so that the tiny allocator does not merge it with other objects.
	runtime.AddCleanup(garbage, func(f func()) {
		f()
		left <- struct{}{}
	}, f)
}
