// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// grpcPatterns lists patterns with gRPC and otelgrpc.
var grpcPatterns = []pattern{
	{run: grpcUnary, about: "unary: in the server's handler, and in the caller's span after the call"},
	{run: grpcUnaryWorkers, about: "the same on a server with NumStreamWorkers"},
	{run: grpcServerAfter, about: "a stats.Handler behind otelgrpc's, after the server's span"},
	{run: grpcServerStream, about: "server stream: in the handler, and in the caller between two Recv"},
	{run: grpcServerStreamAfter, about: "server stream: in the caller's span, after EOF"},
	{run: grpcClientStream, about: "client stream: in the handler, and in the caller between two Send"},
	{run: grpcClientStreamAfter, about: "client stream: in the caller's span, after CloseAndRecv"},
	{run: grpcBidi, about: "bidirectional: in the handler, the caller, and its Recv goroutine"},
	{run: grpcBidiAfter, about: "bidirectional: in the caller's span, after the Recv goroutine has ended the client's"},
	{run: grpcBidiAfterBlocking, about: "the same, after a blocking call"},
	{run: grpcLeftOpen, about: "a loop of jobs, the first of which leaves a stream open: in jobs and between them"},
	{run: grpcConnLoops, about: "client connection goroutines, after the call that dialled"},
	{run: grpcCancelled, about: "the caller's span, after a stream that was cancelled elsewhere"},
}

// rpc is a traced server and a traced client of it.
type rpc struct {
	*run

	server *grpc.Server
	conn   *grpc.ClientConn
}

// method handles a call. stream is nil if the call is unary.
type method func(ctx context.Context, stream grpc.ServerStream) error

// serveRPC starts a server and a client for it. The server has one method of each kind, such as unary
// and bidirectional, and handle implements them all.
func (r *run) serveRPC(handle method, server []grpc.ServerOption, client ...grpc.DialOption) *rpc {
	listener := check(new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"))
	s := grpc.NewServer(append([]grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(r.provider), otelgrpc.WithPropagators(r.propagator)))}, server...)...)
	stream := func(_ any, stream grpc.ServerStream) error { return handle(stream.Context(), stream) }
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "scoreboard", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Unary",
			Handler: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				return new(emptypb.Empty), handle(ctx, nil)
			},
		}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Server", Handler: stream, ServerStreams: true},
			{StreamName: "Client", Handler: stream, ClientStreams: true},
			{StreamName: "Bidi", Handler: stream, ServerStreams: true, ClientStreams: true},
		},
	}, nil)
	go func() { _ = s.Serve(listener) }()
	conn := check(grpc.NewClient(listener.Addr().String(), append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(r.provider), otelgrpc.WithPropagators(r.propagator))),
	}, client...)...))
	return &rpc{r, s, conn}
}

func (r *rpc) close() {
	must(r.conn.Close())
	r.server.Stop()
}

func (r *rpc) unary(ctx context.Context) {
	must(r.conn.Invoke(ctx, "/scoreboard/Unary", new(emptypb.Empty), new(emptypb.Empty)))
}

// open opens a stream, which starts the client's span.
func (r *rpc) open(ctx context.Context, name string, fromServer, fromClient bool) grpc.ClientStream {
	return check(r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: fromServer, ClientStreams: fromClient}, "/scoreboard/"+name))
}

// messages has the methods that a client's and a server's stream have in common.
type messages interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

func send(stream messages) { needOpen(stream.SendMsg(new(emptypb.Empty))) }

// receive receives a message. It returns false if the stream has ended.
func receive(stream messages) bool {
	err := stream.RecvMsg(new(emptypb.Empty))
	needOpen(err)
	return err == nil
}

// drain receives messages until the stream ends.
func drain(stream messages) {
	for receive(stream) {
		continue
	}
}

// needOpen panics if err is an unexpected error. The end and the cancellation of a stream are
// expected.
func needOpen(err error) {
	if code := status.Code(err); code != codes.Canceled && !errors.Is(err, io.EOF) {
		must(err)
	}
}

// idle handles a call without working. It answers each message of a bidirectional stream, sends three
// messages on a server stream, and sends one answer at the end of a client stream.
func idle(_ context.Context, stream grpc.ServerStream) error {
	if stream == nil {
		return nil
	}
	switch method, _ := grpc.MethodFromServerStream(stream); method {
	case "/scoreboard/Server":
		receive(stream)
		for range 3 {
			send(stream)
		}
	case "/scoreboard/Client":
		drain(stream)
		send(stream)
	default:
		for receive(stream) {
			send(stream)
		}
	}
	return nil
}

// busy is like idle, but works before and after it.
func (r *run) busy(ctx context.Context, stream grpc.ServerStream) error {
	r.in(ctx)
	err := idle(ctx, stream)
	block()
	r.in(ctx)
	return err
}

// calling starts a server and runs jobs, each in its own span, that call it.
func (r *run) calling(handle method, server []grpc.ServerOption, job func(rpc *rpc, ctx context.Context)) {
	c := r.serveRPC(handle, server)
	c.unary(context.Background()) // connect outside of all measured spans
	for range 4 {
		ctx, span := r.root("job")
		job(c, ctx)
		span.End()
	}
	c.close()
}

func quiet(context.Context, grpc.ServerStream) error { return nil }

func grpcUnary(r *run) {
	r.calling(r.busy, nil, func(c *rpc, ctx context.Context) {
		c.unary(ctx)
		r.in(ctx)
	})
}

func grpcUnaryWorkers(r *run) {
	r.calling(r.busy, []grpc.ServerOption{grpc.NumStreamWorkers(2)}, func(c *rpc, ctx context.Context) {
		c.unary(ctx)
		r.in(ctx)
	})
}

// afterEnd is a stats.Handler that works when it is notified of the end of a call.
type afterEnd struct {
	r    *run
	done chan struct{}
}

func (afterEnd) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (afterEnd) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (afterEnd) HandleConn(context.Context, stats.ConnStats)                       {}

func (a afterEnd) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		a.r.out()
		block()
		a.r.out()
		a.done <- struct{}{}
	}
}

func grpcServerAfter(r *run) {
	done := make(chan struct{}, 10)
	r.calling(quiet, []grpc.ServerOption{grpc.StatsHandler(afterEnd{r, done})}, func(c *rpc, ctx context.Context) {
		c.unary(ctx)
		<-done
	})
}

func grpcServerStream(r *run) {
	r.calling(r.busyStream, nil, func(c *rpc, ctx context.Context) {
		stream := c.open(ctx, "Server", true, false)
		send(stream)
		must(stream.CloseSend())
		for range 3 {
			receive(stream)
			r.in(stream.Context())
		}
		receive(stream)
	})
}

// busyStream is like busy for streams, and like idle for unary calls, which only connect.
func (r *run) busyStream(ctx context.Context, stream grpc.ServerStream) error {
	if stream == nil {
		return nil
	}
	return r.busy(ctx, stream)
}

func grpcServerStreamAfter(r *run) {
	r.calling(idle, nil, func(c *rpc, ctx context.Context) {
		stream := c.open(ctx, "Server", true, false)
		send(stream)
		must(stream.CloseSend())
		drain(stream)
		r.stayIn(ctx)
	})
}

func grpcClientStream(r *run) {
	r.calling(r.busyStream, nil, func(c *rpc, ctx context.Context) {
		stream := c.open(ctx, "Client", false, true)
		for range 3 {
			send(stream)
			r.in(stream.Context())
		}
		must(stream.CloseSend())
		receive(stream)
	})
}

func grpcClientStreamAfter(r *run) {
	r.calling(idle, nil, func(c *rpc, ctx context.Context) {
		stream := c.open(ctx, "Client", false, true)
		for range 3 {
			send(stream)
		}
		must(stream.CloseSend())
		receive(stream)
		r.stayIn(ctx)
	})
}

// talk sends three messages on a new stream, and receives the answers on another goroutine. It calls
// each after each message, on either goroutine. It returns when the other goroutine has received the
// end of the stream, which ends the client's span.
func (r *rpc) talk(ctx context.Context, each func(grpc.ClientStream)) {
	stream := r.open(ctx, "Bidi", true, true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for receive(stream) {
			each(stream)
		}
	}()
	for range 3 {
		send(stream)
		each(stream)
	}
	must(stream.CloseSend())
	<-ended
}

func grpcBidi(r *run) {
	r.calling(r.busyStream, nil, func(c *rpc, ctx context.Context) {
		c.talk(ctx, func(stream grpc.ClientStream) { r.in(stream.Context()) })
	})
}

func grpcBidiAfter(r *run) {
	r.calling(idle, nil, func(c *rpc, ctx context.Context) {
		c.talk(ctx, func(grpc.ClientStream) {})
		r.in(ctx)
		r.in(ctx)
	})
}

func grpcBidiAfterBlocking(r *run) {
	r.calling(idle, nil, func(c *rpc, ctx context.Context) {
		c.talk(ctx, func(grpc.ClientStream) {})
		block()
		r.stayIn(ctx)
	})
}

func grpcLeftOpen(r *run) {
	c := r.serveRPC(idle, nil)
	c.unary(context.Background())
	// Cancel the stream with a context that outlives the span in which the stream was opened.
	forever, cancel := context.WithCancel(context.Background())
	for job := range 6 {
		ctx, span := r.root("job")
		if job == 0 {
			open, stop := context.WithCancel(ctx)
			context.AfterFunc(forever, stop)
			c.open(open, "Bidi", true, true)
		} else {
			r.in(ctx)
		}
		span.End()
		r.out()
		block()
	}
	cancel()
	c.close()
}

func grpcConnLoops(r *run) {
	var now atomic.Int64
	c := r.serveRPC(quiet, nil, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		// Work only from the second call on. During the first call, the connection's goroutines may
		// still be in its span, which they inherit.
		return loopConn{conn, 1, &now, true, r.out}, err
	}))
	for range 6 {
		r.apart(func() {
			ctx, span := r.root("job")
			c.unary(ctx)
			span.End()
		})
		now.Add(1)
	}
	now.Store(-1)
	c.close()
}

func grpcCancelled(r *run) {
	r.calling(idle, nil, func(c *rpc, ctx context.Context) {
		cancelled, cancel := context.WithCancel(ctx)
		stream := c.open(cancelled, "Bidi", true, true)
		r.elsewhere(func() {
			cancel()
			_ = stream.RecvMsg(new(emptypb.Empty))
		})
		r.started.awaitEnd(trace.SpanContextFromContext(stream.Context()).SpanID())
		r.stayIn(ctx)
	})
}
