// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

/*
#cgo CFLAGS: -O2 -fno-omit-frame-pointer

// threadLocal takes space in thread-local storage, so that Go's g is farther from the thread pointer.
static __thread volatile char threadLocal[256];

static void __attribute__((noinline)) burn(long iterations) {
	unsigned long x = 1 + threadLocal[1];
	for (long i = 0; i < iterations; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	threadLocal[2] = x;
}

// Go calls burn through the variable work.
*/
import "C"

// work burns in C.
var work = func(iterations int) { C.burn(C.long(iterations)) }
