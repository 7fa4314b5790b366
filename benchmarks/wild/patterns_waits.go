// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/otelctx/otelctx/spanctx"
)

// waitPatterns are about goroutines that wait in a span, in each way that Go has. A goroutine
// profile finds them while they wait, and all observers find them before and after that.
var waitPatterns = []pattern{
	{called: "waitMutex", run: waits(waitMutex), about: "in a span, around a wait for a mutex"},
	{called: "waitRWMutex", run: waits(waitRWMutex), about: "the same, for a reader's lock"},
	{called: "waitChannel", run: waits(waitChannel), about: "the same, for a channel"},
	{called: "waitSelect", run: waits(waitSelect), about: "the same, for one of several channels"},
	{called: "waitGroup", run: waits(waitGroup), about: "the same, for a sync.WaitGroup"},
	{called: "waitSleep", run: waits(waitSleep), about: "the same, in time.Sleep"},
	{called: "waitNetwork", run: waits(waitNetwork), about: "the same, in Read of a TCP connection"},
	{called: "waitSyscall", run: waits(waitSyscall), about: "the same, in a system call that blocks the thread"},
	{run: waitInChild, about: "a parent that waits for a goroutine, which waits in a child: both"},
	{run: waitAttached, about: "a pool worker that waits in an attached span"},
}

// inheritedPatterns are about goroutines that set labels after they have inherited their span. Only
// their labels identify that span, so it is unknown without them.
var inheritedPatterns = []pattern{
	{run: inheritedDo, about: "pprof.Do on a goroutine that has inherited its span: in it and after it"},
	{run: inheritedErrGroup, about: "the same in the functions of an errgroup"},
	{run: inheritedSetLabels, about: "after SetGoroutineLabels on a goroutine that has inherited its span"},
	{run: inheritedSpanDo, about: "the same with `spanctx.Do`: in it and after it"},
	{run: inheritedSpanDoGroup, about: "the same in the functions of an errgroup"},
	{run: inheritedRefresh, about: "the same with SetGoroutineLabels and `spanctx.Refresh`"},
	{run: inheritedGo, about: "the same on a goroutine started by `spanctx.Go`, with pprof.Do"},
	{run: inheritedChild, about: "pprof.Do on such a goroutine, in a child that it has started in it"},
	{run: doChildGoroutines, about: "a child started in pprof.Do, on goroutines that it has started"},
}

// waits waits in a span until another goroutine wakes it.
func waits(wait func() (wait, wake func())) func(*run) {
	return func(r *run) {
		ctx, span := r.root("root")
		var others sync.WaitGroup
		for range 2 {
			w, wake := wait()
			others.Go(func() {
				time.Sleep(waitTime)
				wake()
			})
			r.waitIn(ctx, w)
			r.in(ctx)
		}
		others.Wait()
		span.End()
		r.out()
	}
}

// waitTime is how long a pattern waits.
const waitTime = 3 * time.Millisecond

func waitMutex() (wait, wake func()) {
	mu := new(sync.Mutex)
	mu.Lock()
	return func() { mu.Lock() }, mu.Unlock //nolint:staticcheck // it is not locked for a section
}

func waitRWMutex() (wait, wake func()) {
	mu := new(sync.RWMutex)
	mu.Lock()
	return func() { mu.RLock() }, mu.Unlock //nolint:staticcheck // it is not locked for a section
}

func waitChannel() (wait, wake func()) {
	c := make(chan struct{})
	return func() { <-c }, func() { close(c) }
}

func waitSelect() (wait, wake func()) {
	c, never := make(chan struct{}), make(chan struct{})
	return func() {
		select {
		case <-c:
		case <-never:
		}
	}, func() { close(c) }
}

func waitGroup() (wait, wake func()) {
	var group sync.WaitGroup
	group.Add(1)
	return func() { group.Wait() }, func() { group.Done() }
}

func waitSleep() (wait, wake func()) {
	return func() { time.Sleep(waitTime) }, func() {}
}

func waitNetwork() (wait, wake func()) {
	listener := listen()
	here := check(new(net.Dialer).DialContext(context.Background(), "tcp", listener.Addr().String()))
	there := check(listener.Accept())
	must(listener.Close())
	return func() {
		_, _ = io.ReadAll(here)
		_ = here.Close()
	}, func() { _ = there.Close() }
}

func waitSyscall() (wait, wake func()) {
	reader, writer, err := os.Pipe()
	must(err)
	reader.Fd() // makes it blocking
	return func() {
		_, _ = io.ReadAll(reader)
		_ = reader.Close()
	}, func() { _ = writer.Close() }
}

func waitInChild(r *run) {
	parent, root := r.root("parent")
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, child := r.start(parent, "child")
		r.waitIn(ctx, func() { time.Sleep(waitTime) })
		child.End()
		r.in(parent)
	}()
	r.waitIn(parent, func() { <-done })
	r.in(parent)
	root.End()
}

func waitAttached(r *run) {
	requests, finish := r.requestsOfOthers(1)
	attachment := spanctx.Attach(requests[0])
	r.waitIn(requests[0], func() { time.Sleep(waitTime) })
	r.in(requests[0])
	attachment.Detach()
	r.out()
	finish()
}

// inheriting runs f on a goroutine that has inherited its span.
func (r *run) inheriting(f func(ctx context.Context)) {
	ctx, span := r.root("root")
	inside(onGoroutine, func() { f(ctx) })
	r.in(ctx)
	span.End()
}

// groups runs f in the functions of an errgroup.
func (r *run) groups(f func(ctx context.Context)) {
	request, span := r.root("root")
	group, ctx := errgroup.WithContext(request)
	for range 3 {
		group.Go(func() error {
			f(ctx)
			return nil
		})
	}
	must(group.Wait())
	r.in(request)
	span.End()
}

var userLabel = pprof.Labels("user", "label")

// plainDo works in pprof.Do, and after it.
func (r *run) plainDo(ctx context.Context) {
	pprof.Do(ctx, userLabel, r.either)
	r.either(ctx)
}

// spanDo works in spanctx.Do, and after it.
func (r *run) spanDo(ctx context.Context) {
	spanctx.Do(ctx, userLabel, r.in)
	r.in(ctx)
}

func inheritedDo(r *run)          { r.inheriting(r.plainDo) }
func inheritedErrGroup(r *run)    { r.groups(r.plainDo) }
func inheritedSpanDo(r *run)      { r.inheriting(r.spanDo) }
func inheritedSpanDoGroup(r *run) { r.groups(r.spanDo) }

func inheritedSetLabels(r *run) {
	r.inheriting(func(ctx context.Context) {
		pprof.SetGoroutineLabels(pprof.WithLabels(ctx, userLabel))
		r.either(ctx)
	})
}

func inheritedRefresh(r *run) {
	r.inheriting(func(ctx context.Context) {
		pprof.SetGoroutineLabels(pprof.WithLabels(ctx, userLabel))
		spanctx.Refresh(ctx)
		r.in(ctx)
	})
}

func inheritedGo(r *run) {
	ctx, span := r.root("root")
	inside(func(f func()) { spanctx.Go(ctx, func(context.Context) { f() }) }, func() {
		pprof.Do(ctx, userLabel, r.in)
		r.in(ctx)
	})
	span.End()
}

func inheritedChild(r *run) {
	r.inheriting(func(ctx context.Context) {
		pprof.Do(ctx, userLabel, func(ctx context.Context) {
			child, span := r.start(ctx, "child")
			r.in(child)
			span.End()
		})
	})
}

func doChildGoroutines(r *run) {
	ctx, span := r.root("root")
	pprof.Do(ctx, userLabel, func(ctx context.Context) {
		child, span := r.start(ctx, "child")
		inside(onGoroutine, func() { r.in(child) })
		span.End()
		r.in(ctx)
	})
	span.End()
}
