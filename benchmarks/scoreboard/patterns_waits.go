// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"modernc.org/sqlite"

	"github.com/otelctx/otelctx/spanctx"
)

// waitPatterns lists patterns in which a goroutine waits in a span, in many of the ways in which Go
// programs wait. Goroutine profiles and record --wall sample the goroutine during the wait. Other
// observers sample it only before and after the wait.
var waitPatterns = []pattern{
	{called: "waitMutex", run: waits(waitMutex), waits: "sync.Mutex.Lock", about: "in a span, around a wait for a mutex"},
	{called: "waitRWMutex", run: waits(waitRWMutex), waits: "sync.RWMutex.RLock", about: "the same, for a reader's lock"},
	{called: "waitCond", run: waits(waitCond), waits: "sync.Cond.Wait", about: "the same, for a sync.Cond"},
	{called: "waitChannel", run: waits(waitChannel), waits: "chan receive", about: "the same, for a channel"},
	{called: "waitPipeline", run: waits(waitPipeline), waits: "chan receive", about: "the same, for the last stage of a pipeline of channels"},
	{called: "waitSelect", run: waits(waitSelect), waits: "select", about: "the same, for one of several channels"},
	{called: "waitContext", run: waits(waitContext), waits: "select", about: "the same, for a timer or the end of a context"},
	{called: "waitGroup", run: waits(waitGroup), waits: "sync.WaitGroup.Wait", about: "the same, for a sync.WaitGroup"},
	{called: "waitErrGroup", run: waits(waitErrGroup), waits: "sync.WaitGroup.Wait", about: "the same, for an errgroup"},
	{called: "waitSingleflight", run: waits(waitSingleflight), waits: "sync.WaitGroup.Wait", about: "the same, for another caller's singleflight.Do"},
	{called: "waitSemaphore", run: waits(waitSemaphore), waits: "select", about: "the same, in Acquire of a x/sync semaphore"},
	{called: "waitSleep", run: waits(waitSleep), waits: "sleep", about: "the same, in time.Sleep"},
	{called: "waitIOPipe", run: waits(waitIOPipe), waits: "select", about: "the same, in Read of an io.Pipe"},
	{called: "waitNetwork", run: waits(waitNetwork), waits: "IO wait,syscall", about: "the same, in Read of a TCP connection"},
	{called: "waitSyscall", run: waits(waitSyscall), waits: "syscall", about: "the same, in a system call that blocks the thread"},
	{called: "waitHTTP", run: waits(waitHTTP), waits: "select", about: "the same, for the response of a slow HTTP server"},
	{called: "waitHTTPBody", run: waits(waitHTTPBody), waits: "IO wait,chan receive,syscall", about: "the same, for the body of such a response"},
	{called: "waitSQLPool", run: waits(waitSQLPool), waits: "select", about: "the same, for a connection of a database/sql pool that is exhausted"},
	{called: "waitRedis", run: waits(waitRedis), waits: "IO wait,select,syscall", about: "the same, in BLPOP of go-redis"},
	{called: "waitGRPC", run: waits(waitGRPC), waits: "select,chan receive,sync.Mutex.Lock", about: "the same, for the answer to a unary call of gRPC"},
	{inRoot: waitInChild, waits: "sleep,chan receive", about: "a parent that waits for a goroutine, which waits in a child: both"},
	{run: waitAttached, waits: "sleep,chan receive", about: "a pool worker that waits in an attached span"},
}

// inheritedPatterns lists patterns in which goroutines inherit a span and then set labels. Readers
// know the span only by the inherited labels, so it is unknown if these are lost.
var inheritedPatterns = []pattern{
	{run: inheritedDo, about: "pprof.Do on a goroutine that has inherited its span: in it and after it"},
	{run: inheritedErrGroup, about: "the same in the functions of an errgroup"},
	{run: inheritedSetLabels, about: "after SetGoroutineLabels on a goroutine that has inherited its span"},
	{run: inheritedSpanDo, about: "the same with `spanctx.Do`: in it and after it"},
	{run: inheritedSpanDoGroup, about: "the same in the functions of an errgroup"},
	{run: inheritedRefresh, about: "the same with SetGoroutineLabels and `spanctx.Refresh`"},
	{inRoot: inheritedGo, about: "the same on a goroutine started by `spanctx.Go`, with pprof.Do"},
	{run: inheritedChild, about: "pprof.Do on such a goroutine, in a child that it has started in it"},
	{run: doChildGoroutines, about: "a child started in pprof.Do, on goroutines that it has started"},
}

// waits returns a pattern that waits in a span until another goroutine wakes it. wait prepares the wait:
// it returns a function that waits, and a function that wakes it.
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
	return func() { mu.Lock() }, mu.Unlock
}

func waitRWMutex() (wait, wake func()) {
	mu := new(sync.RWMutex)
	mu.Lock()
	return func() { mu.RLock() }, mu.Unlock
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

func waitCond() (wait, wake func()) {
	cond, ready := sync.NewCond(new(sync.Mutex)), false
	return func() {
			cond.L.Lock()
			defer cond.L.Unlock()
			for !ready {
				cond.Wait()
			}
		}, func() {
			cond.L.Lock()
			defer cond.L.Unlock()
			ready = true
			cond.Signal()
		}
}

func waitPipeline() (wait, wake func()) {
	stage := func(from <-chan int) <-chan int {
		to := make(chan int)
		go func() {
			defer close(to)
			for n := range from {
				to <- n
			}
		}()
		return to
	}
	first := make(chan int)
	last := stage(stage(first))
	return func() {
			for range last {
				continue
			}
		}, func() {
			first <- 1
			close(first)
		}
}

func waitContext() (wait, wake func()) {
	ctx, cancel := context.WithCancel(context.Background())
	return func() {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
	}, cancel
}

func waitErrGroup() (wait, wake func()) {
	c := make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		<-c
		return nil
	})
	return func() { must(group.Wait()) }, func() { close(c) }
}

func waitSingleflight() (wait, wake func()) {
	var group singleflight.Group
	begun, c := make(chan struct{}), make(chan struct{})
	go func() {
		_, _, _ = group.Do("key", func() (any, error) {
			close(begun)
			<-c
			return true, nil
		})
	}()
	<-begun
	return func() { _, _, _ = group.Do("key", func() (any, error) { return nil, nil }) }, func() { close(c) }
}

func waitSemaphore() (wait, wake func()) {
	weighted := semaphore.NewWeighted(1)
	must(weighted.Acquire(context.Background(), 1))
	return func() { must(weighted.Acquire(context.Background(), 1)) }, func() { weighted.Release(1) }
}

func waitIOPipe() (wait, wake func()) {
	reader, writer := io.Pipe()
	return func() { _, _ = io.ReadAll(reader) }, func() { _ = writer.Close() }
}

// slowServer returns a server that does not complete its response until answer is called. If headers is true, it sends
// the response's headers at once.
func slowServer(headers bool) (address string, answer, closeServer func()) {
	c := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if headers {
			must(http.NewResponseController(w).Flush())
		}
		<-c
	}))
	return server.URL, func() { close(c) }, server.Close
}

func waitHTTP() (wait, wake func()) {
	address, answer, closeServer := slowServer(false)
	client := &http.Client{Transport: new(http.Transport)}
	ended := make(chan struct{})
	return func() {
			must(check(client.Get(address)).Body.Close()) //nolint:noctx,bodyclose // uncommon, but harmless; the body is closed
			close(ended)
		}, func() {
			answer()
			<-ended
			closeServer()
		}
}

func waitHTTPBody() (wait, wake func()) {
	address, answer, closeServer := slowServer(true)
	client := &http.Client{Transport: new(http.Transport)}
	response := check(client.Get(address)) //nolint:bodyclose,noctx // closed below
	ended := make(chan struct{})
	return func() {
			_, _ = io.ReadAll(response.Body)
			must(response.Body.Close())
			close(ended)
		}, func() {
			answer()
			<-ended
			closeServer()
		}
}

func waitSQLPool() (wait, wake func()) {
	none := func(context.Context) {}
	db := sql.OpenDB(&connector{sqlite: new(sqlite.Driver), exec: none, connect: none})
	db.SetMaxOpenConns(1)
	only := check(db.Conn(context.Background()))
	ended := make(chan struct{})
	return func() {
			must(check(db.Conn(context.Background())).Close())
			close(ended)
		}, func() {
			must(only.Close())
			<-ended
			must(db.Close())
		}
}

func waitRedis() (wait, wake func()) {
	server := check(miniredis.Run())
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	ended := make(chan struct{})
	return func() {
			check(client.BLPop(context.Background(), 0, "list").Result())
			close(ended)
		}, func() {
			check(server.Lpush("list", "value"))
			<-ended
			must(client.Close())
			server.Close()
		}
}

func waitGRPC() (wait, wake func()) {
	c, ended := make(chan struct{}), make(chan struct{})
	listener := listen()
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		receive(stream)
		<-c
		return stream.SendMsg(new(emptypb.Empty))
	}))
	go func() { _ = server.Serve(listener) }()
	conn := check(grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	return func() {
			must(conn.Invoke(context.Background(), "/scoreboard/Unary", new(emptypb.Empty), new(emptypb.Empty)))
			close(ended)
		}, func() {
			close(c)
			<-ended
			must(conn.Close())
			server.Stop()
		}
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

func waitInChild(r *run, parent context.Context) {
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
}

func waitAttached(r *run) {
	var (
		ctx  context.Context
		span trace.Span
	)
	r.apart(func() { ctx, span = r.root("request") })
	attachment := spanctx.Attach(ctx)
	r.waitIn(ctx, func() { time.Sleep(waitTime) })
	r.in(ctx)
	attachment.Detach()
	r.out()
	span.End()
}

// inheriting starts a span and runs f on a goroutine that inherits it.
func (r *run) inheriting(f func(ctx context.Context)) {
	ctx, span := r.root("root")
	inside(onGoroutine, func() { f(ctx) })
	r.in(ctx)
	span.End()
}

// groups runs f on each of three goroutines of an errgroup, which inherit a span.
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

func inheritedGo(r *run, ctx context.Context) {
	inside(func(f func()) { spanctx.Go(ctx, func(context.Context) { f() }) }, func() {
		pprof.Do(ctx, userLabel, r.in)
		r.in(ctx)
	})
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
