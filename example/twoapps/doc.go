// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command twoapps is one HTTP server that hosts two applications, shop and blog, and
// tells them apart in its telemetry. The attribute http.app is set once for each
// request, on its context. Then it is on all spans, log records and measurements of the
// request, whichever library makes them. It is also published with each span, for
// profilers.
//
//	twoapps              # answers 2 requests for one, 1 for the other, and ends
//	twoapps -requests 10 # 10 times as many
//	twoapps -requests 0  # goes on until it is interrupted: something to profile
//
// Both applications ask a third service, auth, by HTTP. It happens to run in the same
// server, but http.app is not propagated: it does not have it.
//
// At the end it prints what its providers were given. Where OTEL_EXPORTER_OTLP_ENDPOINT
// says so, the same is exported by OTLP over HTTP.
package main
