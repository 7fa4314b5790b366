// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command waiting is a shop with three faults. docs/waiting.md shows how to find them with otelctx.
//
//	waiting
//
// The first line on standard output is pid=N. The shop sends itself requests until its standard input
// ends.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// shop serves prices, stock and pictures.
type shop struct {
	tracer trace.Tracer
	client *http.Client
	// suppliers is the URL of a backend that answers requests for pictures and hangs in all others.
	suppliers string

	mu     sync.Mutex
	prices map[string]int
}

// price has the first fault: it holds a lock while it refreshes the prices.
func (s *shop) price(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(r.Context())
	_, _ = fmt.Fprintln(w, s.prices["apple"]) // The client may have disconnected.
}

// refresh takes as long as a query for today's prices would.
func (s *shop) refresh(ctx context.Context) {
	_, span := s.tracer.Start(ctx, "refresh prices")
	defer span.End()
	time.Sleep(20 * time.Millisecond)
	s.prices["apple"]++
}

// stock has the second fault: it waits for its supplier without a time limit.
func (s *shop) stock(w http.ResponseWriter, r *http.Request) {
	response, err := s.get(r.Context(), "/stock")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(w, response.Body)
}

// picture has the third fault: it does not close the body of a response, so the client span never
// ends.
func (s *shop) picture(w http.ResponseWriter, r *http.Request) {
	response, err := s.get(context.WithoutCancel(r.Context()), "/picture") //nolint:bodyclose // This is the fault.
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	_, _ = fmt.Fprintln(w, response.Status)
}

func (s *shop) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.suppliers+path, nil)
	if err != nil {
		return nil, err
	}
	return s.client.Do(request)
}

// supplier answers requests for pictures, and lets all other requests hang.
func supplier(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/picture" {
		<-r.Context().Done()
		return
	}
	_, _ = w.Write(make([]byte, 1<<20))
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "waiting:", err)
		os.Exit(1)
	}
}

func run() error {
	provider := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "shop"))),
		spanctx.WithPublishing(),
	)
	suppliers, err := serve(http.HandlerFunc(supplier))
	if err != nil {
		return err
	}
	s := &shop{
		tracer: provider.Tracer("shop"), suppliers: suppliers, prices: map[string]int{},
		client: &http.Client{Transport: otelhttp.NewTransport(http.DefaultTransport, otelhttp.WithTracerProvider(provider))},
	}
	mux := http.NewServeMux()
	for pattern, handler := range map[string]http.HandlerFunc{"GET /price": s.price, "GET /stock": s.stock, "GET /picture": s.picture} {
		mux.Handle(pattern, otelhttp.NewHandler(handler, pattern, otelhttp.WithTracerProvider(provider)))
	}
	url, err := serve(mux)
	if err != nil {
		return err
	}
	for range 8 {
		go repeat(url+"/price", 5*time.Millisecond)
	}
	go repeat(url+"/stock", time.Second)
	go repeat(url+"/picture", 10*time.Second)
	fmt.Printf("pid=%d\n", os.Getpid())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func serve(h http.Handler) (url string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), nil
}

// repeat sends requests forever, each on its own connection, and pauses after each.
func repeat(url string, pause time.Duration) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		if response, err := client.Get(url); err == nil { //nolint:noctx // It runs as long as the program.
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		time.Sleep(pause)
	}
}
