// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profcheck stands in for a package that a test of the OpenTelemetry eBPF
// profiler imports and that the module proxy does not have. Nothing that is compiled
// here uses it: without it `go mod tidy` would not end.
package profcheck
