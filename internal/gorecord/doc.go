// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gorecord makes a span visible on a goroutine: through the goroutine's
// profiler labels, which move with it from thread to thread and which the
// goroutines that it starts inherit.
//
// The label pointer leads to a [Record]. It begins with the runtime's own label map,
// so that everything which reads Go's labels (runtime/pprof, the OpenTelemetry eBPF
// profiler, Parca, Pyroscope) finds the user's labels and two more, trace_id and
// span_id. Behind that is the record of OTEP 4947, whose valid flag is cleared where
// it stands when the span ends: whoever still has the pointer cannot be taken to be
// in a span that is over. Attributes that are shown with the span follow that record, and
// are labels too as far as profilers read them.
package gorecord
