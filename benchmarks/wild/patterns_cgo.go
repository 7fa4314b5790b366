// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package main

/*
#include <pthread.h>

extern void wildCallback(void);

static void *on_thread(void *arg) {
	wildCallback();
	return arg;
}

static void call_back(void) { wildCallback(); }

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
	{run: cgoCallback, about: "a Go function that C calls on the span's goroutine, and after it", single: true},
	{run: cgoCallbackChild, about: "a child span in such a callback", single: true},
	{run: cgoThread, about: "a Go function that a thread of C's own calls", single: true},
	{run: cgoThreadSpan, about: "a span in such a function, and after it", single: true},
}

// called is the function that wildCallback calls. A variable is enough because the patterns that use
// it run one at a time.
var called func()

//export wildCallback
func wildCallback() { called() }

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

func cgoCallback(r *run) {
	ctx, span := r.root("root")
	callBack(func() {
		r.in(ctx)
		block()
		r.in(ctx)
	})
	r.in(ctx)
	span.End()
}

func cgoCallbackChild(r *run) {
	parent, root := r.root("parent")
	callBack(func() {
		ctx, child := r.start(parent, "child")
		r.in(ctx)
		block()
		r.in(ctx)
		child.End()
	})
	r.in(parent)
	root.End()
}

func cgoThread(r *run) {
	_, span := r.root("root")
	callBackOnThread(func() {
		r.out()
		block()
		r.out()
	})
	span.End()
}

func cgoThreadSpan(r *run) {
	callBackOnThread(func() {
		ctx, span := r.start(context.Background(), "root")
		r.in(ctx)
		block()
		r.in(ctx)
		span.End()
		r.out()
	})
}
