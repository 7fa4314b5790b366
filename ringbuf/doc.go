// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ringbuf publishes active spans without the OpenTelemetry SDK, in rings of slots that
// external profilers read. It also reads such rings. Each thread, or each goroutine, publishes its
// active span in one slot, whose index is its id modulo the capacity. Readers need no help from the
// process; see [View].
//
// A write allocates nothing, takes no lock and never waits. A slot is written completely or not at
// all: threads that share a slot never mix their spans. If another writer holds the slot, the slot
// ends up with that writer's span or with none.
//
// Package spanctx writes the same slots for the spans of a TracerProvider. Each of its slots
// references a cell of the process's span table, which says whether the span has ended. Slots
// written by this package reference no cell unless Span.Ref is set: they publish a span until the
// same thread or goroutine calls [Ring.Store] or [Ring.Clear] again. So call Clear when a span
// ends, on the goroutine that published it.
//
// # Slot format
//
// Layout 2, the default, has slots of 64 bytes that record their owner. Slots with space for
// attributes are larger. [Info] and [View.Fields] describe the layout. Numbers are in the byte
// order of the machine. A span id is stored as the number that its bytes form in big-endian order,
// a trace id as two such numbers. Attributes are in the encoding of [OTEP 4947]. Layout 1 has slots
// of 32 bytes. It is for readers that support only the first design of Datadog's OTEL context
// storage.
//
// # Lifetime
//
// A ring takes address space for its header and for all slots (capacity times slot size). Its
// addresses are never reused, not even after [Ring.Close], because writers do not check whether the
// ring is closed. So create one ring per process, not one per task.
//
// # Platforms
//
// The package does not depend on the OpenTelemetry API. It works on Linux, on amd64 and arm64;
// elsewhere [New] returns an error that wraps [errors.ErrUnsupported]. A [View] works on every
// platform, because the caller supplies the [Memory] that reads the other process.
//
// [OTEP 4947]:
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
package ringbuf
