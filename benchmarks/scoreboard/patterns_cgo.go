// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package main

/*
#include <pthread.h>

extern void scoreboardCallback(void);

static void *on_thread(void *arg) {
	scoreboardCallback();
	return arg;
}

static void call_back(void) { scoreboardCallback(); }

static int call_back_on_thread(void) {
	pthread_t thread;
	int err = pthread_create(&thread, 0, on_thread, 0);
	return err ? err : pthread_join(thread, 0);
}
*/
import "C"

import (
	"context"
	"syscall"
)

// cgoPatterns lists patterns in which C code calls Go.
var cgoPatterns = []pattern{
	{inRoot: cgoCallback, about: "a Go function that C calls on the span's goroutine, and after it", single: true},
	{inRoot: cgoCallbackChild, about: "a child span in such a callback", single: true},
	{inRoot: cgoThread, about: "a Go function that a thread of C's own calls", single: true},
	{run: cgoThreadSpan, about: "a span in such a function, and after it", single: true},
}

// called is the function that scoreboardCallback calls. A variable is enough because the patterns that use
// it run one at a time.
var called func()

//export scoreboardCallback
func scoreboardCallback() { called() }

func callBack(f func()) {
	called = f
	C.call_back()
}

func callBackOnThread(f func()) {
	called = f
	if err := C.call_back_on_thread(); err != 0 {
		panic(syscall.Errno(err))
	}
}

func cgoCallback(r *run, ctx context.Context) {
	callBack(func() {
		r.stayIn(ctx)
	})
	r.in(ctx)
}

func cgoCallbackChild(r *run, parent context.Context) {
	callBack(func() {
		ctx, child := r.start(parent, "child")
		r.stayIn(ctx)
		child.End()
	})
	r.in(parent)
}

func cgoThread(r *run, _ context.Context) {
	callBackOnThread(func() {
		r.stayOut()
	})
}

func cgoThreadSpan(r *run) {
	callBackOnThread(func() {
		r.stayInNew(r.tracer, context.Background())
		r.out()
	})
}
