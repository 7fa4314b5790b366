// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

/*
#include <unistd.h>

extern void goWait(void);

static void sleepInC(void) { for (;;) pause(); }
static void __attribute__((noinline)) callGo(int n) { volatile char b[64]; b[n] = 1; goWait(); b[n] = 2; }
*/
import "C"

//export goWait
func goWait() { <-empty }

func init() {
	ways["cgo call"] = way{func() { C.sleepInC() }, 10}
	ways["cgo callback"] = way{func() { C.callGo(3) }, 10}
}
