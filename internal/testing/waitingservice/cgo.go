// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

/*
#include <pthread.h>
#include <unistd.h>

extern void goWait(void);
extern void goPark(void);

static void *park(void *unused) { goPark(); return unused; }
static int parkInThread(void) { pthread_t t; return pthread_create(&t, 0, park, 0); }

static void sleepInC(void) { for (;;) pause(); }
static void __attribute__((noinline)) callGo(int n) { volatile char b[64]; b[n] = 1; goWait(); b[n] = 2; }
*/
import "C"

import (
	"sync"

	"go.opentelemetry.io/otel/trace"
)

//export goWait
func goWait() { <-empty }

//export goPark
func goPark() {
	p := <-threadParks
	park(p.tracer, cThread, func() { <-empty }, p.ready)
}

// threadPark is what a thread created by C needs to call park.
type threadPark struct {
	tracer trace.Tracer
	ready  *sync.WaitGroup
}

var threadParks = make(chan threadPark, 1)

func init() {
	ways["cgo call"] = way{func() { C.sleepInC() }, 10}
	ways["cgo callback"] = way{func() { C.callGo(3) }, 10}
	ways[cThread] = way{nil, 10}
	parkInThread = func(tracer trace.Tracer, ready *sync.WaitGroup) {
		threadParks <- threadPark{tracer, ready}
		C.parkInThread()
	}
}
