// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// handoverPatterns lists patterns in which one goroutine starts a span and another ends it. In some
// of them, the rules of package spanctx lead to another span than a user would want. Such a pattern
// expects the span that the rules lead to, and the next pattern shows the remedy.
var handoverPatterns = []pattern{
	{called: "siblings4Elsewhere", run: plainSiblings(4), about: "four children in flight: in the last one, and in the parent after all have ended elsewhere"},
	{called: "siblings8Elsewhere", run: plainSiblings(8), about: "the same with eight"},
	{run: siblingsLastFirst, about: "eight children in flight, the last one ended elsewhere first: in the parent"},
	{run: siblingsOfMany, about: "children of four requests in flight, started by one goroutine that is in none of them, after they have ended elsewhere: nothing"},
	{run: chainElsewhere, about: "a in b in c in d in the parent, ended elsewhere from the inside: in each, and in the parent"},
	{called: "httpBodies4", run: httpBodies(4), about: "four responses of otelhttp open, their bodies closed elsewhere: in the caller's span after that"},
	{called: "httpBodies8", run: httpBodies(8), about: "the same with eight"},
	{called: "grpcStreams4", run: grpcStreams(4), about: "four otelgrpc streams open, received to their end elsewhere: in the caller's span after that"},
	{called: "grpcStreams8", run: grpcStreams(8), about: "the same with eight"},
	{called: "pipeline4", run: pipeline(4), about: "a stage that starts four spans which the next stage ends: in both stages"},
	{called: "pipeline8", run: pipeline(8), about: "the same with eight"},
	{run: newRootElsewhere, about: "in the outer span, after another goroutine has ended the `WithNewRoot` span"},

	{run: httpConnContext, about: "http.Server.ConnContext starts a span for each connection: in handlers, and on the connection's goroutine after End"},
	{run: httpConnContextChild, about: "the same with otelhttp: in the handler's span"},
	{run: httpConnContextAccept, about: "the same: in Accept, after the span of the newest connection has ended"},
	{run: acceptLoop, about: "a loop with a root for each item, ended by a handler: in the handler, and in the loop while the handler works"},
	{run: acceptLoopAttach, about: "the same loop with `spanctx.Attach(context.Background())` after handing over: nothing in the loop"},
	{run: acceptLoopStartInside, about: "the same loop, where the handler starts the span: nothing in the loop"},
	{run: acceptLoopAfter, about: "in the loop, after the newest span has ended elsewhere while older ones are open: nothing"},
	{run: dispatchLoop, about: "a loop that hands items with a root to a pool: in the worker's child, and nothing in the loop after the item's end"},
	{run: dispatchLoopAttach, about: "the same with Attach in the worker and `spanctx.Attach(context.Background())` in the loop"},

	{run: dispatcherOthers, about: "a dispatcher starts children in other requests' contexts, ended elsewhere: nothing after that"},
	{run: dispatcherOthersRequest, about: "the same: in the request, while and after the dispatcher does so"},
	{run: dispatcherInSpan, about: "the same in a span of the dispatcher's own: nothing after the child, until the next Start"},
	{run: dispatcherInSpanRefresh, about: "the same, after `spanctx.Refresh` with the dispatcher's context: in its span"},
	{run: rootInsideElsewhere, about: "in a span, after a root with another context has ended elsewhere: nothing"},
	{run: rootInsideElsewhereRefresh, about: "the same, after `spanctx.Refresh` with the span's context: in the span"},

	{run: unsampledGoroutine, about: "a goroutine started for an unsampled root inside a span: that span is inherited"},
	{run: unsampledGoroutineGo, about: "the same with `spanctx.Go` and the unsampled context: nothing"},
	{run: unsampledGoroutineRecorded, about: "the same with `spanctx.RecordUnsampled`: in the unsampled span"},
	{run: unsampledParentElsewhere, about: "a child of an unsampled child ended elsewhere: in the grandparent, or nothing"},
	{run: unsampledParentElsewhereRefresh, about: "the same, after `spanctx.Refresh` with the grandparent's context"},

	{run: attachedEndsElsewhere, about: "a pool worker whose attached root ends elsewhere: nothing"},
	{run: attachedChildEndsElsewhere, about: "a pool worker whose attached child ends elsewhere: in the child's parent"},
	{run: attachedEndsAttach, about: "a goroutine in a span whose attached root ends elsewhere, after Attach of its own span"},
	{run: watchdogEnded, about: "an inner span left open, after an outer one that a watchdog had ended first: in the inner one"},
	{run: watchdogEndedAttach, about: "the same, after `spanctx.Attach(context.Background())`: nothing"},
	{run: overlappingSiblings, about: "work for the first of two open siblings: in the second one, which started last"},
	{run: overlappingSiblingsAttach, about: "the same with Attach of the first one"},
	{run: eventLoop, about: "a loop that starts spans and attaches them at each event: in them, and between events in the last one that it started"},
	{run: eventLoopAttach, about: "the same with `spanctx.Attach(context.Background())` after each Start: between events nothing"},
}

// opener starts an operation with its own span. It returns the context of that span, and a function
// that ends the operation and the span.
type opener func(ctx context.Context) (inside context.Context, end func())

// child opens a child span.
func (r *run) child(ctx context.Context) (context.Context, func()) {
	ctx, span := r.start(ctx, "child")
	return ctx, func() { span.End() }
}

// inFlight opens n siblings in a job, and ends them on another goroutine.
func (r *run) inFlight(n int, open opener) {
	ctx, span := r.root("job")
	ends := make([]func(), n)
	var last context.Context
	for i := range n {
		last, ends[i] = open(ctx)
	}
	r.in(last)
	for i, end := range ends {
		if i == n-1 {
			r.in(last)
		}
		r.elsewhere(end)
	}
	r.in(ctx)
	block()
	r.in(ctx)
	span.End()
	r.out()
}

func plainSiblings(n int) func(*run) { return func(r *run) { r.inFlight(n, r.child) } }

func siblingsLastFirst(r *run) {
	ctx, span := r.root("job")
	var ends [8]func()
	for i := range ends {
		_, ends[i] = r.child(ctx)
	}
	for i := range ends {
		r.elsewhere(ends[len(ends)-1-i])
		r.in(ctx)
	}
	span.End()
}

func siblingsOfMany(r *run) {
	requests, finish := r.requestsOfOthers(4)
	var ends []func()
	for _, request := range requests {
		ctx, end := r.child(request)
		r.in(ctx)
		ends = append(ends, end)
	}
	for i := range ends {
		r.elsewhere(ends[len(ends)-1-i])
		r.out()
	}
	finish()
}

func chainElsewhere(r *run) {
	parent, span := r.root("parent")
	ctx := []context.Context{parent}
	var ends []func()
	for i := range 4 {
		inner, end := r.child(ctx[i])
		ctx, ends = append(ctx, inner), append(ends, end)
	}
	for i, end := range slices.Backward(ends) {
		r.in(ctx[i+1])
		r.elsewhere(end)
	}
	r.in(parent)
	span.End()
}

func httpBodies(n int) func(*run) {
	return func(r *run) {
		server, client := r.serve(1, http.HandlerFunc(answer))
		client.Transport = r.transport(client.Transport)
		for range 2 {
			r.inFlight(n, func(ctx context.Context) (context.Context, func()) {
				response := r.open(ctx, client, server.URL) //nolint:bodyclose // The returned function closes it.
				return response.Request.Context(), func() { _ = response.Body.Close() }
			})
		}
		server.Close()
	}
}

func grpcStreams(n int) func(*run) {
	return func(r *run) {
		c := r.serveRPC(idle, nil)
		c.unary(context.Background())
		for range 2 {
			r.inFlight(n, func(ctx context.Context) (context.Context, func()) {
				stream := c.open(ctx, "Bidi", true, true)
				send(stream)
				return stream.Context(), func() {
					must(stream.CloseSend())
					for receive(stream) {
						continue
					}
				}
			})
		}
		c.close()
	}
}

func pipeline(n int) func(*run) {
	return func(r *run) {
		ctx, span := r.root("job")
		stage := make(chan func(), n)
		var next sync.WaitGroup
		begin := make(chan struct{})
		next.Go(func() {
			<-begin
			for end := range stage {
				r.in(ctx)
				end()
			}
			r.in(ctx)
		})
		for range n {
			inner, end := r.child(ctx)
			r.in(inner)
			stage <- end
		}
		close(stage)
		close(begin)
		next.Wait()
		r.in(ctx)
		span.End()
	}
}

func newRootElsewhere(r *run) {
	outer, span := r.root("outer")
	_, inner := r.start(outer, "inner", trace.WithNewRoot())
	r.elsewhere(func() { inner.End() })
	r.in(outer)
	block()
	r.in(outer)
	span.End()
}

// acceptor is a listener that calls a function after each accepted connection.
type acceptor struct {
	net.Listener

	work func()
}

func (a acceptor) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.work()
	}
	return conn, err
}

// connections runs a server that starts a span for each connection in ConnContext and ends it in
// ConnState. It makes three connections, replaces the newest one by a fourth, and closes these
// three one after the other, the newest first. accepted is called after each accept with the number
// of earlier connections.
func (r *run) connections(handler http.Handler, accepted func(conns int)) {
	var (
		spans  sync.Map
		conns  int
		closed = make(chan struct{}, 10)
	)
	server := httptest.NewUnstartedServer(handler)
	server.Listener = acceptor{server.Listener, func() { accepted(conns) }}
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		ctx, span := r.start(ctx, "connection")
		spans.Store(conn, span)
		conns++
		return ctx
	}
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if span, ok := spans.Load(conn); ok && state == http.StateClosed {
			span.(trace.Span).End()
			r.out()
			closed <- struct{}{}
		}
	}
	server.Start()
	connect := func() *http.Client {
		client := &http.Client{Transport: new(http.Transport)}
		r.get(context.Background(), client, server.URL)
		return client
	}
	disconnect := func(client *http.Client) {
		client.CloseIdleConnections()
		<-closed
	}
	clients := []*http.Client{connect(), connect(), connect()}
	disconnect(clients[2])
	clients[2] = connect()
	for i := range clients {
		disconnect(clients[2-i])
	}
	server.Close()
}

func httpConnContext(r *run)      { r.connections(http.HandlerFunc(r.handle), func(int) {}) }
func httpConnContextChild(r *run) { r.connections(r.traced(r.handle), func(int) {}) }

func httpConnContextAccept(r *run) {
	r.connections(http.HandlerFunc(answer), func(conns int) {
		if conns == 0 || conns == 3 {
			r.out()
			block()
			r.out()
		}
	})
}

// loop repeatedly starts an item, which is a root span, and hands it over to a goroutine that works in
// it. The loop calls after when it has handed the item over, and lets the goroutine end the item when
// after has returned.
func (r *run) loop(after func(ctx context.Context)) {
	var handlers sync.WaitGroup
	for range 4 {
		ctx, span := r.root("item")
		release := make(chan struct{})
		handlers.Go(func() {
			r.in(ctx)
			<-release
			r.in(ctx)
			span.End()
			r.out()
		})
		after(ctx)
		close(release)
	}
	handlers.Wait()
}

func acceptLoop(r *run) { r.loop(r.in) }

func acceptLoopAttach(r *run) {
	r.loop(func(context.Context) {
		spanctx.Attach(context.Background())
		r.out()
		block()
		r.out()
	})
}

func acceptLoopStartInside(r *run) {
	var handlers sync.WaitGroup
	for range 4 {
		handlers.Go(func() {
			ctx, span := r.root("item")
			r.in(ctx)
			block()
			r.in(ctx)
			span.End()
			r.out()
		})
		r.out()
	}
	handlers.Wait()
}

func acceptLoopAfter(r *run) {
	var ends [5]func()
	for i := range ends {
		_, ends[i] = r.child(context.Background())
	}
	for i := range ends {
		r.elsewhere(ends[len(ends)-1-i])
		r.out()
	}
}

// dispatching runs a loop that hands items over to a pool. Throughout the loop, an older item is still
// open.
func (r *run) dispatching(work func(ctx context.Context), handedOver func()) {
	do, stop := jobs()
	_, endOldest := r.child(context.Background())
	handedOver()
	for range 3 {
		ctx, item := r.root("item")
		handedOver()
		do(func() {
			work(ctx)
			item.End()
			r.out()
		})
		r.out()
	}
	r.elsewhere(endOldest)
	stop()
}

func dispatchLoop(r *run) {
	r.dispatching(func(item context.Context) {
		ctx, work := r.start(item, "work")
		r.in(ctx)
		work.End()
		r.out()
	}, func() {})
}

func dispatchLoopAttach(r *run) {
	r.dispatching(func(item context.Context) {
		defer spanctx.Attach(item).Detach()
		r.in(item)
	}, func() { spanctx.Attach(context.Background()) })
}

// requestsOfOthers starts n spans on another goroutine, and returns their contexts and a function that
// ends them.
func (r *run) requestsOfOthers(n int) (requests []context.Context, finish func()) {
	var spans []trace.Span
	r.apart(func() {
		for range n {
			ctx, span := r.root("request")
			requests, spans = append(requests, ctx), append(spans, span)
		}
	})
	return requests, func() {
		for _, span := range spans {
			span.End()
		}
	}
}

// dispatch starts a child in each context and ends it on another goroutine. It calls after twice when
// a child has ended.
func (r *run) dispatch(contexts []context.Context, after func()) {
	for _, ctx := range contexts {
		inner, end := r.child(ctx)
		r.in(inner)
		r.elsewhere(end)
		after()
		block()
		after()
	}
}

func dispatcherOthers(r *run) {
	requests, finish := r.requestsOfOthers(3)
	r.dispatch(requests, r.out)
	finish()
}

func dispatcherOthersRequest(r *run) {
	ctx, span := r.root("request")
	for range 3 {
		r.apart(func() { r.dispatch([]context.Context{ctx}, r.out) })
		r.in(ctx)
	}
	span.End()
}

// inSpan starts a span for the dispatcher and calls dispatch in it.
func (r *run) inSpan(contexts []context.Context, after func(own context.Context)) {
	own, span := r.root("dispatcher")
	r.in(own)
	r.dispatch(contexts, func() { after(own) })
	span.End()
	r.out()
}

func (r *run) lost(context.Context) { r.out() }

func (r *run) refreshed(own context.Context) {
	spanctx.Refresh(own)
	r.in(own)
}

func dispatcherInSpan(r *run) {
	requests, finish := r.requestsOfOthers(3)
	r.inSpan(requests, r.lost)
	finish()
}

func dispatcherInSpanRefresh(r *run) {
	requests, finish := r.requestsOfOthers(3)
	r.inSpan(requests, r.refreshed)
	finish()
}

func rootInsideElsewhere(r *run) { r.inSpan([]context.Context{context.Background()}, r.lost) }

func rootInsideElsewhereRefresh(r *run) {
	r.inSpan([]context.Context{context.Background()}, r.refreshed)
}

// forUnsampled starts a sampled span, and in it an unsampled root. It calls f with the contexts of
// both.
func (r *run) forUnsampled(sampler sdktrace.Sampler, f func(outer, unsampled context.Context)) {
	outer, root := r.root("outer")
	ctx, span := r.with(sampler).Start(context.Background(), "unsampled")
	f(outer, ctx)
	span.End()
	root.End()
}

// inside runs f twice on a goroutine created by start, and waits for it.
func inside(start func(func()), f func()) {
	var done sync.WaitGroup
	done.Add(1)
	start(func() {
		defer done.Done()
		f()
		block()
		f()
	})
	done.Wait()
}

func onGoroutine(f func()) { go f() }

func unsampledGoroutine(r *run) {
	r.forUnsampled(sdktrace.NeverSample(), func(outer, _ context.Context) {
		inside(onGoroutine, func() { r.in(outer) })
	})
}

func unsampledGoroutineGo(r *run) {
	r.forUnsampled(sdktrace.NeverSample(), func(_, unsampled context.Context) {
		inside(func(f func()) { spanctx.Go(unsampled, func(context.Context) { f() }) }, r.out)
	})
}

func unsampledGoroutineRecorded(r *run) {
	r.forUnsampled(spanctx.RecordUnsampled(sdktrace.NeverSample()), func(_, unsampled context.Context) {
		inside(onGoroutine, func() { r.in(unsampled) })
	})
}

// unsampledParent starts three nested spans, of which only the middle one is unsampled, and ends the
// innermost on another goroutine.
func (r *run) unsampledParent(after func(ctx context.Context)) {
	tracer := r.with(sdktrace.ParentBased(sdktrace.AlwaysSample(),
		sdktrace.WithLocalParentSampled(sdktrace.NeverSample()), sdktrace.WithLocalParentNotSampled(sdktrace.AlwaysSample())))
	ctx, root := tracer.Start(context.Background(), "root")
	middle, unsampled := tracer.Start(ctx, "unsampled")
	inner, span := tracer.Start(middle, "sampled")
	r.in(inner)
	r.elsewhere(func() { span.End() })
	after(ctx)
	block()
	after(ctx)
	unsampled.End()
	root.End()
}

func unsampledParentElsewhere(r *run)        { r.unsampledParent(r.either) }
func unsampledParentElsewhereRefresh(r *run) { r.unsampledParent(r.refreshed) }

func attachedEndsElsewhere(r *run) {
	requests, finish := r.requestsOfOthers(1)
	attachment := spanctx.Attach(requests[0])
	r.in(requests[0])
	r.elsewhere(finish)
	r.out()
	block()
	r.out()
	attachment.Detach()
	r.out()
}

func attachedChildEndsElsewhere(r *run) {
	requests, finish := r.requestsOfOthers(1)
	var (
		ctx context.Context
		end func()
	)
	r.apart(func() { ctx, end = r.child(requests[0]) })
	attachment := spanctx.Attach(ctx)
	r.in(ctx)
	r.elsewhere(end)
	r.in(requests[0])
	block()
	r.in(requests[0])
	attachment.Detach()
	r.out()
	finish()
}

func attachedEndsAttach(r *run) {
	own, span := r.root("own")
	requests, finish := r.requestsOfOthers(1)
	outer := spanctx.Attach(requests[0])
	r.elsewhere(finish)
	inner := spanctx.Attach(own)
	r.in(own)
	inner.Detach()
	outer.Detach()
	r.in(own)
	span.End()
}

// watchdog ends a span first on another goroutine and then on its own, while a child is still open.
// The SDK does not report the second End to processors.
func (r *run) watchdog(after func(inner context.Context)) {
	outer, span := r.root("outer")
	inner, left := r.start(outer, "left open")
	r.elsewhere(func() { span.End() })
	span.End()
	after(inner)
	block()
	after(inner)
	left.End()
	r.out()
}

func watchdogEnded(r *run) { r.watchdog(r.in) }

func watchdogEndedAttach(r *run) {
	r.watchdog(func(context.Context) {
		spanctx.Attach(context.Background())
		r.out()
	})
}

// overlapping starts two siblings, calls work, and ends them in the order in which they started.
func (r *run) overlapping(work func(first, second context.Context)) {
	parent, root := r.root("parent")
	first, one := r.start(parent, "first")
	second, other := r.start(parent, "second")
	work(first, second)
	one.End()
	r.in(second)
	other.End()
	r.in(parent)
	root.End()
}

func overlappingSiblings(r *run) { r.overlapping(func(_, second context.Context) { r.in(second) }) }

func overlappingSiblingsAttach(r *run) {
	r.overlapping(func(first, second context.Context) {
		attachment := spanctx.Attach(first)
		r.in(first)
		attachment.Detach()
		r.in(second)
	})
}

// events runs an event loop. It starts two spans, and at each event attaches one of them, in turn. It
// calls started after each start, and between after each event.
func (r *run) events(started func(), between func(last context.Context)) {
	var (
		contexts [2]context.Context
		ends     [2]func()
	)
	for i := range contexts {
		contexts[i], ends[i] = r.child(context.Background())
		started()
	}
	for event := range 5 {
		i := event % 2
		attachment := spanctx.Attach(contexts[i])
		r.in(contexts[i])
		if event == 4 {
			ends[i]()
			r.out()
		}
		attachment.Detach()
		between(contexts[1])
	}
	ends[1]()
	r.out()
}

func eventLoop(r *run) { r.events(func() {}, r.in) }

func eventLoopAttach(r *run) {
	r.events(func() { spanctx.Attach(context.Background()) }, r.lost)
}
