// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command quickstart demonstrates what a profiler reads from a service that publishes its process
// context and spans.
//
//	quickstart                    # the demo: starts the service, reads and records it with otelctx, and ends it
//	quickstart -serve             # only the service, which sends itself requests, until SIGINT or SIGTERM
//	quickstart -serve -load 0     # the same without its own requests; -load sets the number of clients that send them
//
// The code that your own service needs is in telemetry.go: two options and a span processor. The
// rest is an ordinary HTTP service, instrumented by otelhttp, that sends itself requests.
//
// With -serve, the command prints exactly two lines to standard output: pid=N and url=URL, the address
// for requests. It prints them once the context is published and the service answers.
//
// If OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, the service exports its
// spans by OTLP over HTTP. Otherwise it drops them when they end. Profilers can read the process
// context and the active spans in both cases.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	serveOnly := flag.Bool("serve", false, "run only the service, until SIGINT or SIGTERM")
	clients := flag.Int("load", 2, "with -serve: the number of clients in the service that send it requests")
	otelctx := flag.String("otelctx", "otelctx", "the otelctx command that the demo runs")
	profile := flag.String("profile", "", "the file that the demo records to, profile.pb.gz in a new directory by default")
	duration := flag.Duration("duration", 10*time.Second, "how long the demo records")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *serveOnly {
		err = serve(ctx, os.Stdout, *clients)
	} else {
		err = runDemo(ctx, os.Stdout, *otelctx, *profile, *duration)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}
