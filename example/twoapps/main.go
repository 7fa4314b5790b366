// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command twoapps is one HTTP server that hosts two applications, shop and blog, and distinguishes
// them in its telemetry. The attribute http.app is set once for each request, on the request's
// context. It then appears on all spans, log records and measurements of the request, whichever
// library makes them. It is also published with each span, for profilers.
//
//	twoapps              # serves 2 requests for shop and 1 for blog, and ends
//	twoapps -requests 10 # 10 times as many
//	twoapps -requests 0  # runs until it is interrupted: something to profile
//
// Both applications call a third service, auth, by HTTP. It runs in the same server, but has no
// http.app, because that is not propagated.
//
// At the end the command prints a table of the telemetry that it has recorded. If
// OTEL_EXPORTER_OTLP_ENDPOINT is set, it also exports the telemetry by OTLP over HTTP.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	requests := flag.Int("requests", 1, "how many requests each user sends; 0 runs until interrupted")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *requests)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "twoapps:", err)
		os.Exit(1)
	}
}

// run serves the applications while each user sends the given number of requests, or until ctx
// is done, and prints the collected telemetry.
func run(ctx context.Context, stdout io.Writer, requests int) (err error) {
	t, err := newTelemetry(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.shutdown(ctx)) }()
	if err := serve(ctx, t, requests); err != nil {
		return err
	}
	rows, err := t.report.rows(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	return writeRows(stdout, rows)
}

// serve runs the server until all requests have been answered. Users run concurrently.
func serve(ctx context.Context, t *telemetry, requests int) (err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	handler, err := newServer(t, url)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		// Shutdown waits for handlers that have written their response but have not returned.
		err = errors.Join(err, server.Shutdown(context.WithoutCancel(ctx)))
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
	}()
	users := []string{"/shop/?user=ann", "/shop/?user=bob", "/blog/?user=ann"}
	asked := make(chan error, len(users))
	for _, page := range users {
		go func() { asked <- ask(ctx, url+page, requests) }()
	}
	for range users {
		err = errors.Join(err, <-asked)
	}
	return err
}

// ask sends a number of requests to url, one after the other. If requests is 0, it continues until ctx
// is done.
func ask(ctx context.Context, url string, requests int) error {
	for i := 0; (i < requests || requests == 0) && ctx.Err() == nil; i++ {
		// Complete a request that has started, even if ctx is done meanwhile.
		if err := get(context.WithoutCancel(ctx), http.DefaultClient, url); err != nil {
			return err
		}
	}
	return nil
}
