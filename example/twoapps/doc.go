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
