// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package slots

import "github.com/otelctx/otelctx/internal/wire"

// Supported says whether rings can be written on this platform.
const Supported = true

// store fills the slot of the calling thread or goroutine and returns its number, or
// Busy if it is not for it to do: if r is not fast, the attributes of s do not fit or
// do not end with a word, somebody else was writing, or the thread has yet to enter.
//
// Sound for the reasons that goruntime gives for its own loads through these
// offsets; the slot is inside of r's memory for every id, which stays mapped. Go
// does not preempt assembly, so that the goroutine is on the same thread from the
// first instruction to the last. What would make it unsound: a runtime that
// preempts assembly functions.
//
//go:noescape
func store(r *Ring, s *Span) (slot, goid uint64)

// swap is store and, which takes a sixth longer, returns the span that the slot has shown
// so far if that was the calling goroutine's, else 0. If it is not over, and that is not 0,
// nothing changes and the slot is Busy.
//
//go:noescape
func swap(r *Ring, s *Span, over uint64) (slot, goid, shown uint64)

// replace has a slot of r show another span if it shows the one with the id shown;
// owner, thread and m stay. outcome is 1 if it did, 0 if the slot shows something else,
// or Busy where store returns that. Like store it is not preempted.
//
//go:noescape
func replace(r *Ring, at *wire.Slot2, shown uint64, s *Span) (outcome uint64)

// fill stores the fields of a slot that the caller has claimed and then, not to be
// seen before them, its state. It is in assembly for its order: on amd64 stores are
// seen in their order anyhow, where Go offers only a locked instruction for each.
//
//go:noescape
func fill(at *wire.Slot2, traceIDHigh, traceIDLow, spanID, localRootSpanID, owner, m uint64, tid uint32, state uint64)

// fill1 is fill for layout 1.
//
//go:noescape
func fill1(at *wire.Slot2, traceIDHigh, traceIDLow, spanID, state uint64)

// fence has the claim of a slot seen before what is stored next; fill has its own.
func fence()
