// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profiler tests otelctx's publisher and reader with each other and with the OpenTelemetry
// eBPF profiler's reader, across processes. Every reader must see exactly what was published, even
// while the publisher replaces it and when either side is killed.
package profiler
