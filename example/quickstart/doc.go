// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command quickstart demonstrates what a profiler reads from a service that publishes its process
// context and spans.
//
//	quickstart                    # the demo: starts the service, reads and records it with otelctx, ends it
//	quickstart -serve             # only the service, which sends itself requests, until SIGINT or SIGTERM
//	quickstart -serve -load 0     # the same without its own requests; -load is the number of clients that send them
//
// The code that your own service needs is in telemetry.go: two options and a span processor. The
// rest is an ordinary HTTP service, instrumented by otelhttp, that sends itself requests.
//
// With -serve, the first line on standard output is pid=N, the second url=URL, the address for
// requests. They are printed once the context is published and the service answers, and nothing
// else follows.
//
// Spans are created in either case. They are exported by OTLP over HTTP if
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, and dropped otherwise.
// The process context needs no collector.
package main
