// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ringbuf is a ring of slots in shared sight: each thread, or each
// goroutine, has a slot at its id modulo the capacity, and shows there which span
// is active on it. External profilers read the slots without the process's help;
// see [View].
//
// A write takes a few nanoseconds, allocates nothing, takes no lock and waits for
// nothing. A slot is written whole or not at all: threads whose ids share a slot
// never mix.
//
// The package knows nothing of OpenTelemetry's API. It works on Linux, on amd64 and
// arm64; elsewhere [New] returns an error that wraps [errors.ErrUnsupported].
package ringbuf
