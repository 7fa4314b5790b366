// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// churners maps the names of functions to the functions. Each runs on a goroutine of its own, in spans
// with the function's name.
var churners = map[string]func(depth int){"churnA": churnA, "churnB": churnB, "churnC": churnC, "churnD": churnD}

// churn runs the churners, while other goroutines start and exit and the garbage collector shrinks
// stacks. It returns when standard input is closed or has data.
func churn() {
	tracer := newTracer(nil)
	for name, f := range churners {
		go churnFor(tracer, name, f)
	}
	// Start goroutines that exit soon, so that new goroutines reuse their g and their stack.
	go func() {
		for {
			var done sync.WaitGroup
			for range 10 {
				done.Go(func() { churnOne(tracer, "churnShort", func(int) { churnShort() }) })
			}
			done.Wait()
		}
	}()
	// Collect garbage all the time, so that stacks shrink and move.
	go func() {
		for {
			runtime.GC()
		}
	}()
	fmt.Println("started")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func churnFor(tracer trace.Tracer, name string, f func(int)) {
	for {
		churnOne(tracer, name, f)
	}
}

// brief runs count goroutines that wait in one span of 1 to 10 ms after the other, and collects garbage
// every 5 ms. Each span has the name of the function that waits. brief returns when standard input is
// closed or has data.
func brief(count int) {
	tracer := newTracer(nil)
	for range count {
		go func() {
			for {
				briefA(tracer)
				briefB(tracer)
			}
		}()
	}
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			runtime.GC()
		}
	}()
	fmt.Println("started")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

//go:noinline
func briefA(tracer trace.Tracer) {
	_, span := tracer.Start(context.Background(), "briefA")
	defer span.End()
	time.Sleep(time.Millisecond + rand.N(9*time.Millisecond))
}

//go:noinline
func briefB(tracer trace.Tracer) {
	_, span := tracer.Start(context.Background(), "briefB")
	defer span.End()
	<-time.After(time.Millisecond + rand.N(9*time.Millisecond))
}

// churnOne calls f twenty times inside a span, each time with a random depth of recursion.
func churnOne(tracer trace.Tracer, name string, f func(int)) {
	_, span := tracer.Start(context.Background(), name)
	defer span.End()
	for range 20 {
		f(rand.IntN(40))
	}
}

// rest waits briefly, in one of several ways.
func rest() {
	switch rand.IntN(3) {
	case 0:
		time.Sleep(time.Microsecond)
	case 1:
		runtime.Gosched()
	default:
		c := make(chan int)
		go func() { c <- 1 }()
		<-c
	}
}

//go:noinline
func churnShort() { rest() }

//go:noinline
func churnA(depth int) {
	var b [200]byte
	use(b[:])
	if depth > 0 {
		churnA(depth - 1)
	} else {
		rest()
	}
	use(b[:])
}

//go:noinline
func churnB(depth int) {
	var b [400]byte
	use(b[:])
	if depth > 0 {
		churnB(depth - 1)
	} else {
		rest()
	}
	use(b[:])
}

//go:noinline
func churnC(depth int) {
	if depth > 0 {
		churnC(depth - 1)
		return
	}
	rest()
}

//go:noinline
func churnD(depth int) {
	var b [64]byte
	use(b[:])
	if depth > 0 {
		churnD(depth - 2)
	} else {
		rest()
	}
	use(b[:])
}
