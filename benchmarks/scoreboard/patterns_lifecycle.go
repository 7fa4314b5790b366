// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// lifePatterns lists patterns in which spans start and end in different ways.
var lifePatterns = []pattern{
	{called: "noSpan", steps: "= _ =", about: "no span anywhere"},
	{called: "rootSpan", steps: "+a =a -a", about: "in a root span"},
	{called: "rootSpanAfter", steps: "+a -a = _ =", about: "after a root span"},
	{run: rootSpanBlocking, about: "in a root span, after each of several blocking calls"},
	{called: "childSpan", steps: "+p +c<p _ =c -c =p _ =p -p", about: "in a child, and in the parent after it"},
	{called: "siblings", steps: "+p +a<p =a -a _ =p +b<p =b -b _ =p +c<p =c -c _ =p -p", about: "between and in several children"},
	{run: nested70, about: "70 spans deep, and in each of them on the way back"},
	{called: "newRoot", steps: "+a +b^a =b _ =b -b =a _ =a -a", about: "in a `WithNewRoot` span inside another span, and in the outer one after it"},
	{run: linked, about: "in a span with a link to another span"},
	{run: remoteParent, about: "in a span with a remote parent"},
	{run: remoteOnly, about: "with a remote span in the context, no local one"},
	{called: "parentEndedFirst", steps: "+p +c<p -p = _ = -c =", about: "in a child after its parent has ended on the same goroutine"},
	{called: "middleEndedFirst", steps: "+a +b<a +c<b -b =a _ =a -c =a -a", about: "c in b in a: after b has ended before c, in a"},
	{called: "rootEndedElsewhere", steps: "+a 2-a = _ =", about: "after another goroutine has ended the root"},
	{called: "childEndedElsewhere", steps: "+p +c<p 2-c =p -p", about: "in the parent, after another goroutine has ended the child"},
	{called: "childEndedElsewhereBlocking", steps: "+p +c<p 2-c _ =p -p", about: "the same, after a blocking call"},
	{called: "childEndedElsewhereRefresh", steps: "+p +c<p 2-c ~p =p _ =p -p", about: "the same, after `spanctx.Refresh` with the parent's context"},
	{called: "cInBInA", steps: "+a +b<a +c<b 2-c =b -b =a -a =", about: "c in b in a: c ended elsewhere, then b and a here"},
	{called: "cAndBElsewhere", steps: "+a +b<a +c<b 2-c 2-b =a -a =", about: "c in b in a: c and b ended elsewhere, then a here"},
	{called: "bElsewhereThenC", steps: "+a +b<a +c<b 2-b =c -c =a -a =", about: "c in b in a: b ended elsewhere while c is open, then c here"},
	{called: "parentEndedElsewhere", steps: "+p +c<p 2-p =c -c =", about: "in a child whose parent another goroutine has ended, and after the child"},
	{called: "endedTwice", steps: "+p +c<p -c -c =p _ =p -p", about: "in the parent, after two ends of the child"},
	{called: "endedTwiceElsewhere", steps: "+p +a<p -a +b<p 2-a =b -b =p -p", about: "in the second child, after a late second end of the first elsewhere"},
	{called: "neverEnded", steps: "+a +b =b -b =a", about: "a root that never ends, a new root inside it, and back"},
	{called: "childNeverEnded", steps: "+p +c<p =c -p = _ =", about: "a child that never ends: until its parent ends here, and after that"},
	{called: "leftOpenInLoop", steps: "+a +open<a -a = _ +b =b -b = _ +c =c -c = _ +d =d -d =", about: "a loop of jobs, the first of which leaves a child open: in jobs and between them"},
	{inRoot: panicRecovered, about: "a child ended by defer in a panic, then the parent"},
	{run: panicForgotten, about: "a child that a panic leaves open, then after the parent has ended"},
	{run: goexit, about: "deferred work before and after End in `runtime.Goexit`"},
	{run: manyLive, about: "in one of 3,000 live spans"},
	{inRoot: endRaces, about: "a child ended by two goroutines at once, then the parent"},
}

func rootSpanBlocking(r *run) {
	ctx, span := r.root("root")
	for range 3 {
		block()
		r.in(ctx)
	}
	span.End()
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

func linked(r *run) {
	_, other := r.root("other")
	other.End()
	r.stayInNew(r.tracer, context.Background(), trace.WithLinks(trace.Link{SpanContext: other.SpanContext()}))
}

// remote returns the context of a span of another process.
func remote() context.Context {
	return trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
}

func remoteParent(r *run) { r.stayInNew(r.tracer, remote()) }

func remoteOnly(r *run) {
	ctx := remote()
	twice(func() { r.as(ctx) })
}

func panicRecovered(r *run, parent context.Context) {
	func() {
		defer func() { _ = recover() }()
		_, child := r.start(parent, "child")
		defer child.End()
		panic("scoreboard")
	}()
	r.stayIn(parent)
}

func panicForgotten(r *run) {
	parent, root := r.root("parent")
	func() {
		defer func() { _ = recover() }()
		_, _ = r.start(parent, "child")
		panic("scoreboard")
	}()
	root.End()
	r.stayOut()
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

func endRaces(r *run, parent context.Context) {
	_, child := r.start(parent, "child")
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { child.End(trace.WithTimestamp(time.Now())) })
	}
	both.Wait()
	r.stayIn(parent)
}
