// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gorecord publishes the active span of a goroutine through the goroutine's profiler
// labels. The labels move with the goroutine from thread to thread, and are inherited by goroutines
// that it starts.
//
// The label pointer of the goroutine points to a [Record], which begins with the runtime's own
// label map. So everything that reads Go's labels (runtime/pprof, the OpenTelemetry eBPF profiler,
// Parca, Pyroscope) finds the user's labels and two more, trace_id and span_id. Behind the label
// map are the thread context record of OTEP 4947 and the span's attributes. The attributes also
// become labels, within the limits of profilers. When the span ends, [Record.End] clears the
// record's valid flag in place. So the span ends for every goroutine that still has the pointer.
//
// The package does not depend on the SDK, and its callers tell it when spans start and end. It
// treats a Ref as a number.
package gorecord
