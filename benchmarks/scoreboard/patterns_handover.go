// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
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
	{called: "siblingsLastFirst", steps: "+p +a<p +b<p +c<p +d<p +e<p +f<p +g<p +h<p 2-h =p 2-g =p 2-f =p 2-e =p 2-d =p 2-c =p 2-b =p 2-a =p -p", about: "eight children in flight, the last one ended elsewhere first: in the parent"},
	{called: "siblingsOfMany", steps: "2+p 2+q 2+r 2+s +a<p =a +b<q =b +c<r =c +d<s =d 3-d = 3-c = 3-b = 3-a = 2-p 2-q 2-r 2-s", about: "children of four requests in flight, started by one goroutine that is in none of them, after they have ended elsewhere: nothing"},
	{called: "chainElsewhere", steps: "+p +a<p +b<a +c<b +d<c =d 2-d =c 2-c =b 2-b =a 2-a =p -p", about: "a in b in c in d in the parent, ended elsewhere from the inside: in each, and in the parent"},
	{called: "httpBodies4", run: httpBodies(4), about: "four responses of otelhttp open, their bodies closed elsewhere: in the caller's span after that"},
	{called: "httpBodies8", run: httpBodies(8), about: "the same with eight"},
	{called: "grpcStreams4", run: grpcStreams(4), about: "four otelgrpc streams open, received to their end elsewhere: in the caller's span after that"},
	{called: "grpcStreams8", run: grpcStreams(8), about: "the same with eight"},
	{called: "pipeline4", run: pipeline(4), about: "a stage that starts four spans which the next stage ends: in both stages"},
	{called: "pipeline8", run: pipeline(8), about: "the same with eight"},
	{called: "newRootElsewhere", steps: "+a +b^a 2-b =a _ =a -a", about: "in the outer span, after another goroutine has ended the `WithNewRoot` span"},

	{run: httpConnContext, about: "http.Server.ConnContext starts a span for each connection: in handlers, and on the connection's goroutine after End"},
	{run: httpConnContextChild, about: "the same with otelhttp: in the handler's span"},
	{run: httpConnContextAccept, about: "the same: in Accept, after the span of the newest connection has ended"},
	{run: acceptLoop, about: "a loop with a root for each item, ended by a handler: in the handler, and in the loop while the handler works"},
	{run: acceptLoopAttach, about: "the same loop with `spanctx.Attach(context.Background())` after handing over: nothing in the loop"},
	{run: acceptLoopStartInside, about: "the same loop, where the handler starts the span: nothing in the loop"},
	{called: "acceptLoopAfter", steps: "+a +b +c +d +e 2-e = 2-d = 2-c = 2-b = 2-a =", about: "in the loop, after the newest span has ended elsewhere while older ones are open: nothing"},
	{called: "dispatchLoop", steps: "+old +a 2+x<a 2=x 2-x 2= 2-a 2= = +b 2+y<b 2=y 2-y 2= 2-b 2= = 3-old", about: "a loop that hands items with a root to a pool: in the worker's child, and nothing in the loop after the item's end"},
	{called: "dispatchLoopAttach", steps: "+old @ +a @ 2@a 2=a 2! 2-a 2= = +b @ 2@b 2=b 2! 2-b 2= = 3-old", about: "the same with Attach in the worker and `spanctx.Attach(context.Background())` in the loop"},

	{called: "dispatcherOthers", steps: "2+p 2+q +a<p =a 3-a = _ = +b<q =b 3-b = _ = 2-p 2-q", about: "a dispatcher starts children in other requests' contexts, ended elsewhere: nothing after that"},
	{called: "dispatcherOthersRequest", steps: "+p 2+a<p 2=a 3-a 2= 2_ 2= =p 2+b<p 2=b 3-b 2= 2_ 2= =p -p", about: "the same: in the request, while and after the dispatcher does so"},
	{called: "dispatcherInSpan", steps: "2+p 2+q +own =own +a<p =a 3-a = _ = +b<q =b 3-b = _ = -own = 2-p 2-q", about: "the same in a span of the dispatcher's own: nothing after the child, until the next Start"},
	{called: "dispatcherInSpanRefresh", steps: "2+p 2+q +own =own +a<p =a 3-a ~own =own _ =own +b<q =b 3-b ~own =own _ =own -own = 2-p 2-q", about: "the same, after `spanctx.Refresh` with the dispatcher's context: in its span"},
	{called: "rootInsideElsewhere", steps: "+own =own +a =a 2-a = _ = -own =", about: "in a span, after a root with another context has ended elsewhere: nothing"},
	{called: "rootInsideElsewhereRefresh", steps: "+own =own +a =a 2-a ~own =own _ =own -own =", about: "the same, after `spanctx.Refresh` with the span's context: in the span"},

	{run: unsampledGoroutine, about: "a goroutine started for an unsampled root inside a span: that span is inherited"},
	{run: unsampledGoroutineGo, about: "the same with `spanctx.Go` and the unsampled context: nothing"},
	{run: unsampledGoroutineRecorded, about: "the same with `spanctx.RecordUnsampled`: in the unsampled span"},
	{run: unsampledParentElsewhere, about: "a child of an unsampled child ended elsewhere: in the grandparent, or nothing"},
	{run: unsampledParentElsewhereRefresh, about: "the same, after `spanctx.Refresh` with the grandparent's context"},

	{called: "attachedEndsElsewhere", steps: "2+a @a =a 3-a = _ = ! =", about: "a pool worker whose attached root ends elsewhere: nothing"},
	{called: "attachedChildEndsElsewhere", steps: "2+p 3+c<p @c =c 4-c =p _ =p ! = 2-p", about: "a pool worker whose attached child ends elsewhere: in the child's parent"},
	{called: "attachedEndsAttach", steps: "+own 2+a @a 3-a @own =own ! ! =own -own", about: "a goroutine in a span whose attached root ends elsewhere, after Attach of its own span"},
	{called: "watchdogEnded", steps: "+a +b<a 2-a -a =b _ =b -b =", about: "an inner span left open, after an outer one that a watchdog had ended first: in the inner one"},
	{called: "watchdogEndedAttach", steps: "+a +b<a 2-a -a @ = _ = -b =", about: "the same, after `spanctx.Attach(context.Background())`: nothing"},
	{called: "overlappingSiblings", steps: "+p +a<p +b<p =b -a =b -b =p -p", about: "work for the first of two open siblings: in the second one, which started last"},
	{called: "overlappingSiblingsAttach", steps: "+p +a<p +b<p @a =a ! =b -a =b -b =p -p", about: "the same with Attach of the first one"},
	{called: "eventLoop", steps: "+a +b @a =a ! =b @b =b ! =b @a =a ! =b @b =b ! =b @a =a -a = ! =b -b =", about: "a loop that starts spans and attaches them at each event: in them, and between events in the last one that it started"},
	{called: "eventLoopAttach", steps: "+a @ +b @ @a =a ! = @b =b ! = @a =a ! = @b =b ! = @a =a -a = ! = -b =", about: "the same with `spanctx.Attach(context.Background())` after each Start: between events nothing"},
}

// opener starts an operation with its own span. It returns the context of that span, and a function
// that ends the operation and the span.
type opener func(ctx context.Context) (inside context.Context, end func())

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
	r.stayIn(ctx)
	span.End()
	r.out()
}

func plainSiblings(n int) func(*run) { return func(r *run) { r.inFlight(n, r.child) } }

// opening opens a response, and closes its body at the end.
func (r *run) opening(client *http.Client, address string) opener {
	return func(ctx context.Context) (context.Context, func()) {
		response := r.open(ctx, client, address) //nolint:bodyclose // The returned function closes it.
		return response.Request.Context(), func() { _ = response.Body.Close() }
	}
}

func httpBodies(n int) func(*run) {
	return func(r *run) {
		server, client := r.serve(1, http.HandlerFunc(answer))
		client.Transport = r.transport(client.Transport)
		for range 2 {
			r.inFlight(n, r.opening(client, server.URL))
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
					drain(stream)
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
			r.stayOut()
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
		r.stayOut()
	})
}

func acceptLoopStartInside(r *run) {
	var handlers sync.WaitGroup
	for range 4 {
		handlers.Go(func() {
			r.stayInNew(r.tracer, context.Background())
			r.out()
		})
		r.out()
	}
	handlers.Wait()
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
		twice(f)
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
	twice(func() { after(ctx) })
	unsampled.End()
	root.End()
}

func unsampledParentElsewhere(r *run) { r.unsampledParent(r.either) }
func unsampledParentElsewhereRefresh(r *run) {
	r.unsampledParent(func(ctx context.Context) {
		spanctx.Refresh(ctx)
		r.in(ctx)
	})
}
