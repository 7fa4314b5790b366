// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/otelctx/otelctx/spanctx"
)

// httpPatterns lists patterns with net/http and otelhttp.
var httpPatterns = []pattern{
	{run: httpServer1, about: "otelhttp handler, HTTP/1"},
	{run: httpServer1TLS, about: "otelhttp handler, HTTP/1 over TLS"},
	{run: httpServer2, about: "otelhttp handler, HTTP/2 over TLS"},
	{run: httpServer1After, about: "outer middleware after the otelhttp handler, HTTP/1"},
	{run: httpServer2After, about: "the same, HTTP/2"},
	{run: httpServerChild, about: "a child span in the handler, and after it"},
	{run: httpServerStream, about: "a handler that flushes several times"},
	{run: httpServerPanic, about: "outer middleware that recovers what the handler panics with"},
	{run: httpHijack, about: "a goroutine on a hijacked connection, after the handler"},
	{run: httpTimeoutHandler, about: "in http.TimeoutHandler inside of otelhttp"},
	{run: httpTimeoutExpired, about: "a handler that goes on after http.TimeoutHandler has given up"},
	{run: httpClient, about: "otelhttp.Transport: after Do, while the body is open, in the client's span"},
	{run: httpClientAfterBody, about: "the caller's span, after the body was closed"},
	{run: httpClientBodyElsewhere, about: "the caller's span, after another goroutine has closed the body"},
	{run: httpClientBodyLeft, about: "after the caller's span, with the body left open"},
	{run: httpClientCancelled, about: "the caller's span, after a request that was cancelled"},
	{run: httpInnerTransport, about: "a transport inside of otelhttp.Transport"},
	{run: httpDial, about: "DialContext, on the Transport's goroutine for it"},
	{run: httpConnLoops1, about: "HTTP/1 TLS client connection goroutines, after the request that dialled"},
	{run: httpConnLoops2, about: "the same, HTTP/2"},
	{run: httpConnLoops1Detached, about: "the same, HTTP/1, from the first request on, where DialContext calls `spanctx.Attach(context.Background())`"},
	{run: httpConnLoops2Detached, about: "the same, HTTP/2"},
	{run: httpDialContext1, about: "the same with `spanctx.DialContext`, HTTP/1: while it dials, and from the first request on"},
	{run: httpDialContext2, about: "the same, HTTP/2"},
	{run: httpTraceCallback, about: "httptrace GotFirstResponseByte on the connection's goroutine, in later requests"},
	{run: httpReverseProxy, about: "ReverseProxy: Rewrite, ModifyResponse and the backend's handler"},
	{run: httpReverseProxyAfter, about: "middleware of the proxy after ServeHTTP of ReverseProxy, inside of otelhttp"},
}

// serve starts a server with a handler, and returns it with a client that has its own connections.
// version is 1 or 2 for HTTP/1 or HTTP/2 with TLS, and 0 for HTTP/1 without TLS.
func (r *run) serve(version int, handler http.Handler) (*httptest.Server, *http.Client) {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.EnableHTTP2 = version == 2
	if version == 0 {
		server.Start()
	} else {
		server.StartTLS()
	}
	return server, server.Client()
}

// requests sends a handler some requests over one connection.
func (r *run) requests(version int, handler http.Handler) {
	server, client := r.serve(version, handler)
	for range 4 {
		r.get(context.Background(), client, server.URL)
	}
	client.CloseIdleConnections()
	server.Close()
}

// get sends a request and reads the response.
func (r *run) get(ctx context.Context, client *http.Client, address string) {
	response := r.open(ctx, client, address)
	_, _ = io.Copy(io.Discard, response.Body)
	must(response.Body.Close())
}

func (*run) open(ctx context.Context, client *http.Client, address string) *http.Response {
	request := check(http.NewRequestWithContext(ctx, http.MethodGet, address, nil))
	return check(client.Do(request))
}

// traced is a handler with a span for each request.
func (r *run) traced(handler http.HandlerFunc) http.Handler {
	return otelhttp.NewHandler(handler, "request", otelhttp.WithTracerProvider(r.provider), otelhttp.WithPropagators(r.propagator))
}

// transport is a transport with a span for each request.
func (r *run) transport(base http.RoundTripper) http.RoundTripper {
	return otelhttp.NewTransport(base, otelhttp.WithTracerProvider(r.provider), otelhttp.WithPropagators(r.propagator))
}

func (r *run) handle(_ http.ResponseWriter, request *http.Request) {
	r.stayIn(request.Context())
}

func httpServer1(r *run)    { r.requests(0, r.traced(r.handle)) }
func httpServer1TLS(r *run) { r.requests(1, r.traced(r.handle)) }
func httpServer2(r *run)    { r.requests(2, r.traced(r.handle)) }

// around returns a handler that works before and after it calls a traced handler.
func (r *run) around() http.Handler {
	inner := r.traced(func(http.ResponseWriter, *http.Request) { block() })
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.out()
		inner.ServeHTTP(w, request)
		r.stayOut()
	})
}

func httpServer1After(r *run) { r.requests(1, r.around()) }
func httpServer2After(r *run) { r.requests(2, r.around()) }

func httpServerChild(r *run) {
	r.requests(1, r.traced(func(_ http.ResponseWriter, request *http.Request) {
		ctx, child := r.start(request.Context(), "child")
		r.in(ctx)
		block()
		child.End()
		r.in(request.Context())
	}))
}

func httpServerStream(r *run) {
	r.requests(2, r.traced(func(w http.ResponseWriter, request *http.Request) {
		for range 3 {
			check(w.Write([]byte("part")))
			must(http.NewResponseController(w).Flush())
			r.in(request.Context())
		}
	}))
}

func httpServerPanic(r *run) {
	inner := r.traced(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	r.requests(1, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		func() {
			defer func() { _ = recover() }()
			inner.ServeHTTP(w, request)
		}()
		r.stayOut()
	}))
}

func httpHijack(r *run) {
	ended, done := make(chan struct{}), make(chan struct{})
	inner := r.traced(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		must(err)
		go func() {
			defer close(done)
			<-ended
			r.stayOut()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = conn.Close()
		}()
	})
	server, client := r.serve(0, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		inner.ServeHTTP(w, request)
		close(ended)
	}))
	r.get(context.Background(), client, server.URL)
	<-done
	server.Close()
}

func httpTimeoutHandler(r *run) {
	r.requests(1, r.traced(http.TimeoutHandler(http.HandlerFunc(r.handle), time.Minute, "").ServeHTTP))
}

func httpTimeoutExpired(r *run) {
	ended, done := make(chan struct{}), make(chan struct{})
	slow := http.TimeoutHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer close(done)
		<-ended
		r.stayOut()
	}), time.Millisecond, "")
	inner := r.traced(slow.ServeHTTP)
	server, client := r.serve(1, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		inner.ServeHTTP(w, request)
		close(ended)
	}))
	r.get(context.Background(), client, server.URL)
	<-done
	client.CloseIdleConnections()
	server.Close()
}

// answer sends a body of 1,000 bytes.
func answer(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) }

// calls starts a server and calls it several times with a traced client.
func (r *run) calls(version int, call func(client *http.Client, address string)) {
	server, client := r.serve(version, http.HandlerFunc(answer))
	base := client.Transport
	client.Transport = r.transport(base)
	for range 4 {
		call(client, server.URL)
	}
	if idle, ok := base.(*http.Transport); ok {
		idle.CloseIdleConnections()
	}
	server.Close()
}

func httpClient(r *run) {
	r.calls(1, func(client *http.Client, address string) {
		ctx, span := r.root("job")
		response := r.open(ctx, client, address)
		r.stayIn(response.Request.Context())
		must(response.Body.Close())
		span.End()
	})
}

func httpClientAfterBody(r *run) {
	r.calls(2, func(client *http.Client, address string) {
		r.job(func(ctx context.Context) { r.get(ctx, client, address) })
	})
}

func httpClientBodyElsewhere(r *run) {
	r.calls(1, func(client *http.Client, address string) {
		ctx, span := r.root("job")
		response := r.open(ctx, client, address)
		r.elsewhere(func() { _ = response.Body.Close() })
		r.stayIn(ctx)
		span.End()
	})
}

func httpClientBodyLeft(r *run) {
	r.calls(1, func(client *http.Client, address string) {
		ctx, span := r.root("job")
		response := r.open(ctx, client, address)
		span.End()
		r.stayOut()
		must(response.Body.Close())
	})
}

func httpClientCancelled(r *run) {
	stuck := make(chan struct{})
	server, client := r.serve(1, http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		select {
		case <-request.Context().Done():
		case <-stuck:
		}
	}))
	client.Transport = r.transport(client.Transport)
	for range 4 {
		ctx, span := r.root("job")
		limited, cancel := context.WithTimeout(ctx, 300*time.Microsecond)
		request := check(http.NewRequestWithContext(limited, http.MethodGet, server.URL, nil))
		if response, err := client.Do(request); err == nil {
			must(response.Body.Close())
		}
		cancel()
		r.stayIn(ctx)
		span.End()
	}
	close(stuck)
	server.Close()
}

// roundTripper makes a function an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func httpInnerTransport(r *run) {
	server, client := r.serve(1, http.HandlerFunc(answer))
	base := client.Transport
	client.Transport = r.transport(roundTripper(func(request *http.Request) (*http.Response, error) {
		r.in(request.Context())
		response, err := base.RoundTrip(request)
		r.in(request.Context())
		return response, err
	}))
	for range 4 {
		r.get(context.Background(), client, server.URL)
	}
	server.Close()
}

// dialFunc is the type of http.Transport.DialContext.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func plainly(dial dialFunc) dialFunc { return dial }

// dialing returns a server and a client for it. The client dials with a function wrapped by around,
// and dial may wrap each new connection.
func (r *run) dialing(version int, handler http.Handler, around func(dialFunc) dialFunc, dial func(context.Context, net.Conn) net.Conn) (*httptest.Server, *http.Client) {
	server, client := r.serve(version, handler)
	base := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: version == 2,
		DialContext: around(func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return dial(ctx, conn), nil
		}),
	}
	client.Transport = r.transport(base)
	return server, client
}

func httpDial(r *run) {
	server, client := r.dialing(1, http.HandlerFunc(answer), plainly, func(ctx context.Context, conn net.Conn) net.Conn {
		r.stayIn(ctx)
		return conn
	})
	ctx, span := r.root("job")
	r.get(ctx, client, server.URL)
	span.End()
	client.CloseIdleConnections()
	server.Close()
}

// loopConn is a connection that calls work when it is read or written, on the goroutines that a client
// keeps for this purpose.
type loopConn struct {
	net.Conn

	// since is the number of the first request during which the connection calls work. now is the
	// number of the current request.
	since int64
	now   *atomic.Int64
	// writes says that the client has a goroutine that writes to the connection. In HTTP/2 it has
	// none: the goroutine of each request writes to the connection.
	writes bool
	work   func()
}

func (c loopConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.now.Load() >= c.since {
		c.work()
	}
	return n, err
}

func (c loopConn) Write(b []byte) (int, error) {
	if c.writes && c.now.Load() >= c.since {
		c.work()
	}
	return c.Conn.Write(b)
}

// connLoops sends requests over a loopConn. The connection works only from the second request on. With
// early it also works during the first request and while that request dials.
func (r *run) connLoops(version int, early bool, around func(dialFunc) dialFunc) {
	var now atomic.Int64
	server, client := r.dialing(version, http.HandlerFunc(answer), around, func(_ context.Context, conn net.Conn) net.Conn {
		if early {
			r.out()
		}
		since := now.Load()
		if !early {
			since++
		}
		return loopConn{conn, since, &now, version == 1, r.out}
	})
	for range 4 {
		r.apart(func() {
			ctx, span := r.root("job")
			r.get(ctx, client, server.URL)
			span.End()
		})
		now.Add(1)
	}
	now.Store(-1)
	client.CloseIdleConnections()
	server.Close()
}

func httpConnLoops1(r *run) { r.connLoops(1, false, plainly) }
func httpConnLoops2(r *run) { r.connLoops(2, false, plainly) }

// detached wraps dial so that the goroutine leaves its span before it dials, and does not return to
// it.
func detached(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		spanctx.Attach(context.Background())
		return dial(ctx, network, address)
	}
}

func httpConnLoops1Detached(r *run) { r.connLoops(1, true, detached) }
func httpConnLoops2Detached(r *run) { r.connLoops(2, true, detached) }

func httpDialContext1(r *run) { r.connLoops(1, true, spanctx.DialContext) }
func httpDialContext2(r *run) { r.connLoops(2, true, spanctx.DialContext) }

func httpTraceCallback(r *run) {
	server, client := r.serve(1, http.HandlerFunc(answer))
	base := client.Transport.(*http.Transport)
	base.MaxConnsPerHost = 1
	client.Transport = r.transport(base)
	for i := range 5 {
		r.apart(func() {
			ctx, span := r.root("job")
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() {
				if i > 0 {
					r.out()
				}
			}})
			r.get(ctx, client, server.URL)
			span.End()
		})
	}
	client.CloseIdleConnections()
	server.Close()
}

// proxied runs a traced proxy that forwards requests to a traced backend.
func (r *run) proxied(proxy func(*httputil.ReverseProxy) http.HandlerFunc) {
	backend, client := r.serve(1, r.traced(func(w http.ResponseWriter, request *http.Request) {
		r.in(request.Context())
		answer(w, request)
	}))
	address := check(url.Parse(backend.URL))
	front, user := r.serve(1, r.traced(proxy(&httputil.ReverseProxy{
		Transport: r.transport(client.Transport),
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(address)
			r.in(request.In.Context())
		},
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode != http.StatusOK {
				return errors.New(response.Status)
			}
			r.in(response.Request.Context())
			return nil
		},
	})))
	for range 4 {
		r.get(context.Background(), user, front.URL)
	}
	front.Close()
	backend.Close()
}

func httpReverseProxy(r *run) {
	r.proxied(func(p *httputil.ReverseProxy) http.HandlerFunc { return p.ServeHTTP })
}

func httpReverseProxyAfter(r *run) {
	r.proxied(func(p *httputil.ReverseProxy) http.HandlerFunc {
		return func(w http.ResponseWriter, request *http.Request) {
			p.ServeHTTP(w, request)
			r.stayIn(request.Context())
		}
	})
}
