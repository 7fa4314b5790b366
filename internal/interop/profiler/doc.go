// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profiler tests otelctx's publisher and reader with each other and with the OpenTelemetry
// eBPF profiler's reader, across processes. Every reader must see exactly what was published, even
// while the publisher replaces it and when either side is killed.
//
// The eBPF profiler's version v0.0.202633 is the newest whose dependencies are on the module proxy,
// and matches Collector 0.162. In later versions, package processcontext is process/processcontext,
// and its function Read is Resolve. When upgrading, change this package, package benchmarks and
// benchmarks/soak, five files in all.
package profiler
