// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package interop tests otelctx with real counterparts: the eBPF profiler's code, the OpenTelemetry
// Collector, containers, and profiling backends. The tests are a separate module, so that users of
// otelctx do not get these dependencies.
package interop
