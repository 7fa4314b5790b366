// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spansteps runs test programs written in a small language. A program starts, ends and
// attaches spans on several goroutines, and states which span each goroutine is in afterwards.
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

// Actor is a goroutine, locked to a thread, that runs functions sent to it.
type Actor struct {
	do   chan func()
	done chan struct{}
	// attached holds a detach function for each span that the program has attached on the goroutine.
	attached []func()
}

// NewActor returns an actor whose goroutine is started by start. on must call start on the goroutine
// whose span the actor inherits.
func NewActor(on func(start func())) *Actor {
	a := &Actor{do: make(chan func()), done: make(chan struct{})}
	on(func() { go a.loop() })
	return a
}

// InNothing is an argument for [NewActor]. It calls start on a goroutine that is in no span.
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

// Publisher publishes spans. All functions are called on the goroutine of the step.
type Publisher struct {
	Tracer trace.Tracer
	// Attach returns a function that detaches.
	Attach  func(ctx context.Context) (detach func())
	Refresh func(ctx context.Context)
	// Go starts a goroutine that is in the span of ctx. It is nil if the publisher has no such function.
	Go func(ctx context.Context, f func(context.Context))
	// EndAgain ends a span that has ended already.
	EndAgain func(trace.Span)
	// Evict ends the span of ctx in the same way as Start does on another goroutine that needs the span's cell.
	Evict func(ctx context.Context)
	// Active returns the id of the span that the goroutine is in, or 0. If that is the span of ctx, it also
	// returns the id of its local root, 0 if it is unknown.
	Active func(ctx context.Context) (span, localRoot uint64)
	// With returns a context with the attributes that a program writes between braces. CheckAttributes checks that
	// the span is published with these attributes. Both are nil if programs have no braces.
	With            func(ctx context.Context, attributes string) context.Context
	CheckAttributes func(span trace.Span, attributes string)
	// Operations are further operations by character. The characters are % # $ _ | ( and ).
	Operations map[string]func()
}

var syntax = regexp.MustCompile(`^(\d?)(?:([-+@?!~>*%#$_|()])(\w*)(?:([<^&?])(\w+))?(\{[^}]*\})?)?(?:(=)(\w*)(?:/(\w+))?(\{[^}]*\})?)?$`)

// Run runs a program. A step consists of a goroutine (1 if omitted), an operation, and optionally the span
// that the goroutine must be in afterwards:
//
//	+c<p   start span c with the context of p; +c^p as a new root; +c&p with p as a remote parent;
//	       +c?p with a context that has the ids of p alone
//	-c     end span c; again, the SDK calls the processor again
//	@c     attach the context of c, @ an empty one; ?c a context that has the ids of c alone
//	!      detach what was attached last; !2 what goroutine 2 attached last, which stays attached there
//	~c     refresh with the context of c, ~ with an empty one
//	>2     start goroutine 2, which inherits; >2<c by Go with the context of c; other goroutines inherit nothing
//	*c     evict span c
//	=c/r   it is in span c, whose local root is r: c itself if left out, 0 if unknown; = alone is no span
//	{k=v}  behind the span: with these attributes added to the context of +, @ or ~; published with them after =
//
// The other operations are those of the publisher. At the end all spans end.
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

// run is a running program.
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
	identity := func(span string) context.Context {
		return trace.ContextWithSpanContext(context.Background(), r.spans[span].SpanContext())
	}
	switch what {
	case "":
	case "+":
		ctx := r.ctxs[parent]
		var opts []trace.SpanStartOption
		switch how {
		case "^":
			opts = append(opts, trace.WithNewRoot())
		case "&":
			ctx = trace.ContextWithRemoteSpanContext(ctx, r.spans[parent].SpanContext())
		case "?":
			ctx = identity(parent)
		}
		r.ctxs[name], r.spans[name] = r.Tracer.Start(with(ctx), "span", opts...) //nolint:fatcontext,spancheck // Each span has its own context, and later steps end it.
	case "-":
		r.spans[name].End()
		if r.ended[name] {
			r.EndAgain(r.spans[name])
		}
		r.ended[name] = true
	case "@":
		a.attached = append(a.attached, r.Attach(with(r.ctxs[name])))
	case "?":
		a.attached = append(a.attached, r.Attach(identity(name)))
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
		r.Refresh(with(r.ctxs[name]))
	case ">":
		started := NewActor(func(start func()) {
			if how == "" {
				start()
			}
		})
		if how != "" {
			r.Go(r.ctxs[parent], func(context.Context) { started.loop() })
		}
		r.actors[name] = started
	case "*":
		r.Evict(r.ctxs[name])
	default:
		require.Contains(r.t, r.Operations, what)
		r.Operations[what]()
	}
}

// isIn reports whether a goroutine is in a span with this local root, published with these attributes.
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
