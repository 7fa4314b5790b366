// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/otelctx/otelctx/spanctx"
)

// goroutinePatterns lists patterns with goroutines that start in spans, outlive them, or work
// for spans of other goroutines.
var goroutinePatterns = []pattern{
	{called: "startedInside", steps: "+a >2 2=a 2_ 2=a =a -a", about: "on a goroutine that the span's goroutine has started"},
	{called: "startedInsideChild", steps: "+p +c<p >2 2=c -c 2=p 2_ 2=p -p", about: "a goroutine started in a child, after the child and before the parent has ended"},
	{called: "outlives", steps: "+a >2 -a 2= 2_ 2=", about: "a goroutine that outlives the span it was started in"},
	{called: "outlivesOwnSpan", steps: "+a >2 2+b<a -a 2=b 2_ 2=b 2-b 2=", about: "a background goroutine's own span, after the request's span has ended, and after it"},
	{inRoot: errGroup, about: "in the functions of an errgroup, and after Wait"},
	{run: errGroupLimit, about: "the same with SetLimit and a child span in each"},
	{inRoot: singleflightDo, about: "in the function of singleflight.Do, of its caller"},
	{run: singleflightShared, about: "after singleflight.Do with the result of another caller"},
	{inRoot: singleflightDoChan, about: "in the function of DoChan, started in the first caller's span"},
	{run: singleflightOutlives, about: "the same, after the first caller's span has ended"},
	{run: weightedSemaphore, about: "after semaphore.Acquire had to wait for another goroutine"},
	{run: syncPool, about: "in New of a sync.Pool, called in the span"},
	{run: syncCond, about: "after sync.Cond.Wait"},
	{inRoot: afterFunc, about: "in the function of time.AfterFunc: timers start goroutines outside of all spans"},
	{inRoot: afterFuncAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`"},
	{inRoot: contextAfterFunc, about: "in the function of context.AfterFunc, started by a cancel in a span"},
	{run: contextAfterFuncDeadline, about: "the same, started by a deadline"},
	{inRoot: contextAfterFuncAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`"},
	{inRoot: tickerInside, about: "a ticker loop started in a span, while that lives"},
	{run: tickerOutlives, about: "the same, after the span has ended"},
	{inRoot: tickerDetached, about: "the same while the span lives, with `spanctx.Attach(context.Background())`"},
	{inRoot: iterPull, about: "in an iter.Pull sequence that was made in the span"},
	{run: iterPullOutlives, about: "the same, resumed after the span has ended"},
	{inRoot: iterPullChild, about: "in the consumer's child span between two calls of next"},
	{called: "poolEarly", steps: "+a 2= 2_ 2= -a +b 2= 2_ 2= -b", about: "a pool started outside of all spans, with jobs of spans"},
	{called: "poolEarlyAttach", steps: "+a 2@a 2=a 2_ 2=a 2! 2= -a +b 2@b 2=b 2_ 2=b 2! 2= -b", about: "the same with `defer spanctx.Attach(ctx).Detach()`: in jobs and between them"},
	{called: "poolEarlyOwnSpans", steps: "+a 2+x<a 2=x 2_ 2=x 2-x 2= -a +b 2+y<b 2=y 2_ 2=y 2-y 2= -b", about: "the same pool, with a span of its own for each job: in jobs and between them"},
	{called: "poolLate", steps: "+first >2 2_ -first +a 2= 2_ 2= -a +b 2= 2_ 2= -b", about: "a pool started by the first job, in later jobs"},
	{called: "poolLateAttach", steps: "+first >2 -first +a 2@a 2=a 2_ 2=a 2! 2= -a +b 2@b 2=b 2_ 2=b 2! 2= -b", about: "the same with `defer spanctx.Attach(ctx).Detach()`: in jobs and between them"},
	{called: "poolLateLive", steps: "+first >2 3+a 2@a 2=a 2_ 2=a 2! 2=first 3-a 4+b 2@b 2=b 2_ 2=b 2! 2=first 4-b -first", about: "a pool started in a span that still lives, with jobs of other spans, Attach in each"},
	{called: "poolInside", steps: "+a >2 2=a 2=a 2=a -a", about: "a pool started in each span for its own work"},
	{called: "goFunction", steps: "+a 2>3<a 3=a 3_ 3=a -a", about: "spanctx.Go with the context of a span, from outside of it"},
	{called: "goBackground", steps: "+a >2< 2= 2_ 2= =a -a", about: "spanctx.Go with a context that has no span, from inside of one"},
	{run: lockedThread, about: "on a locked thread, in the span and after it"},
	{run: blockingSyscall, about: "after reads from a pipe"},
	{run: channels, about: "in the span, after a hand-over through channels to goroutines of other spans"},
	{run: cleanup, about: "in a runtime.AddCleanup function, after the span that the object was made in"},
	{called: "attachNested", steps: "+a 2+b 3@a 3=a 3@b 3=b 3_ 3=b 3! 3=a 3! 3= 2-b -a", about: "Attach within Attach, of two spans: in each and after each"},
	{called: "attachEndedMeanwhile", steps: "+own 2+a @a =a 3-a = ! =own -own", about: "after the attached root has ended elsewhere: nothing before Detach, the own span after it"},
	{called: "attachOver", steps: "+a -a +own @a = ! =own -own", about: "Attach of a span that is over, inside a live one"},
	{called: "attachBackground", steps: "+a @ = _ = ! =a -a", about: "Attach(context.Background()) inside a span, and after Detach"},
	{inRoot: attachRemote, about: "Attach of a remote span, inside a live one"},
	{called: "attachChild", steps: "+p 2@p 2+c<p 2=c 2_ 2=c 2-c 2=p 2! 2= -p", about: "a child started in an attached span: in it and after it"},
	{run: smallRing, about: "256 requests at a time, with 64 thread slots", env: "OTELCTX_SPAN_SLOT_CAPACITY=64", alone: true},
	{run: tinyRing, about: "16 requests at a time, with 4 thread slots, which threads share", env: "OTELCTX_SPAN_SLOT_CAPACITY=4", alone: true},
}

func errGroup(r *run, ctx context.Context) {
	group, _ := errgroup.WithContext(ctx)
	for range 3 {
		group.Go(func() error {
			r.stayIn(ctx)
			return nil
		})
	}
	must(group.Wait())
	r.in(ctx)
}

func errGroupLimit(r *run) {
	ctx, span := r.root("root")
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for range 4 {
		group.Go(func() error {
			child, span := r.start(ctx, "child")
			r.in(child)
			span.End()
			block()
			r.in(ctx)
			return nil
		})
	}
	must(group.Wait())
	r.in(ctx)
	span.End()
}

func singleflightDo(r *run, ctx context.Context) {
	var group singleflight.Group
	_, err, _ := group.Do("key", func() (any, error) {
		r.stayIn(ctx)
		return struct{}{}, nil
	})
	must(err)
	r.in(ctx)
}

func singleflightShared(r *run) {
	var (
		flight singleflight.Group
		all    sync.WaitGroup
	)
	for range 3 {
		all.Go(func() {
			ctx, span := r.root("root")
			_, err, _ := flight.Do("key", func() (any, error) {
				block()
				return struct{}{}, nil
			})
			must(err)
			r.in(ctx)
			span.End()
		})
	}
	all.Wait()
}

func singleflightDoChan(r *run, ctx context.Context) {
	var group singleflight.Group
	<-group.DoChan("key", func() (any, error) {
		r.stayIn(ctx)
		return struct{}{}, nil
	})
	r.in(ctx)
}

func singleflightOutlives(r *run) {
	var group singleflight.Group
	_, span := r.root("root")
	ended := make(chan struct{})
	done := group.DoChan("key", func() (any, error) {
		<-ended
		r.stayOut()
		return struct{}{}, nil
	})
	span.End()
	close(ended)
	<-done
}

func weightedSemaphore(r *run) {
	weights := semaphore.NewWeighted(1)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			ctx, span := r.root("root")
			must(weights.Acquire(ctx, 1))
			r.in(ctx)
			weights.Release(1)
			r.in(ctx)
			span.End()
		})
	}
	group.Wait()
}

func syncPool(r *run) {
	var ctx context.Context
	pool := sync.Pool{New: func() any {
		r.in(ctx)
		return new([64]byte)
	}}
	for range 3 {
		inner, span := r.root("root")
		ctx = inner
		got := pool.Get()
		r.in(ctx)
		pool.Put(got)
		span.End()
	}
}

func syncCond(r *run) {
	var (
		mu    sync.Mutex
		ready bool
		group sync.WaitGroup
	)
	cond := sync.NewCond(&mu)
	for range 2 {
		group.Go(func() {
			ctx, span := r.root("waiting")
			mu.Lock()
			for !ready {
				cond.Wait()
			}
			mu.Unlock()
			r.in(ctx)
			span.End()
		})
	}
	ctx, span := r.root("waking")
	block()
	mu.Lock()
	ready = true
	cond.Broadcast()
	mu.Unlock()
	r.in(ctx)
	span.End()
	group.Wait()
}

func afterFunc(r *run, _ context.Context) {
	done := make(chan struct{})
	time.AfterFunc(50*time.Microsecond, func() {
		defer close(done)
		r.stayOut()
	})
	<-done
}

func afterFuncAttach(r *run, ctx context.Context) {
	done := make(chan struct{})
	time.AfterFunc(50*time.Microsecond, func() {
		defer close(done)
		defer spanctx.Attach(ctx).Detach()
		r.stayIn(ctx)
	})
	<-done
}

func contextAfterFunc(r *run, ctx context.Context) {
	request, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	context.AfterFunc(request, func() {
		defer close(done)
		r.stayIn(ctx)
	})
	cancel()
	<-done
}

func contextAfterFuncDeadline(r *run) {
	ctx, span := r.root("root")
	request, cancel := context.WithTimeout(ctx, 50*time.Microsecond)
	defer cancel()
	done, byTimer := make(chan struct{}), make(chan bool, 1)
	context.AfterFunc(request, func() {
		defer close(done)
		if <-byTimer {
			r.stayOut()
		}
	})
	// If the context has already ended, this goroutine rather than the timer may have started the
	// function. The function then inherits the span.
	byTimer <- request.Err() == nil
	<-done
	span.End()
}

func contextAfterFuncAttach(r *run, ctx context.Context) {
	request, cancel := context.WithTimeout(ctx, 50*time.Microsecond)
	defer cancel()
	done := make(chan struct{})
	context.AfterFunc(request, func() {
		defer close(done)
		defer spanctx.Attach(ctx).Detach()
		r.stayIn(ctx)
	})
	<-done
}

// ticking calls work at each of three ticks.
func ticking(work func()) {
	ticker := time.NewTicker(100 * time.Microsecond)
	defer ticker.Stop()
	for range 3 {
		<-ticker.C
		work()
	}
}

func tickerInside(r *run, ctx context.Context) {
	w := newWorker()
	w.do(func() { ticking(func() { r.in(ctx) }) })
	close(w)
}

func tickerOutlives(r *run) {
	var w worker
	r.inSpanThatEnds(func() { w = newWorker() })
	w.do(func() { ticking(r.out) })
	close(w)
}

func tickerDetached(r *run, _ context.Context) {
	w := newWorker()
	w.do(func() {
		spanctx.Attach(context.Background())
		ticking(r.out)
	})
	close(w)
}

func iterPull(r *run, ctx context.Context) {
	next, stop := iter.Pull(sequence(func() { r.in(ctx) }))
	for range 3 {
		next()
		block()
	}
	stop()
}

// sequence returns an iterator that calls work before it yields each value.
func sequence(work func()) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; ; i++ {
			work()
			if !yield(i) {
				return
			}
		}
	}
}

func iterPullOutlives(r *run) {
	_, span := r.root("root")
	next, stop := iter.Pull(sequence(r.out))
	span.End()
	for range 3 {
		next()
		block()
	}
	stop()
}

func iterPullChild(r *run, parent context.Context) {
	next, stop := iter.Pull(sequence(func() {}))
	ctx, child := r.start(parent, "child")
	for range 3 {
		next()
		r.in(ctx)
	}
	child.End()
	next()
	r.in(parent)
	stop()
}

func lockedThread(r *run) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, span := r.root("root")
	r.stayIn(ctx)
	span.End()
	r.stayOut()
}

func blockingSyscall(r *run) {
	reader, writer, err := os.Pipe()
	must(err)
	ctx, span := r.root("root")
	for range 3 {
		go func() {
			block()
			_, _ = writer.Write([]byte{0})
		}()
		check(io.ReadFull(reader, make([]byte, 1)))
		r.in(ctx)
	}
	span.End()
	must(errors.Join(reader.Close(), writer.Close()))
}

func channels(r *run) {
	var group sync.WaitGroup
	ping, pong := make(chan struct{}), make(chan struct{})
	const rounds = 3
	group.Go(func() {
		ctx, span := r.root("ping")
		for range rounds {
			ping <- struct{}{}
			r.in(ctx)
			<-pong
		}
		span.End()
	})
	group.Go(func() {
		ctx, span := r.root("pong")
		for range rounds {
			<-ping
			r.in(ctx)
			pong <- struct{}{}
		}
		span.End()
	})
	group.Wait()
}

func cleanup(r *run) {
	_, span := r.root("root")
	done := make(chan struct{})
	func() {
		object := new([1024]byte)
		runtime.AddCleanup(object, func(struct{}) {
			defer close(done)
			for range 8 {
				r.out()
			}
		}, struct{}{})
		runtime.KeepAlive(object)
	}()
	span.End()
	for {
		runtime.GC()
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func attachRemote(r *run, own context.Context) {
	ctx := remote()
	attachment := spanctx.Attach(ctx)
	r.as(ctx)
	attachment.Detach()
	r.in(own)
}

// crowd runs many requests at the same time, each on its own goroutine.
func (r *run) crowd(requests int) {
	var group sync.WaitGroup
	for range requests {
		group.Go(r.own)
	}
	group.Wait()
}

func smallRing(r *run) { r.crowd(256) }
func tinyRing(r *run)  { r.crowd(16) }
