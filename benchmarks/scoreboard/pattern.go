// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
)

// pattern is a way in which services use spans, goroutines and libraries.
type pattern struct {
	// run runs the pattern once, which must not take long.
	run func(*run)
	// inRoot is an alternative to run. It is called in a root span, which ends when it returns.
	inRoot func(r *run, root context.Context)
	// steps is another alternative: a program for run.steps.
	steps string
	// called is the pattern's name. The default is the name of the function.
	called string
	// about briefly says what happens, and where the work is done.
	about string
	// alone says that the pattern needs its own process, because it changes the process permanently.
	alone bool
	// env is an environment variable, KEY=value, that the process starts with. It requires alone.
	env string
	// single says that only one repetition may run at a time.
	single bool
	// waits lists the kinds of wait that an observer may report for the pattern's goroutines, separated
	// by commas.
	waits string
}

func (p pattern) name() string {
	if p.called != "" {
		return p.called
	}
	function := reflect.ValueOf(p.run)
	if p.inRoot != nil {
		function = reflect.ValueOf(p.inRoot)
	}
	name := runtime.FuncForPC(function.Pointer()).Name()
	return name[strings.LastIndexByte(name, '.')+1:]
}

func (p pattern) once(r *run) {
	switch {
	case p.run != nil:
		p.run(r)
	case p.inRoot != nil:
		ctx, span := r.root("root")
		p.inRoot(r, ctx)
		span.End()
	default:
		r.steps(p.steps)
	}
}

// run is a running pattern. Its methods are what patterns are made of.
type run struct {
	*service

	pattern  string
	expected *expected
	// burned counts pieces of work. The other counters count them by due.kind.
	burned                                atomic.Int64
	shownCount, nothingCount, eitherCount atomic.Int64
}

// in works, and expects that the span of ctx is published. Like the methods below, it works by calling
// [stacknumber.Burn].
func (r *run) in(ctx context.Context) {
	r.needSpan(ctx)
	r.burn(due{Spans: [2]id{spanOf(ctx)}})
}

// out works, and expects that no span is published.
func (r *run) out() { r.burn(due{}) }

// as calls in if ctx has a local, recording span, and out otherwise.
func (r *run) as(ctx context.Context) {
	if trace.SpanFromContext(ctx).IsRecording() {
		r.in(ctx)
	} else {
		r.out()
	}
}

// stayIn works before and after a blocking call, and expects that the span of ctx is published each time. The
// goroutine may be on another thread after the call.
func (r *run) stayIn(ctx context.Context) { twice(func() { r.in(ctx) }) }

// stayOut is like stayIn, but expects that no span is published.
func (r *run) stayOut() { twice(r.out) }

// stayInNew starts a span, stays in it, and ends it.
func (r *run) stayInNew(tracer trace.Tracer, parent context.Context, opts ...trace.SpanStartOption) {
	ctx, span := tracer.Start(parent, "new", opts...)
	r.stayIn(ctx)
	span.End()
}

// twice calls work before and after a blocking call.
func twice(work func()) {
	work()
	block()
	work()
}

// either works, and expects that the span of ctx or none is published.
func (r *run) either(ctx context.Context) {
	r.needSpan(ctx)
	r.burn(due{Spans: [2]id{spanOf(ctx)}, Nothing: true})
}

// oneOf works, and expects that one of two spans is published.
func (r *run) oneOf(a, b trace.SpanContext) {
	r.burn(due{Spans: [2]id{idOf(a), idOf(b)}})
}

// waitIn is like in, but then calls wait with the number still on the stack. It expects the span of
// ctx during that call, too.
func (r *run) waitIn(ctx context.Context, wait func()) {
	r.needSpan(ctx)
	r.burnAndWait(due{Spans: [2]id{spanOf(ctx)}}, wait)
}

func (r *run) needSpan(ctx context.Context) {
	if span := trace.SpanFromContext(ctx); !span.IsRecording() || span.SpanContext().IsRemote() {
		panic(r.pattern + ": no span is active in the context")
	}
}

func spanOf(ctx context.Context) id { return idOf(trace.SpanContextFromContext(ctx)) }

func (r *run) burn(t due) { r.burnAndWait(t, nil) }

func (r *run) burnAndWait(t due, wait func()) {
	t.Pattern = r.pattern
	r.burned.Add(1)
	switch t.kind() {
	case "shown":
		r.shownCount.Add(1)
	case "nothing":
		r.nothingCount.Add(1)
	default:
		r.eitherCount.Add(1)
	}
	stacknumber.Burn(r.expected.number(t), wait)
}

// says lists the values of due.kind that have occurred.
func (r *run) says() string {
	var says []string
	for _, s := range []struct {
		name  string
		count *atomic.Int64
	}{{"shown", &r.shownCount}, {"nothing", &r.nothingCount}, {"either", &r.eitherCount}} {
		if s.count.Load() > 0 {
			says = append(says, s.name)
		}
	}
	return strings.Join(says, ", ")
}

// block blocks for a moment, so that other goroutines use the thread.
func block() { time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond) }

func (r *run) start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	return r.tracer.Start(ctx, name, opts...)
}

// root starts a span without a parent.
func (r *run) root(name string) (context.Context, trace.Span) {
	return r.start(context.Background(), name)
}

// worker is a goroutine that runs the functions sent to it.
type worker chan func()

func (w worker) loop() {
	for f := range w {
		f()
	}
}

// do runs f on the worker's goroutine and waits for it.
func (w worker) do(f func()) {
	done := make(chan struct{})
	w <- func() {
		defer close(done)
		f()
	}
	<-done
}

// newWorker starts a worker on a goroutine that inherits the caller's span.
func newWorker() worker {
	w := make(worker)
	go w.loop()
	return w
}

// own works before, in and after a root span of its own.
func (r *run) own() {
	r.out()
	r.stayInNew(r.tracer, context.Background())
	r.out()
}

// inSpanThatEnds calls f in a span and then ends the span. What f has started, such as goroutines,
// outlives the span.
func (r *run) inSpanThatEnds(f func()) {
	_, span := r.root("ended")
	f()
	span.End()
}

// job calls use in a root span, stays in the span, and works again when it has ended.
func (r *run) job(use func(ctx context.Context)) {
	ctx, span := r.root("job")
	use(ctx)
	r.stayIn(ctx)
	span.End()
	r.out()
}

// elsewhere runs f on a goroutine that was started outside of all spans, and waits for it.
func (r *run) elsewhere(f func()) { r.outside.do(f) }

// apart is like elsewhere, but runs f on a new goroutine, so that a span or labels that f leaves on
// the goroutine do not affect later work.
func (r *run) apart(f func()) {
	var w worker
	r.elsewhere(func() { w = newWorker() })
	w.do(f)
	close(w)
}

// must panics if there is an error, because the results of a broken pattern are meaningless.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// check returns the value of a call, and panics if the call failed.
func check[T any](value T, err error) T {
	must(err)
	return value
}
