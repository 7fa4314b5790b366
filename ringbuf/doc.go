// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ringbuf publishes active spans without the OpenTelemetry SDK, in rings of slots that
// external profilers read:
//
//	ring, err := ringbuf.New()
//	...
//	ring.Store(&ringbuf.Span{TraceID: traceID, SpanID: spanID}) // when the span starts
//	ring.Clear()                                                // when it ends
//
// Package reader finds such a ring and reads the spans of all threads. A [View] reads a single slot.
//
// Each thread or, if the ring is configured so, each goroutine publishes its active span in one
// slot. The slot's index is the thread's or goroutine's id modulo the capacity.
//
// A write allocates nothing, takes no lock and never waits. Writers that share a slot never mix
// their spans: while one of them writes the slot, the others give up after a few attempts, and the
// slot ends up with that writer's span or with none.
//
// Package spanctx writes such slots for the spans of a TracerProvider. Its slots refer to cells in
// the process's span table, from which readers learn whether a span has ended. A slot written by
// this package refers to no cell: it publishes its span until a thread or goroutine that uses the same
// slot calls [Ring.Store] or [Ring.Clear]. Call Clear when a span ends, on the goroutine that published
// it.
//
// # Slot format
//
// Layout 2, the default, has slots of 64 bytes that record their owner. Slots with space for
// attributes are larger. Layout 1 has slots of 32 bytes, for readers that support only the first
// design of Datadog's OTEL context storage. docs/wire-format.md describes the bytes.
//
// # Lifetime
//
// A ring occupies address space for its header and all its slots (capacity times slot size) until
// the process ends, even after [Ring.Close], because writers do not check whether the ring is
// closed. Create one ring per process, not one per task.
//
// # Platforms
//
// The package does not depend on the OpenTelemetry API. It works on Linux, on amd64 and arm64;
// elsewhere [New] returns an error that wraps [errors.ErrUnsupported]. A [View] works on every
// platform, because the caller supplies the memory that it reads.
package ringbuf
