// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spansteps runs test programs written in a small language, which [Run] describes. A program
// starts, ends and attaches spans on several goroutines, and states which span a goroutine must be in
// after a step.
//
// It is for tests only.
package spansteps

import (
	"context"
	"encoding/binary"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// Actor is a goroutine, locked to a thread, that runs the functions passed to [Actor.Run].
type Actor struct {
	do   chan func()
	done chan struct{}
	// attached holds a detach function for each span that the program has attached on the goroutine.
	attached []func()
}

// NewActor returns a new actor. It calls on with a function start, which starts the actor's goroutine.
// on must call start on the goroutine whose span the actor should inherit.
func NewActor(on func(start func())) *Actor {
	a := &Actor{do: make(chan func()), done: make(chan struct{})}
	on(func() { go a.loop() })
	return a
}

// InNothing is an argument for [NewActor]. It takes the calling goroutine out of its span before it
// calls start, so that the actor starts in no span.
func InNothing(start func()) {
	goruntime.SetLabels(nil)
	start()
}

func (a *Actor) loop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for f := range a.do {
		f()
		a.done <- struct{}{}
	}
	close(a.done)
}

// Run runs f on the actor's goroutine and waits for it.
func (a *Actor) Run(f func()) {
	a.do <- f
	<-a.done
}

// Stop ends the actor's goroutine.
func (a *Actor) Stop() {
	close(a.do)
	<-a.done
}

// Publisher adapts an implementation to be tested. Run calls all functions on the goroutine of the step.
type Publisher struct {
	Tracer trace.Tracer
	// Attach attaches the span of ctx, and returns a function that detaches it.
	Attach  func(ctx context.Context) (detach func())
	Refresh func(ctx context.Context)
	// Go runs f on a new goroutine that is in the span of ctx. It is nil if the publisher has no such function.
	Go func(ctx context.Context, f func(context.Context))
	// EndAgain calls the span processor once more for a span that has ended, which the SDK does not do.
	EndAgain func(trace.Span)
	// Evict evicts the span of ctx from its cell, as a span that starts on another goroutine may do.
	Evict func(ctx context.Context)
	// Active returns the id of the span that the goroutine is in, or 0 for none. If it is in the span of ctx,
	// Active also returns the id of that span's local root, or 0 if the local root is unknown.
	Active func(ctx context.Context) (span, localRoot uint64)
	// With returns ctx with additional attributes, given the text between braces in a program. CheckAttributes
	// checks that the span is published with such attributes. Both may be nil if the programs have no braces.
	With            func(ctx context.Context, attributes string) context.Context
	CheckAttributes func(span trace.Span, attributes string)
	// Operations maps characters to further operations. The characters % # $ _ | ( and ) are available.
	Operations map[string]func()
}

var syntax = regexp.MustCompile(`^(\d?)(?:([-+@!~>*%#$_|()])(\w*)(?:([<^&?])(\w+))?(\{[^}]*\})?)?(?:(=)(\w*)(?:/(\w+))?(\{[^}]*\})?)?$`)

// Run runs a program, a list of steps separated by spaces. A step has up to three parts: the number of a goroutine (1
// if omitted), an operation, and an expectation.
//
// In the operations, c and p are names of spans:
//
//	+c      start span c without a parent
//	+c<p    start span c with the context of p; +c^p the same as a new root
//	+c&p    start span c with p as a remote parent; +c?p with a context that has only the ids of p
//	-c      end span c; if it has ended before, call the processor again
//	@c      attach the context of c; @ an empty context
//	@?c     attach a context that has only the ids of c; @&c a context in which c is a remote span
//	!       detach the last attached context; !2 call the last detach function of goroutine 2
//	~c      refresh with the context of c; ~ with an empty context; ~?c and ~&c as @?c and @&c
//	>2      start goroutine 2, which inherits the span; other goroutines start outside of all spans
//	>2<c    start goroutine 2 by Publisher.Go with the context of c; >2?c with only the ids of c
//	*c      evict span c
//
// The characters in Publisher.Operations are operations, too. The expectations are:
//
//	=c      the goroutine is in span c, which is its own local root
//	=c/r    the goroutine is in span c, whose local root is r, or unknown if r is 0
//	=       the goroutine is in no span
//
// Attributes in braces, such as {k=v}, may follow. After +, @ and ~ they are added to the context. After = the span
// must be published with them.
//
// At the end of the program Run ends all spans.
func Run(t *testing.T, p Publisher, program string) {
	t.Helper()
	r := &run{
		Publisher: p, t: t, actors: map[string]*Actor{}, spans: map[string]trace.Span{}, ended: map[string]bool{},
		ctxs: map[string]context.Context{"": context.Background()},
	}
	var done []string
	for step := range strings.FieldsSeq(program) {
		parts := syntax.FindStringSubmatch(step)
		require.NotNil(t, parts, "step %s", step)
		name := parts[1]
		if name == "" {
			name = "1"
		}
		a := r.actors[name]
		if a == nil {
			a = NewActor(InNothing)
			r.actors[name] = a
		}
		a.Run(func() { r.step(a, parts[2], parts[3], parts[4], parts[5], parts[6]) })
		done = append(done, step)
		if parts[7] != "" && !r.isIn(a, parts[8], parts[9], parts[10]) {
			t.Errorf("after %s", strings.Join(done, " "))
			break
		}
	}
	for _, span := range r.spans {
		span.End()
	}
	for _, a := range r.actors {
		a.Stop()
	}
}

type run struct {
	Publisher

	t      *testing.T
	actors map[string]*Actor
	spans  map[string]trace.Span
	ended  map[string]bool
	ctxs   map[string]context.Context
}

// step runs one operation on a's goroutine.
func (r *run) step(a *Actor, what, name, how, parent, attributes string) {
	with := func(ctx context.Context) context.Context {
		if attributes != "" {
			ctx = r.With(ctx, strings.Trim(attributes, "{}"))
		}
		return ctx
	}
	ctx := r.ctxs[parent]
	switch how {
	case "":
		ctx = r.ctxs[name]
	case "&":
		ctx = trace.ContextWithRemoteSpanContext(ctx, r.spans[parent].SpanContext())
	case "?":
		ctx = trace.ContextWithSpanContext(context.Background(), r.spans[parent].SpanContext())
	}
	switch what {
	case "":
	case "+":
		var opts []trace.SpanStartOption
		switch how {
		case "":
			ctx = context.Background()
		case "^":
			opts = append(opts, trace.WithNewRoot())
		}
		r.ctxs[name], r.spans[name] = r.Tracer.Start(with(ctx), "span", opts...) //nolint:fatcontext,spancheck // Each span has its own context, and later steps end it.
	case "-":
		r.spans[name].End()
		if r.ended[name] {
			r.EndAgain(r.spans[name])
		}
		r.ended[name] = true
	case "@":
		a.attached = append(a.attached, r.Attach(with(ctx)))
	case "!":
		if name != "" {
			other := r.actors[name].attached
			other[len(other)-1]()
			return
		}
		last := len(a.attached) - 1
		a.attached[last]()
		a.attached = a.attached[:last]
	case "~":
		r.Refresh(with(ctx))
	case ">":
		started := NewActor(func(start func()) {
			if how == "" {
				start()
			}
		})
		if how != "" {
			r.Go(ctx, func(context.Context) { started.loop() })
		}
		r.actors[name] = started
	case "*":
		r.Evict(r.ctxs[name])
	default:
		require.Contains(r.t, r.Operations, what)
		r.Operations[what]()
	}
}

// isIn checks that a goroutine is in a span with this local root, published with these attributes. If not, it fails
// the test and returns false.
func (r *run) isIn(a *Actor, span, root, attributes string) bool {
	if root == "" {
		root = span
	}
	var want, got [2]uint64
	if span != "" {
		if want[0] = number(r.spans[span]); root != "0" {
			want[1] = number(r.spans[root])
		}
	}
	a.Run(func() {
		got[0], got[1] = r.Active(r.ctxs[span])
		if attributes != "" {
			r.CheckAttributes(r.spans[span], strings.Trim(attributes, "{}"))
		}
	})
	return assert.Equal(r.t, want, got, "span and local root") && !r.t.Failed()
}

// number returns the id of a span as a number.
func number(s trace.Span) uint64 {
	id := s.SpanContext().SpanID()
	return binary.BigEndian.Uint64(id[:])
}
