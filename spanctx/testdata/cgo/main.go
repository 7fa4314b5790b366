// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command cgo publishes spans on goroutines that call C, and on threads that C has created. It
// reads orders from standard input, one per line, and answers most of them with the ids of the
// thread, the goroutine and the span.
package main

/*
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void inCallback(void);

// in_c is the id of the thread in wait_in_c, or 0.
static long in_c;
static int go_on;

static long entered_c(void) { return __atomic_load_n(&in_c, __ATOMIC_SEQ_CST); }
static void leave_c(int how) { __atomic_store_n(&go_on, how, __ATOMIC_SEQ_CST); }
static long thread_id(void) { return syscall(SYS_gettid); }

static int wait_in_c(int pause) {
	int how;
	__atomic_store_n(&in_c, thread_id(), __ATOMIC_SEQ_CST);
	while (!(how = __atomic_load_n(&go_on, __ATOMIC_SEQ_CST)))
		if (pause)
			usleep(pause);
	__atomic_store_n(&go_on, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&in_c, 0, __ATOMIC_SEQ_CST);
	return how;
}

static void spin_in_c(void) { wait_in_c(0); }
static void sleep_in_c(void) { wait_in_c(1000); }

// c_thread calls back into Go after each leave_c(1), and ends after leave_c(2).
static void *c_thread(void *arg) {
	while (wait_in_c(100) == 1)
		inCallback();
	return arg;
}

static pthread_t thread;
static int start_thread(void) { return pthread_create(&thread, 0, c_thread, 0); }
static int join_thread(void) { return pthread_join(thread, 0); }
*/
import "C"

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// actor is a goroutine that executes orders. It spins while it waits for the next one, so that
// readers find it on a thread.
type actor struct {
	orders, answers chan string
	ordered         atomic.Bool
	ctx             context.Context
	span            trace.Span
}

var (
	tracer trace.Tracer
	// called is the actor that executes orders in inCallback.
	called = newActor()
)

func newActor() *actor {
	return &actor{orders: make(chan string), answers: make(chan string), ctx: context.Background()}
}

func main() {
	var record, goroutines bool
	for _, arg := range os.Args[1:] {
		record, goroutines = record || arg == "record", goroutines || arg == "goroutines"
	}
	_, err := resourcepublisher.New(resource.Empty())
	must(err)
	labels := spanctx.LabelsOff
	if record {
		labels = spanctx.LabelsAuto
	}
	p, err := spanctx.New(spanctx.WithLabels(labels))
	must(errors.Join(err, p.Stats().Off))
	if !goroutines {
		advertise.HideGoroutineTable()
	}
	tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p)).Tracer("test")

	a := newActor()
	go a.act()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(direct(a, in.Text()))
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// direct gives an order to an actor and returns the answer.
func direct(a *actor, order string) string {
	switch order {
	case "spin in C", "sleep in C":
		_, who, _ := strings.Cut(a.tell(order), " ")
		return waitForC() + " " + who // the actor may have answered on a different thread
	case "leave C":
		C.leave_c(1)
		return <-a.answers
	case "C thread":
		if C.start_thread() != 0 {
			return "no thread"
		}
		return waitForC()
	case "call back":
		C.leave_c(1)
		return <-called.answers
	case "end C thread":
		C.leave_c(2)
		return fmt.Sprint(C.join_thread())
	}
	if order, ok := strings.CutPrefix(order, "called: "); ok {
		answer := called.tell(order)
		if order == "return" {
			return waitForC()
		}
		return answer
	}
	return a.tell(order)
}

// waitForC waits until a thread is in C and returns the thread's id.
func waitForC() string {
	for C.entered_c() == 0 {
		runtime.Gosched()
	}
	return fmt.Sprint(C.entered_c())
}

func (a *actor) tell(order string) string {
	a.ordered.Store(true)
	a.orders <- order
	return <-a.answers
}

func (a *actor) act() {
	for a.once(<-a.orders) {
		for !a.ordered.Load() {
		}
	}
}

// once executes one order. It returns false if the actor must stop.
func (a *actor) once(order string) bool {
	a.ordered.Store(false)
	switch order {
	case "lock":
		runtime.LockOSThread()
	case "start":
		a.ctx, a.span = tracer.Start(context.Background(), "span")
	case "refresh":
		spanctx.Refresh(a.ctx)
	case "end":
		a.span.End()
	case "spin in C":
		a.answers <- a.who()
		spanctx.Refresh(a.ctx)
		C.spin_in_c()
	case "sleep in C":
		a.answers <- a.who()
		spanctx.Refresh(a.ctx)
		C.sleep_in_c()
	case "return":
		a.answers <- a.who()
		return false
	}
	a.answers <- a.who()
	return true
}

// who returns the ids of the calling thread, the calling goroutine and the actor's span.
func (a *actor) who() string {
	var buf [64]byte
	goid := bytes.Fields(buf[:runtime.Stack(buf[:], false)])[1]
	span := trace.SpanID{}
	if a.span != nil {
		span = a.span.SpanContext().SpanID()
	}
	return fmt.Sprintf("%d %s %v", C.thread_id(), goid, span)
}

//export inCallback
func inCallback() {
	called.ordered.Store(false)
	called.answers <- called.who()
	called.act()
}
