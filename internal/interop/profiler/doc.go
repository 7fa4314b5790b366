// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profiler tests otelctx's publisher and reader against each other and against
// the OpenTelemetry eBPF profiler's reader, across processes. Every reader must see
// exactly what was published, also while it is being replaced and when either side is
// killed.
package profiler
