// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profiler tests otelctx's publisher and reader with each other and with the OpenTelemetry
// eBPF profiler's reader, across processes. Every reader must see exactly what was published, even
// while the publisher replaces it and when either side is killed.
//
// v0.0.202633 is the newest version whose dependencies the module proxy has, and goes with Collector
// 0.162. After it, package processcontext is process/processcontext, and its Read is Resolve. When
// upgrading, change this package, package benchmarks and benchmarks/soak, five files in all.
package profiler
