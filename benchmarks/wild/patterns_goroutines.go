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
	{run: startedInside, about: "on a goroutine that the span's goroutine has started"},
	{run: startedInsideChild, about: "a goroutine started in a child, after the child and before the parent has ended"},
	{run: outlives, about: "a goroutine that outlives the span it was started in"},
	{run: outlivesOwnSpan, about: "a background goroutine's own span, after the request's span has ended, and after it"},
	{run: errGroup, about: "in the functions of an errgroup, and after Wait"},
	{run: errGroupLimit, about: "the same with SetLimit and a child span in each"},
	{run: singleflightDo, about: "in the function of singleflight.Do, of its caller"},
	{run: singleflightShared, about: "after singleflight.Do with the result of another caller"},
	{run: singleflightDoChan, about: "in the function of DoChan, started in the first caller's span"},
	{run: singleflightOutlives, about: "the same, after the first caller's span has ended"},
	{run: weightedSemaphore, about: "after semaphore.Acquire had to wait for another goroutine"},
	{run: syncPool, about: "in New of a sync.Pool, called in the span"},
	{run: syncCond, about: "after sync.Cond.Wait"},
	{run: afterFunc, about: "in the function of time.AfterFunc: timers start goroutines outside of all spans"},
	{run: afterFuncAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`"},
	{run: contextAfterFunc, about: "in the function of context.AfterFunc, started by a cancel in a span"},
	{run: contextAfterFuncDeadline, about: "the same, started by a deadline"},
	{run: contextAfterFuncAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`"},
	{run: tickerInside, about: "a ticker loop started in a span, while that lives"},
	{run: tickerOutlives, about: "the same, after the span has ended"},
	{run: tickerDetached, about: "the same while the span lives, with `spanctx.Attach(context.Background())`"},
	{run: iterPull, about: "in an iter.Pull sequence that was made in the span"},
	{run: iterPullOutlives, about: "the same, resumed after the span has ended"},
	{run: iterPullChild, about: "in the consumer's child span between two calls of next"},
	{run: poolEarly, about: "a pool started outside of all spans, with jobs of spans"},
	{run: poolEarlyAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`: in jobs and between them"},
	{run: poolEarlyOwnSpans, about: "the same pool, with a span of its own for each job: in jobs and between them"},
	{run: poolLate, about: "a pool started by the first job, in later jobs"},
	{run: poolLateAttach, about: "the same with `defer spanctx.Attach(ctx).Detach()`: in jobs and between them"},
	{run: poolLateLive, about: "a pool started in a span that still lives, with jobs of other spans, Attach in each"},
	{run: poolInside, about: "a pool started in each span for its own work"},
	{run: goFunction, about: "spanctx.Go with the context of a span, from outside of it"},
	{run: goBackground, about: "spanctx.Go with a context that has no span, from inside of one"},
	{run: lockedThread, about: "on a locked thread, in the span and after it"},
	{run: blockingSyscall, about: "after reads from a pipe"},
	{run: channels, about: "in the span, after a hand-over through channels to goroutines of other spans"},
	{run: cleanup, about: "in a runtime.AddCleanup function, after the span that the object was made in"},
	{run: attachNested, about: "Attach within Attach, of two spans: in each and after each"},
	{run: attachEndedMeanwhile, about: "after the attached root has ended elsewhere: nothing before Detach, the own span after it"},
	{run: attachOver, about: "Attach of a span that is over, inside a live one"},
	{run: attachBackground, about: "Attach(context.Background()) inside a span, and after Detach"},
	{run: attachRemote, about: "Attach of a remote span, inside a live one"},
	{run: attachChild, about: "a child started in an attached span: in it and after it"},
	{run: smallRing, about: "256 requests at a time, with 64 thread slots", env: "OTELCTX_SPAN_SLOT_CAPACITY=64", alone: true},
	{run: tinyRing, about: "16 requests at a time, with 4 thread slots, which threads share", env: "OTELCTX_SPAN_SLOT_CAPACITY=4", alone: true},
}

func startedInside(r *run) {
	ctx, span := r.root("root")
	var group sync.WaitGroup
	group.Go(func() {
		r.in(ctx)
		block()
		r.in(ctx)
	})
	r.in(ctx)
	group.Wait()
	span.End()
}

func startedInsideChild(r *run) {
	parent, root := r.root("parent")
	ctx, child := r.start(parent, "child")
	var group sync.WaitGroup
	ended := make(chan struct{})
	inChild := make(chan struct{})
	group.Go(func() {
		r.in(ctx)
		close(inChild)
		<-ended
		r.in(parent)
		block()
		r.in(parent)
	})
	<-inChild
	child.End()
	close(ended)
	group.Wait()
	root.End()
}

func outlives(r *run) {
	_, span := r.root("root")
	var group sync.WaitGroup
	ended := make(chan struct{})
	group.Go(func() {
		<-ended
		r.out()
		block()
		r.out()
	})
	span.End()
	close(ended)
	group.Wait()
}

func outlivesOwnSpan(r *run) {
	request, span := r.root("request")
	var group sync.WaitGroup
	ended, begun := make(chan struct{}), make(chan struct{})
	group.Go(func() {
		ctx, own := r.start(request, "background")
		close(begun)
		<-ended
		r.in(ctx)
		block()
		r.in(ctx)
		own.End()
		r.out()
	})
	<-begun
	span.End()
	close(ended)
	group.Wait()
}

func errGroup(r *run) {
	ctx, span := r.root("root")
	group, _ := errgroup.WithContext(ctx)
	for range 3 {
		group.Go(func() error {
			r.in(ctx)
			block()
			r.in(ctx)
			return nil
		})
	}
	must(group.Wait())
	r.in(ctx)
	span.End()
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

func singleflightDo(r *run) {
	var group singleflight.Group
	ctx, span := r.root("root")
	_, err, _ := group.Do("key", func() (any, error) {
		r.in(ctx)
		block()
		r.in(ctx)
		return struct{}{}, nil
	})
	must(err)
	r.in(ctx)
	span.End()
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

func singleflightDoChan(r *run) {
	var group singleflight.Group
	ctx, span := r.root("root")
	<-group.DoChan("key", func() (any, error) {
		r.in(ctx)
		block()
		r.in(ctx)
		return struct{}{}, nil
	})
	r.in(ctx)
	span.End()
}

func singleflightOutlives(r *run) {
	var group singleflight.Group
	_, span := r.root("root")
	ended := make(chan struct{})
	done := group.DoChan("key", func() (any, error) {
		<-ended
		r.out()
		block()
		r.out()
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

func afterFunc(r *run) {
	_, span := r.root("root")
	done := make(chan struct{})
	time.AfterFunc(50*time.Microsecond, func() {
		defer close(done)
		r.out()
		block()
		r.out()
	})
	<-done
	span.End()
}

func afterFuncAttach(r *run) {
	ctx, span := r.root("root")
	done := make(chan struct{})
	time.AfterFunc(50*time.Microsecond, func() {
		defer close(done)
		defer spanctx.Attach(ctx).Detach()
		r.in(ctx)
		block()
		r.in(ctx)
	})
	<-done
	span.End()
}

func contextAfterFunc(r *run) {
	request, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	ctx, span := r.root("canceller")
	context.AfterFunc(request, func() {
		defer close(done)
		r.in(ctx)
		block()
		r.in(ctx)
	})
	cancel()
	<-done
	span.End()
}

func contextAfterFuncDeadline(r *run) {
	ctx, span := r.root("root")
	request, cancel := context.WithTimeout(ctx, 50*time.Microsecond)
	defer cancel()
	done, byTimer := make(chan struct{}), make(chan bool, 1)
	context.AfterFunc(request, func() {
		defer close(done)
		if <-byTimer {
			r.out()
			block()
			r.out()
		}
	})
	// If the context has already ended, this goroutine rather than the timer may have started the
	// function. The function then inherits the span.
	byTimer <- request.Err() == nil
	<-done
	span.End()
}

func contextAfterFuncAttach(r *run) {
	ctx, span := r.root("root")
	request, cancel := context.WithTimeout(ctx, 50*time.Microsecond)
	defer cancel()
	done := make(chan struct{})
	context.AfterFunc(request, func() {
		defer close(done)
		defer spanctx.Attach(ctx).Detach()
		r.in(ctx)
		block()
		r.in(ctx)
	})
	<-done
	span.End()
}

// ticking starts a goroutine that calls first, waits until begin is closed, and then calls work at
// each of three ticks. wait waits for the goroutine's end.
func ticking(first, work func(), begin <-chan struct{}) (wait func()) {
	var group sync.WaitGroup
	group.Go(func() {
		first()
		<-begin
		ticker := time.NewTicker(100 * time.Microsecond)
		defer ticker.Stop()
		for range 3 {
			<-ticker.C
			work()
		}
	})
	return group.Wait
}

func tickerInside(r *run) {
	ctx, span := r.root("root")
	begin := make(chan struct{})
	close(begin)
	wait := ticking(func() {}, func() { r.in(ctx) }, begin)
	wait()
	span.End()
}

func tickerOutlives(r *run) {
	_, span := r.root("root")
	begin := make(chan struct{})
	wait := ticking(func() {}, r.out, begin)
	span.End()
	close(begin)
	wait()
}

func tickerDetached(r *run) {
	_, span := r.root("root")
	begin := make(chan struct{})
	close(begin)
	wait := ticking(func() { spanctx.Attach(context.Background()) }, r.out, begin)
	wait()
	span.End()
}

func iterPull(r *run) {
	ctx, span := r.root("root")
	next, stop := iter.Pull(sequence(func() { r.in(ctx) }))
	for range 3 {
		next()
		block()
	}
	stop()
	span.End()
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

func iterPullChild(r *run) {
	parent, root := r.root("parent")
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
	root.End()
}

// jobs starts a pool of two workers.
func jobs() (do func(func()), stop func()) {
	queue := make(chan func())
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for job := range queue {
				job()
			}
		})
	}
	do = func(job func()) {
		done := make(chan struct{})
		queue <- func() {
			defer close(done)
			job()
		}
		<-done
	}
	return do, func() {
		close(queue)
		workers.Wait()
	}
}

func poolEarly(r *run) {
	do, stop := jobs()
	for range 3 {
		_, span := r.root("job")
		do(func() {
			r.out()
			block()
			r.out()
		})
		span.End()
	}
	stop()
}

func poolEarlyAttach(r *run) {
	do, stop := jobs()
	for range 3 {
		ctx, span := r.root("job")
		do(func() {
			func() {
				defer spanctx.Attach(ctx).Detach()
				r.in(ctx)
				block()
				r.in(ctx)
			}()
			r.out()
		})
		span.End()
	}
	stop()
}

func poolEarlyOwnSpans(r *run) {
	do, stop := jobs()
	for range 3 {
		job, span := r.root("job")
		do(func() {
			ctx, own := r.start(job, "work")
			r.in(ctx)
			block()
			r.in(ctx)
			own.End()
			r.out()
		})
		span.End()
	}
	stop()
}

func poolLate(r *run) {
	_, first := r.root("first")
	do, stop := jobs()
	do(block)
	first.End()
	for range 3 {
		_, span := r.root("job")
		do(func() {
			r.out()
			block()
			r.out()
		})
		span.End()
	}
	stop()
}

func poolLateAttach(r *run) {
	_, first := r.root("first")
	do, stop := jobs()
	first.End()
	for range 3 {
		ctx, span := r.root("job")
		do(func() {
			func() {
				defer spanctx.Attach(ctx).Detach()
				r.in(ctx)
				block()
				r.in(ctx)
			}()
			r.out()
		})
		span.End()
	}
	stop()
}

func poolLateLive(r *run) {
	first, long := r.root("first")
	do, stop := jobs()
	for range 3 {
		r.apart(func() {
			ctx, span := r.root("job")
			do(func() {
				attachment := spanctx.Attach(ctx)
				r.in(ctx)
				block()
				r.in(ctx)
				attachment.Detach()
				r.in(first)
			})
			span.End()
		})
	}
	stop()
	long.End()
}

func poolInside(r *run) {
	ctx, span := r.root("job")
	do, stop := jobs()
	for range 3 {
		do(func() { r.in(ctx) })
	}
	stop()
	span.End()
}

func goFunction(r *run) {
	ctx, span := r.root("root")
	r.apart(func() {
		done := make(chan struct{})
		spanctx.Go(ctx, func(ctx context.Context) {
			defer close(done)
			r.in(ctx)
			block()
			r.in(ctx)
		})
		<-done
	})
	span.End()
}

func goBackground(r *run) {
	ctx, span := r.root("root")
	done := make(chan struct{})
	spanctx.Go(context.Background(), func(context.Context) {
		defer close(done)
		r.out()
		block()
		r.out()
	})
	r.in(ctx)
	<-done
	span.End()
}

func lockedThread(r *run) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, span := r.root("root")
	r.in(ctx)
	block()
	r.in(ctx)
	span.End()
	r.out()
	block()
	r.out()
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

func attachNested(r *run) {
	a, spanA := r.root("a")
	r.apart(func() {
		b, spanB := r.root("b")
		r.apart(func() {
			outer := spanctx.Attach(a)
			r.in(a)
			inner := spanctx.Attach(b)
			r.in(b)
			block()
			r.in(b)
			inner.Detach()
			r.in(a)
			outer.Detach()
			r.out()
		})
		spanB.End()
	})
	spanA.End()
}

func attachEndedMeanwhile(r *run) {
	own, ownSpan := r.root("own")
	var (
		ctx context.Context
		end func()
	)
	r.apart(func() {
		c, span := r.root("attached")
		ctx, end = c, func() { span.End() }
	})
	attachment := spanctx.Attach(ctx)
	r.in(ctx)
	r.elsewhere(end)
	r.out() // The attached span has ended, and has no ancestors to fall back to.
	attachment.Detach()
	r.in(own)
	ownSpan.End()
}

func attachOver(r *run) {
	over, span := r.root("over")
	span.End()
	own, ownSpan := r.root("own")
	attachment := spanctx.Attach(over)
	r.as(over)
	attachment.Detach()
	r.in(own)
	ownSpan.End()
}

func attachBackground(r *run) {
	ctx, span := r.root("root")
	attachment := spanctx.Attach(context.Background())
	r.out()
	block()
	r.out()
	attachment.Detach()
	r.in(ctx)
	span.End()
}

func attachRemote(r *run) {
	own, span := r.root("own")
	ctx := remote()
	attachment := spanctx.Attach(ctx)
	r.as(ctx)
	attachment.Detach()
	r.in(own)
	span.End()
}

func attachChild(r *run) {
	parent, root := r.root("parent")
	r.apart(func() {
		attachment := spanctx.Attach(parent)
		ctx, child := r.start(parent, "child")
		r.in(ctx)
		block()
		r.in(ctx)
		child.End()
		r.in(parent)
		attachment.Detach()
		r.out()
	})
	root.End()
}

// crowd runs many requests at the same time, each on its own goroutine.
func (r *run) crowd(requests int) {
	var group sync.WaitGroup
	for range requests {
		group.Go(func() {
			r.out()
			ctx, span := r.root("request")
			r.in(ctx)
			block()
			r.in(ctx)
			span.End()
			r.out()
		})
	}
	group.Wait()
}

func smallRing(r *run) { r.crowd(256) }
func tinyRing(r *run)  { r.crowd(16) }
