// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

/*
#include <pthread.h>

extern void probeCallback(void);

static void *probeThread(void *arg) {
	probeCallback();
	return arg;
}

// onCThread calls back into Go from a thread that Go did not create.
static int onCThread(void) {
	pthread_t thread;
	int err = pthread_create(&thread, 0, probeThread, 0);
	return err ? err : pthread_join(thread, 0);
}

#ifndef NO_THREAD_LOCALS
// A thread-local variable of C moves g away from the thread pointer.
static __thread volatile char threadLocal[256];

static void touch(void) { threadLocal[1]++; }
#else
static void touch(void) {}
#endif
*/
import "C"

import "sync"

var callback func()

//export probeCallback
func probeCallback() { callback() }

func init() {
	others = append(others, func(c *checker) {
		C.touch()
		var once sync.Once
		called := false
		callback = func() { once.Do(func() { called = true }); c.self() }
		for range 3 {
			if err := C.onCThread(); err != 0 {
				panic(err)
			}
		}
		c.equal("called back by C", called, true)
	})
}
