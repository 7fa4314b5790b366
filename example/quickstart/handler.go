// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"
)

// workPath is the path of requests that compute digests. The query parameter digests sets their
// number.
const workPath = "/work"

// These are the paths where requests hang.
const (
	checkoutPath = "/checkout"
	cartPath     = "/cart"
)

// fewDigests is the default number of digests of a request, and maxDigests is the largest.
const (
	fewDigests = 50
	maxDigests = 500
)

// answer is the service's response.
type answer struct {
	// Request is the number of the request. The first one has number 1.
	Request int64    `json:"request"`
	Digests []string `json:"digests"`
}

// newHandler returns the service's handler. Each request to one of its paths has a span. payment is the URL of the payment
// server.
func newHandler(provider trace.TracerProvider, payment string) http.Handler {
	var requests atomic.Int64
	tracer := provider.Tracer("quickstart")
	work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		count := fewDigests
		if asked := r.FormValue("digests"); asked != "" {
			var err error
			if count, err = strconv.Atoi(asked); err != nil || count < 1 || count > maxDigests {
				http.Error(w, "digests must be from 1 to "+strconv.Itoa(maxDigests), http.StatusBadRequest)
				return
			}
		}
		query(r.Context(), tracer)
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer{Request: n, Digests: digests(r.Context(), tracer, n, count)}); err != nil {
			return // The client has disconnected.
		}
	})
	mux := http.NewServeMux()
	// The mux is outermost, so that the route is known when a span starts and is part of its name.
	c := &cart{payment: payment, client: http.Client{Transport: otelhttp.NewTransport(http.DefaultTransport, otelhttp.WithTracerProvider(provider))}}
	mux.Handle("GET "+checkoutPath, otelhttp.NewHandler(http.HandlerFunc(c.checkout), "checkout", otelhttp.WithTracerProvider(provider)))
	mux.Handle("GET "+cartPath, otelhttp.NewHandler(http.HandlerFunc(c.show), "cart", otelhttp.WithTracerProvider(provider)))
	mux.Handle("GET "+workPath, otelhttp.NewHandler(work, "work", otelhttp.WithTracerProvider(provider)))
	return mux
}

// query blocks, as a query to a database would.
func query(ctx context.Context, tracer trace.Tracer) {
	_, span := tracer.Start(ctx, "query")
	defer span.End()
	time.Sleep(2 * time.Millisecond)
}

// digests keeps the CPU busy: each digest is computed from the JSON of the previous ones.
func digests(ctx context.Context, tracer trace.Tracer, request int64, count int) []string {
	_, span := tracer.Start(ctx, "digests")
	defer span.End()
	chain := answer{Request: request}
	for range count {
		b, err := json.Marshal(chain)
		if err != nil {
			span.RecordError(err)
			break
		}
		sum := sha256.Sum256(b)
		chain.Digests = append(chain.Digests, hex.EncodeToString(sum[:]))
	}
	return chain.Digests
}

// cart is a shopping cart with a fault: checkout holds the lock while it calls another server, and has no timeout.
type cart struct {
	payment string
	client  http.Client

	mu   sync.Mutex
	paid bool
}

// checkout pays for the cart. The client gets the response header before the payment.
func (c *cart) checkout(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	c.paid = c.pay(r.Context()) == nil
}

// pay waits for the payment server, as long as the client of checkout does.
func (c *cart) pay(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.payment, nil)
	if err != nil {
		return err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// show shows whether the cart is paid. The client gets the response header before the lock is free.
func (c *cart) show(w http.ResponseWriter, _ *http.Request) {
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintln(w, "paid:", c.paid) // The client may have disconnected.
}
