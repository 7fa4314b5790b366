// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command nocode is a traced HTTP service whose source does not use otelctx. There are three
// Dockerfiles for it: one builds it as it is, one with otelc and one with Orchestrion. The latter two
// tools add otelctx: see docs/no-code.md.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	opts := []trace.TracerProviderOption{trace.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout")))}
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return err
		}
		opts = append(opts, trace.WithBatcher(exporter))
	}
	provider := trace.NewTracerProvider(opts...)
	otel.SetTracerProvider(provider)

	listener, err := net.Listen("tcp", os.Getenv("LISTEN")) // Without LISTEN, use any free port.
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return err
	}
	_, _ = fmt.Printf("http://localhost:%s/pay\n", port)
	mux := http.NewServeMux()
	mux.Handle("GET /pay", otelhttp.NewHandler(http.HandlerFunc(pay), "pay"))
	server := http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx = context.WithoutCancel(ctx)
	return errors.Join(server.Shutdown(ctx), provider.Shutdown(ctx))
}

// pay does some work, part of it in a child span.
func pay(w http.ResponseWriter, r *http.Request) {
	_, span := otel.Tracer("checkout").Start(r.Context(), "sign")
	defer span.End()
	const rounds = 20000
	sum := sha256.Sum256([]byte(r.URL.RawQuery))
	for range rounds {
		sum = sha256.Sum256(sum[:])
	}
	_, _ = hex.NewEncoder(w).Write(sum[:])
}
