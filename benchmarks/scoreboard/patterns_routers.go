// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"github.com/coder/websocket"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/gofiber/fiber/v2"
	"github.com/graph-gophers/graphql-go"
	graphqltrace "github.com/graph-gophers/graphql-go/trace/otel"
	"github.com/labstack/echo/v4"
	"github.com/quic-go/quic-go/http3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"gorm.io/gorm"
	"gorm.io/gorm/utils/tests"
)

// routerPatterns lists patterns with routers, and with protocols and query languages over HTTP.
var routerPatterns = []pattern{
	{run: chiRouter, about: "chi: in a handler with a child span by middleware, and in the middleware after it"},
	{run: chiTimeout, about: "chi's Timeout and Recoverer: in the handler"},
	{run: ginRouter, about: "gin: in a handler with a child span by middleware, and in the middleware after it"},
	{run: ginGoroutine, about: "gin: a goroutine with a copied context, after the request: nothing"},
	{run: echoRouter, about: "echo: in a handler with a child span by middleware, and in the middleware after it"},
	{run: fiberRouter, about: "fiber on fasthttp's reused goroutines: in a handler's span, and after it"},
	{run: http3Server, about: "quic-go: otelhttp handler, HTTP/3"},
	{run: http3ServerAfter, about: "the same: outer middleware after the otelhttp handler"},
	{run: http3Client, about: "otelhttp.Transport over HTTP/3: in the caller's span, after the body was closed"},
	{run: http3Bodies, about: "four HTTP/3 responses open, their bodies closed elsewhere: in the caller's span after that"},
	{run: websocketMessages, about: "in a root for each message of a websocket, and in the connection's span between them"},
	{run: websocketOutlives, about: "a websocket's goroutine after the handler: nothing, and a message's own span"},
	{run: connectUnary, about: "connect-go with otelconnect: in the handler, and in the caller's span after the call"},
	{run: connectStream, about: "the same, server stream: in the handler, between messages, and in the caller's span after it"},
	{run: connectLeftOpen, about: "the same with streams left open, closed elsewhere: in the caller's span after that"},
	{run: graphqlFields, about: "graphql-go: in resolvers on goroutines of their own, and in the request after them"},
	{run: gormQuery, about: "gorm with a span by callbacks: in the driver inside of otelsql, and in the caller's span after it"},
	{run: grpcLabels, about: "gRPC with GRPC_GO_SERVER_GOROUTINE_LABELS: in the handler and a goroutine of it", env: "GRPC_GO_SERVER_GOROUTINE_LABELS=all", alone: true},
	{run: grpcLabelsWorkers, about: "the same on a server with NumStreamWorkers", env: "GRPC_GO_SERVER_GOROUTINE_LABELS=all", alone: true},
}

// middle is the part of a middleware that does not depend on the router. It starts a child span around
// the rest of the chain.
func (r *run) middle(ctx context.Context, next func(context.Context)) {
	inner, span := r.start(ctx, "middleware")
	next(inner)
	r.in(inner)
	span.End()
	r.in(ctx)
}

func (r *run) chi(use ...func(http.Handler) http.Handler) {
	router := chi.NewRouter()
	router.Use(use...)
	router.Get("/", r.handle)
	r.requests(1, r.traced(router.ServeHTTP))
}

func chiRouter(r *run) {
	r.chi(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			r.middle(request.Context(), func(ctx context.Context) { next.ServeHTTP(w, request.WithContext(ctx)) })
		})
	})
}

func chiTimeout(r *run) { r.chi(middleware.Recoverer, middleware.Timeout(time.Minute)) }

func (r *run) gin(handlers ...gin.HandlerFunc) {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.GET("/", handlers...)
	r.requests(1, r.traced(router.ServeHTTP))
}

func ginRouter(r *run) {
	r.gin(func(c *gin.Context) {
		r.middle(c.Request.Context(), func(ctx context.Context) {
			c.Request = c.Request.WithContext(ctx)
			c.Next()
		})
	}, func(c *gin.Context) { r.handle(nil, c.Request) })
}

func ginGoroutine(r *run) {
	done := make(chan struct{}, 10)
	r.gin(func(c *gin.Context) {
		request := trace.SpanContextFromContext(c.Request.Context()).SpanID()
		go func(*gin.Context) {
			r.started.awaitEnd(request)
			r.own()
			done <- struct{}{}
		}(c.Copy())
	})
	for range 4 {
		<-done
	}
}

func echoRouter(r *run) {
	router := echo.New()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			r.middle(c.Request().Context(), func(ctx context.Context) {
				c.SetRequest(c.Request().WithContext(ctx))
				err = next(c)
			})
			return err
		}
	})
	router.GET("/", func(c echo.Context) error {
		r.handle(nil, c.Request())
		return c.NoContent(http.StatusOK)
	})
	r.requests(1, r.traced(router.ServeHTTP))
}

func listen() net.Listener {
	return check(new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"))
}

func fiberRouter(r *run) {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	app.Get("/", func(c *fiber.Ctx) error {
		r.stayInNew(r.tracer, c.UserContext())
		r.out()
		return nil
	})
	listener := listen()
	served := make(chan error)
	go func() { served <- app.Listener(listener) }()
	client := &http.Client{Transport: new(http.Transport)}
	for range 4 {
		r.get(context.Background(), client, "http://"+listener.Addr().String())
	}
	client.CloseIdleConnections()
	must(app.Shutdown())
	must(<-served)
}

// serve3 starts a server for HTTP/3 and returns its address and a client for it.
func (*run) serve3(handler http.Handler) (address string, client *http.Client, stop func()) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	packets := check(new(net.ListenConfig).ListenPacket(context.Background(), "udp", "127.0.0.1:0"))
	server := &http3.Server{TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: certified.TLS.Certificates}), Handler: handler}
	go func() { _ = server.Serve(packets) }()
	transport := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	return "https://" + packets.LocalAddr().String(), &http.Client{Transport: transport}, func() {
		must(transport.Close())
		must(server.Close())
		_ = packets.Close()
	}
}

func (r *run) requests3(handler http.Handler) {
	address, client, stop := r.serve3(handler)
	for range 4 {
		r.get(context.Background(), client, address)
	}
	stop()
}

func http3Server(r *run)      { r.requests3(r.traced(r.handle)) }
func http3ServerAfter(r *run) { r.requests3(r.around()) }

func http3Client(r *run) {
	address, client, stop := r.serve3(http.HandlerFunc(answer))
	client.Transport = r.transport(client.Transport)
	for range 4 {
		r.job(func(ctx context.Context) { r.get(ctx, client, address) })
	}
	stop()
}

func http3Bodies(r *run) {
	address, client, stop := r.serve3(http.HandlerFunc(answer))
	client.Transport = r.transport(client.Transport)
	r.inFlight(4, r.opening(client, address))
	stop()
}

// socket sends three messages over a WebSocket and waits for an answer to each. handle gets the
// server's end of the connection, inside the span of the request.
func (r *run) socket(handle func(ctx context.Context, conn *websocket.Conn)) {
	server, client := r.serve(0, r.traced(func(w http.ResponseWriter, request *http.Request) {
		handle(request.Context(), check(websocket.Accept(w, request, nil)))
	}))
	ctx := context.Background()
	conn, _, err := websocket.Dial(ctx, server.URL, &websocket.DialOptions{HTTPClient: client}) //nolint:bodyclose // The package says that it need not be closed.
	must(err)
	for range 3 {
		must(conn.Write(ctx, websocket.MessageText, nil))
		_, _, err := conn.Read(ctx)
		must(err)
	}
	_ = conn.CloseNow()
	server.Close()
}

// messagesOf works for each message of conn, and answers it.
func messagesOf(conn *websocket.Conn, work func()) {
	ctx := context.Background()
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			return
		}
		work()
		_ = conn.Write(ctx, websocket.MessageText, nil)
	}
}

func websocketMessages(r *run) {
	r.socket(func(ctx context.Context, conn *websocket.Conn) {
		messagesOf(conn, func() {
			message, span := r.start(ctx, "message", trace.WithNewRoot())
			r.in(message)
			span.End()
			r.in(ctx)
		})
	})
}

func websocketOutlives(r *run) {
	r.socket(func(ctx context.Context, conn *websocket.Conn) {
		go func() {
			r.started.awaitEnd(trace.SpanContextFromContext(ctx).SpanID())
			messagesOf(conn, r.own)
		}()
	})
}

// connected is a traced client of package connect.
type connected = *connect.Client[emptypb.Empty, emptypb.Empty]

// connecting starts a service of package connect and runs jobs, each in its own span, that call it.
func (r *run) connecting(job func(ctx context.Context, unary, stream connected)) {
	spans := connect.WithInterceptors(check(otelconnect.NewInterceptor(
		otelconnect.WithTracerProvider(r.provider), otelconnect.WithPropagator(r.propagator), otelconnect.WithTrustRemote())))
	mux := http.NewServeMux()
	mux.Handle("/scoreboard/Unary", connect.NewUnaryHandler("/scoreboard/Unary",
		func(ctx context.Context, _ *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
			r.in(ctx)
			return connect.NewResponse(new(emptypb.Empty)), nil
		}, spans))
	mux.Handle("/scoreboard/Stream", connect.NewServerStreamHandler("/scoreboard/Stream",
		func(ctx context.Context, _ *connect.Request[emptypb.Empty], stream *connect.ServerStream[emptypb.Empty]) error {
			for range 3 {
				r.in(ctx)
				if err := stream.Send(new(emptypb.Empty)); err != nil {
					return err
				}
			}
			return nil
		}, spans))
	server, client := r.serve(2, mux)
	unary := connect.NewClient[emptypb.Empty, emptypb.Empty](client, server.URL+"/scoreboard/Unary", spans)
	stream := connect.NewClient[emptypb.Empty, emptypb.Empty](client, server.URL+"/scoreboard/Stream", spans)
	check(unary.CallUnary(context.Background(), connect.NewRequest(new(emptypb.Empty)))) // connect first
	for range 2 {
		r.job(func(ctx context.Context) { job(ctx, unary, stream) })
	}
	client.CloseIdleConnections()
	server.Close()
}

func connectUnary(r *run) {
	r.connecting(func(ctx context.Context, unary, _ connected) {
		check(unary.CallUnary(ctx, connect.NewRequest(new(emptypb.Empty))))
	})
}

func openStream(ctx context.Context, client connected) *connect.ServerStreamForClient[emptypb.Empty] {
	return check(client.CallServerStream(ctx, connect.NewRequest(new(emptypb.Empty))))
}

func connectStream(r *run) {
	r.connecting(func(ctx context.Context, _, client connected) {
		stream := openStream(ctx, client)
		for stream.Receive() {
			block()
		}
		must(stream.Err())
		must(stream.Close())
	})
}

func connectLeftOpen(r *run) {
	r.connecting(func(ctx context.Context, _, client connected) {
		var streams []*connect.ServerStreamForClient[emptypb.Empty]
		for range 4 {
			streams = append(streams, openStream(ctx, client))
		}
		for _, stream := range streams {
			r.elsewhere(func() {
				for stream.Receive() {
					continue
				}
				_ = stream.Close()
			})
		}
	})
}

// resolver resolves the fields of a GraphQL query. The library resolves each field on its own
// goroutine, because the field's method takes a context.
type resolver struct{ r *run }

func (q resolver) One(ctx context.Context) int32 { return q.resolve(ctx) }
func (q resolver) Two(ctx context.Context) int32 { return q.resolve(ctx) }

func (q resolver) resolve(ctx context.Context) int32 {
	q.r.in(ctx)
	block()
	q.r.in(ctx)
	return 1
}

func graphqlFields(r *run) {
	schema := graphql.MustParseSchema("type Query { one: Int! two: Int! }", &resolver{r},
		graphql.Tracer(&graphqltrace.Tracer{Tracer: r.tracer}))
	r.requests(1, r.traced(func(_ http.ResponseWriter, request *http.Request) {
		if response := schema.Exec(request.Context(), "{ one two }", "", nil); len(response.Errors) > 0 {
			panic(response.Errors[0])
		}
		r.in(request.Context())
	}))
}

func gormQuery(r *run) {
	db := r.database(&connector{exec: r.in})
	orm := check(gorm.Open(tests.DummyDialector{}, &gorm.Config{ConnPool: db}))
	type saved struct{}
	must(orm.Callback().Raw().Before("gorm:raw").Register("scoreboard:start", func(tx *gorm.DB) {
		ctx, span := r.start(tx.Statement.Context, "gorm")
		tx.Statement.Context = context.WithValue(ctx, saved{}, span)
	}))
	must(orm.Callback().Raw().After("gorm:raw").Register("scoreboard:end", func(tx *gorm.DB) {
		tx.Statement.Context.Value(saved{}).(trace.Span).End()
	}))
	for range 4 {
		r.job(func(ctx context.Context) { must(orm.WithContext(ctx).Exec(statement).Error) })
	}
	must(db.Close())
}

// busyGoroutines works in the handler and on a goroutine that it starts.
func (r *run) busyGoroutines(ctx context.Context, _ grpc.ServerStream) error {
	r.in(ctx)
	inside(onGoroutine, func() { r.in(ctx) })
	return nil
}

func grpcLabels(r *run) {
	r.calling(r.busyGoroutines, nil, func(c *rpc, ctx context.Context) {
		c.unary(ctx)
		r.in(ctx)
	})
}

func grpcLabelsWorkers(r *run) {
	r.calling(r.busyGoroutines, []grpc.ServerOption{grpc.NumStreamWorkers(2)}, func(c *rpc, ctx context.Context) {
		c.unary(ctx)
		r.in(ctx)
	})
}
