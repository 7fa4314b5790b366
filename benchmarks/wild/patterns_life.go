// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// lifePatterns lists patterns in which spans start and end in different ways.
var lifePatterns = []pattern{
	{run: noSpan, about: "no span anywhere"},
	{run: rootSpan, about: "in a root span"},
	{run: rootSpanAfter, about: "after a root span"},
	{run: rootSpanBlocking, about: "in a root span, after each of several blocking calls"},
	{run: childSpan, about: "in a child, and in the parent after it"},
	{run: siblings, about: "between and in several children"},
	{run: nested70, about: "70 spans deep, and in each of them on the way back"},
	{run: newRoot, about: "in a `WithNewRoot` span inside another span, and in the outer one after it"},
	{run: linked, about: "in a span with a link to another span"},
	{run: remoteParent, about: "in a span with a remote parent"},
	{run: remoteOnly, about: "with a remote span in the context, no local one"},
	{run: parentEndedFirst, about: "in a child after its parent has ended on the same goroutine"},
	{run: middleEndedFirst, about: "c in b in a: after b has ended before c, in a"},
	{run: rootEndedElsewhere, about: "after another goroutine has ended the root"},
	{run: childEndedElsewhere, about: "in the parent, after another goroutine has ended the child"},
	{run: childEndedElsewhereBlocking, about: "the same, after a blocking call"},
	{run: childEndedElsewhereRefresh, about: "the same, after `spanctx.Refresh` with the parent's context"},
	{run: cInBInA, about: "c in b in a: c ended elsewhere, then b and a here"},
	{run: cAndBElsewhere, about: "c in b in a: c and b ended elsewhere, then a here"},
	{run: bElsewhereThenC, about: "c in b in a: b ended elsewhere while c is open, then c here"},
	{run: parentEndedElsewhere, about: "in a child whose parent another goroutine has ended, and after the child"},
	{run: endedTwice, about: "in the parent, after two ends of the child"},
	{run: endedTwiceElsewhere, about: "in the second child, after a late second end of the first elsewhere"},
	{run: neverEnded, about: "a root that never ends, a new root inside it, and back"},
	{run: childNeverEnded, about: "a child that never ends: until its parent ends here, and after that"},
	{run: leftOpenInLoop, about: "a loop of jobs, the first of which leaves a child open: in jobs and between them"},
	{run: panicRecovered, about: "a child ended by defer in a panic, then the parent"},
	{run: panicForgotten, about: "a child that a panic leaves open, then after the parent has ended"},
	{run: goexit, about: "deferred work before and after End in `runtime.Goexit`"},
	{run: manyLive, about: "in one of 3,000 live spans"},
	{run: endRaces, about: "a child ended by two goroutines at once, then the parent"},
}

func noSpan(r *run) {
	r.out()
	block()
	r.out()
}

func rootSpan(r *run) {
	ctx, span := r.root("root")
	r.in(ctx)
	span.End()
}

func rootSpanAfter(r *run) {
	_, span := r.root("root")
	span.End()
	r.out()
	block()
	r.out()
}

func rootSpanBlocking(r *run) {
	ctx, span := r.root("root")
	for range 3 {
		block()
		r.in(ctx)
	}
	span.End()
}

func childSpan(r *run) {
	parent, root := r.root("parent")
	ctx, child := r.start(parent, "child")
	block()
	r.in(ctx)
	child.End()
	r.in(parent)
	block()
	r.in(parent)
	root.End()
}

func siblings(r *run) {
	parent, root := r.root("parent")
	for range 3 {
		ctx, child := r.start(parent, "child")
		r.in(ctx)
		child.End()
		block()
		r.in(parent)
	}
	root.End()
}

func nested70(r *run) {
	ctx, root := r.root("0")
	nest(r, ctx, 69)
	r.in(ctx)
	root.End()
	r.out()
}

func nest(r *run, parent context.Context, left int) {
	if left == 0 {
		return
	}
	ctx, span := r.start(parent, "nested")
	nest(r, ctx, left-1)
	if left%2 == 0 || left > 64 {
		r.in(ctx)
	}
	span.End()
}

func newRoot(r *run) {
	outer, span := r.root("outer")
	inner, another := r.start(outer, "inner", trace.WithNewRoot())
	r.in(inner)
	block()
	r.in(inner)
	another.End()
	r.in(outer)
	block()
	r.in(outer)
	span.End()
}

func linked(r *run) {
	_, other := r.root("other")
	other.End()
	ctx, span := r.start(context.Background(), "linked", trace.WithLinks(trace.Link{SpanContext: other.SpanContext()}))
	r.in(ctx)
	block()
	r.in(ctx)
	span.End()
}

// remote returns the context of a span of another process.
func remote() context.Context {
	return trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
}

func remoteParent(r *run) {
	ctx, span := r.start(remote(), "local")
	r.in(ctx)
	block()
	r.in(ctx)
	span.End()
}

func remoteOnly(r *run) {
	ctx := remote()
	r.as(ctx)
	block()
	r.as(ctx)
}

func parentEndedFirst(r *run) {
	parent, root := r.root("parent")
	_, child := r.start(parent, "child")
	root.End()
	r.out()
	block()
	r.out()
	child.End()
	r.out()
}

func middleEndedFirst(r *run) {
	a, spanA := r.root("a")
	b, spanB := r.start(a, "b")
	_, spanC := r.start(b, "c")
	spanB.End()
	r.in(a)
	block()
	r.in(a)
	spanC.End()
	r.in(a)
	spanA.End()
}

func rootEndedElsewhere(r *run) {
	_, span := r.root("root")
	r.elsewhere(func() { span.End() })
	r.out()
	block()
	r.out()
}

func childEndedElsewhere(r *run) {
	parent, root := r.root("parent")
	_, child := r.start(parent, "child")
	r.elsewhere(func() { child.End() })
	r.in(parent)
	root.End()
}

func childEndedElsewhereBlocking(r *run) {
	parent, root := r.root("parent")
	_, child := r.start(parent, "child")
	r.elsewhere(func() { child.End() })
	block()
	r.in(parent)
	root.End()
}

func childEndedElsewhereRefresh(r *run) {
	parent, root := r.root("parent")
	_, child := r.start(parent, "child")
	r.elsewhere(func() { child.End() })
	spanctx.Refresh(parent)
	r.in(parent)
	block()
	r.in(parent)
	root.End()
}

func cInBInA(r *run) {
	a, spanA := r.root("a")
	b, spanB := r.start(a, "b")
	_, spanC := r.start(b, "c")
	r.elsewhere(func() { spanC.End() })
	r.in(b)
	spanB.End()
	r.in(a)
	spanA.End()
	r.out()
}

func cAndBElsewhere(r *run) {
	a, spanA := r.root("a")
	b, spanB := r.start(a, "b")
	_, spanC := r.start(b, "c")
	r.elsewhere(func() {
		spanC.End()
		spanB.End()
	})
	r.in(a)
	spanA.End()
	r.out()
}

func bElsewhereThenC(r *run) {
	a, spanA := r.root("a")
	b, spanB := r.start(a, "b")
	c, spanC := r.start(b, "c")
	r.elsewhere(func() { spanB.End() })
	r.in(c)
	spanC.End()
	r.in(a)
	spanA.End()
	r.out()
}

func parentEndedElsewhere(r *run) {
	parent, root := r.root("parent")
	ctx, child := r.start(parent, "child")
	r.elsewhere(func() { root.End() })
	r.in(ctx)
	child.End()
	r.out()
}

func endedTwice(r *run) {
	parent, root := r.root("parent")
	_, child := r.start(parent, "child")
	child.End()
	child.End()
	r.in(parent)
	block()
	r.in(parent)
	root.End()
}

func endedTwiceElsewhere(r *run) {
	parent, root := r.root("parent")
	_, first := r.start(parent, "first")
	first.End()
	ctx, second := r.start(parent, "second")
	r.elsewhere(func() { first.End() })
	r.in(ctx)
	second.End()
	r.in(parent)
	root.End()
}

func neverEnded(r *run) {
	outer, _ := r.root("never ended")
	inner, span := r.start(context.Background(), "new root")
	r.in(inner)
	span.End()
	r.in(outer)
}

func childNeverEnded(r *run) {
	parent, root := r.root("parent")
	ctx, _ := r.start(parent, "never ended")
	r.in(ctx)
	root.End()
	r.out()
	block()
	r.out()
}

func leftOpenInLoop(r *run) {
	for job := range 6 {
		ctx, span := r.root("job")
		if job == 0 {
			_, _ = r.start(ctx, "left open")
		} else {
			r.in(ctx)
		}
		span.End()
		r.out()
		block()
	}
}

func panicRecovered(r *run) {
	parent, root := r.root("parent")
	func() {
		defer func() { _ = recover() }()
		_, child := r.start(parent, "child")
		defer child.End()
		panic("wild")
	}()
	r.in(parent)
	block()
	r.in(parent)
	root.End()
}

func panicForgotten(r *run) {
	parent, root := r.root("parent")
	func() {
		defer func() { _ = recover() }()
		_, _ = r.start(parent, "child")
		panic("wild")
	}()
	root.End()
	r.out()
	block()
	r.out()
}

func goexit(r *run) {
	r.apart(func() {
		var done sync.WaitGroup
		done.Go(func() {
			defer r.out()
			ctx, span := r.root("root")
			defer span.End()
			defer r.in(ctx)
			runtime.Goexit()
		})
		done.Wait()
	})
}

func manyLive(r *run) {
	spans := make([]trace.Span, 3000)
	r.apart(func() {
		for i := range spans {
			_, spans[i] = r.root("live")
		}
	})
	for range 30 {
		ctx, span := r.root("root")
		r.in(ctx)
		span.End()
	}
	for _, s := range spans {
		s.End()
	}
}

func endRaces(r *run) {
	parent, root := r.root("parent")
	_, child := r.start(parent, "child")
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { child.End(trace.WithTimestamp(time.Now())) })
	}
	both.Wait()
	r.in(parent)
	block()
	r.in(parent)
	root.End()
}
