// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gorecord makes a span visible on a goroutine through the goroutine's profiler
// labels. The labels move with it from thread to thread, and the goroutines that it
// starts inherit them.
//
// The label pointer leads to a [Record]. It begins with the runtime's own label map. So
// all readers of Go's labels (runtime/pprof, the OpenTelemetry eBPF profiler, Parca,
// Pyroscope) find the user's labels and two more, trace_id and span_id. Behind that is
// the record of OTEP 4947. When the span ends its valid flag is cleared in place. So
// nobody who still has the pointer takes the goroutine to be in a span that is over. The
// span's attributes follow that record. They are labels too, within the limits of
// profilers.
//
// It does not know when spans start and end, nor the SDK. What names a cell is a number to it.
package gorecord
