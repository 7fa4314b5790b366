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
)

// pattern is a way in which services use spans, goroutines and libraries.
type pattern struct {
	// run is one short repetition.
	run func(*run)
	// called is the pattern's name. If it is empty, the pattern has the name of its function.
	called string
	// about says in a few words what happens and when the work is done.
	about string
	// alone says that the pattern needs a process of its own, because it changes the
	// process for good.
	alone bool
	// env is an environment variable, KEY=value, that the process needs from its start.
	// A pattern with one is alone.
	env string
	// single says that only one repetition may run at a time.
	single bool
}

// name returns the pattern's name.
func (p pattern) name() string {
	if p.called != "" {
		return p.called
	}
	name := runtime.FuncForPC(reflect.ValueOf(p.run).Pointer()).Name()
	return name[strings.LastIndexByte(name, '.')+1:]
}

// run is a pattern that runs.
type run struct {
	*service

	pattern string
	truths  *truths
	// burned counts calls of burn.
	burned atomic.Int64
	// kinds counts them by what the contract says.
	shownCount, nothingCount, eitherCount atomic.Int64
}

// in works where the contract says that the span of ctx is shown.
func (r *run) in(ctx context.Context) {
	r.needSpan(ctx)
	r.burn(truth{spans: [2]id{spanOf(ctx)}})
}

// out works where the contract says that nothing is shown.
func (r *run) out() { r.burn(truth{}) }

// as works where the contract says that what ctx says is shown: its span, if that is a
// local and recording one, or nothing.
func (r *run) as(ctx context.Context) {
	if trace.SpanFromContext(ctx).IsRecording() {
		r.in(ctx)
	} else {
		r.out()
	}
}

// either works where the contract leaves open whether the span of ctx is shown, or
// nothing.
func (r *run) either(ctx context.Context) {
	r.needSpan(ctx)
	r.burn(truth{spans: [2]id{spanOf(ctx)}, nothing: true})
}

// oneOf works where the contract leaves open which one of two spans is shown.
func (r *run) oneOf(a, b trace.SpanContext) {
	r.burn(truth{spans: [2]id{idOf(a), idOf(b)}})
}

// waitIn works where the contract says that the span of ctx is shown, and then waits there:
// the stack that spells the truth stays while wait runs. The name of the function that
// calls the runtime or another package must begin with "wait".
func (r *run) waitIn(ctx context.Context, wait func()) {
	r.needSpan(ctx)
	r.burnAndWait(truth{spans: [2]id{spanOf(ctx)}}, wait)
}

func (r *run) needSpan(ctx context.Context) {
	if span := trace.SpanFromContext(ctx); !span.IsRecording() || span.SpanContext().IsRemote() {
		panic(r.pattern + ": no span is active in the context")
	}
}

func spanOf(ctx context.Context) id { return idOf(trace.SpanContextFromContext(ctx)) }

func (r *run) burn(t truth) { r.burnAndWait(t, nil) }

func (r *run) burnAndWait(t truth, wait func()) {
	t.pattern = r.pattern
	r.burned.Add(1)
	switch t.kind() {
	case "shown":
		r.shownCount.Add(1)
	case "nothing":
		r.nothingCount.Add(1)
	default:
		r.eitherCount.Add(1)
	}
	burn(r.truths.number(t), wait)
}

// says is what the contract says of the pattern.
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

// block gives the thread to other goroutines.
func block() { time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond) }

// start starts a span.
func (r *run) start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	return r.tracer.Start(ctx, name, opts...)
}

// root starts a span without a parent.
func (r *run) root(name string) (context.Context, trace.Span) {
	return r.start(context.Background(), name)
}

// elsewhere runs f on another goroutine that was started outside of all spans, and waits
// for it.
func (r *run) elsewhere(f func()) {
	done := make(chan struct{})
	r.orders <- func() {
		defer close(done)
		f()
	}
	<-done
}

// apart runs f on a new goroutine that was started outside of all spans, and waits for it.
// It keeps what f leaves on its goroutine away from others.
func (r *run) apart(f func()) {
	done := make(chan struct{})
	r.elsewhere(func() {
		go func() {
			defer close(done)
			f()
		}()
	})
	<-done
}

// must panics with an error: a pattern that does not work measures nothing.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// check is must for a call that returns a value.
func check[T any](value T, err error) T {
	must(err)
	return value
}
