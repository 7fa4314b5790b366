// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package slots

import "github.com/otelctx/otelctx/internal/wire"

// Supported says whether rings can be written on this platform.
const Supported = true

// store claims the slot of the calling thread or goroutine, fills it, gives it free
// and returns its number, or busy if it was claimed. r must be fast.
//
// Sound for the reasons that goruntime gives for its own loads through these
// offsets; the slot is inside of r's memory for every id, which stays mapped. Go
// does not preempt assembly, so that the goroutine is on the same thread from the
// first instruction to the last. What would make it unsound: a runtime that
// preempts assembly functions.
//
//go:noescape
func store(r *Ring, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64) (slot, goid uint64)

// replace claims a slot of layout 2 and, if it shows the span with the id shown, has it
// show another; owner, thread and m stay. outcome is 1 if it did, 0 if the slot shows
// something else, or busy if it was claimed. Like store it is not preempted.
//
//go:noescape
func replace(at *wire.Slot2, shown, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64) (outcome uint64)

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
