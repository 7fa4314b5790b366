// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"
)

// workPath is the service's only path.
const workPath = "/work"

// answer is what the service answers.
type answer struct {
	// Request counts the requests, from 1.
	Request int64    `json:"request"`
	Digests []string `json:"digests"`
}

// newHandler returns the service's handler. Each request is a span.
func newHandler(provider trace.TracerProvider) http.Handler {
	var requests atomic.Int64
	tracer := provider.Tracer("quickstart")
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+workPath, func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		query(r.Context(), tracer)
		w.Header().Set("Content-Type", "application/json")
		// An error means that the client has gone.
		_ = json.NewEncoder(w).Encode(answer{Request: n, Digests: digests(r.Context(), tracer, n)})
	})
	return otelhttp.NewHandler(mux, "http.server", otelhttp.WithTracerProvider(provider))
}

// query blocks, as a query to a database would.
func query(ctx context.Context, tracer trace.Tracer) {
	_, span := tracer.Start(ctx, "query")
	defer span.End()
	time.Sleep(2 * time.Millisecond)
}

// digests keeps the processor busy: each digest is of the JSON of those before.
func digests(ctx context.Context, tracer trace.Tracer, request int64) []string {
	_, span := tracer.Start(ctx, "digests")
	defer span.End()
	chain := answer{Request: request}
	for range 50 {
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
