// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profcheck stands in for a package that a test of the OpenTelemetry eBPF
// profiler imports, and that is not to be had from the module proxy. Nothing that is
// compiled here uses it: without it `go mod tidy` would not end.
package profcheck
