// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command quickstart shows what a profiler sees of a service that publishes its
// process context.
//
//	quickstart                    # the demo: starts the service, reads and records it with otelctx, ends it
//	quickstart -serve             # only the service, which sends itself requests, until SIGINT or SIGTERM
//	quickstart -serve -load 0     # the same without requests of its own; -load says how many clients send them
//
// What a service of your own needs is in telemetry.go: two options and a span
// processor. The rest is an ordinary HTTP service, instrumented by otelhttp, that
// sends itself requests.
//
// With -serve, the first line on standard output is pid=N, the second url=URL, which is
// where the service takes requests. They come when the context is published and the
// service answers, and nothing else follows.
//
// Spans are made in either case. They are exported by OTLP over HTTP if
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says where to. Else
// they go nowhere, which the process context does not mind: it needs no collector.
package main
