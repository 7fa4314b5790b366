// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ringbuf writes and reads rings of slots, for programs without OpenTelemetry's
// SDK. Each thread, or each goroutine, has a slot at its id modulo the capacity, and shows
// there which span is active on it. External profilers read the slots without the
// process's help; see [View].
//
// A write allocates nothing, takes no lock and waits for nothing. A slot is written whole
// or not at all: threads whose ids share a slot never mix. If another writer holds on to
// the slot, the slot shows that writer's span or nothing.
//
// Package spanctx writes the same slots for the spans of a TracerProvider. Its slots name a
// cell of the process's span table, which tells whether the span is over. Slots that this
// package writes name no cell, unless Span.Ref is set. They show a span until the next
// [Ring.Store] or [Ring.Clear] of the same thread or goroutine. So call Clear when a span
// ends, on the goroutine that shows it.
//
// # What a slot looks like
//
// Layout 2, the default, has slots of 64 bytes and says whose they are. With room for
// attributes they are larger. [Info] and [View.Fields] say where everything is. Numbers
// are in the byte order of the machine. An identifier is the number that its bytes make in
// big-endian order, and a trace id is two such numbers. Attributes are in the encoding of
// [OTEP 4947]. Layout 1 has slots of 32 bytes, for readers that know the first design of
// Datadog's OTEL context storage.
//
// # Lifetime
//
// The addresses of a ring are its header and capacity times the size of a slot. They
// are never used for anything else, also after [Ring.Close], because writers do not
// check whether the ring is still there. Make a ring once in the life of a process, not
// once for each task.
//
// # Where it works
//
// The package knows nothing of OpenTelemetry's API. It works on Linux, on amd64 and
// arm64; elsewhere [New] returns an error that wraps [errors.ErrUnsupported].
// A [View] works everywhere: it is up to its [Memory] to read that of another process.
//
// [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
package ringbuf
