// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gorecord publishes the span of a goroutine through the goroutine's profiler
// labels. The labels move with the goroutine from thread to thread, and goroutines that it
// starts inherit them.
//
// The label pointer of the goroutine points to a [Record], which begins with the runtime's own
// label map. So all readers of Go's labels (runtime/pprof, the OpenTelemetry eBPF profiler, Parca,
// Pyroscope) find the user's labels and two more, trace_id and span_id. The record of OTEP 4947
// follows, and then the span's attributes, which are also labels, within the limits of profilers.
// When the span ends, [Record.End] clears the valid flag of that record in place, so that goroutines
// which still have the pointer are no longer in the span.
//
// The package does not depend on the SDK, and does not know when spans start and end. To it, a Ref
// is just a number.
package gorecord
