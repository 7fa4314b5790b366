// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cells keeps one cell for each live span of the process, in memory that other
// processes read.
//
// A span's cell stays at one place for the span's whole life. A [Ref] names the cell, for
// this one life: a number and a version. Whatever shows the span holds its Ref, and one
// compare-and-swap of the cell's version ([Table.End]) makes the span over everywhere. So
// nobody keeps a list of the places that show a span, and a span that never ends costs its
// cell and nothing else.
//
// # Who may do what
//
// A goroutine that reserves a cell has it to itself until it commits it. Everybody may
// read a cell at any time: what was read counts if the version is the same afterwards
// ([Table.Load]). Everybody may end a span; the one whose compare-and-swap succeeds frees
// the cell.
//
// # Where cells come from
//
// Each P has a few free cells, last in, first out, since those are in the processor's
// cache. Other cells go to a queue, first in, first out. So the cell of a span that ended
// on another goroutine describes that span for a while. When there is no free cell left,
// the oldest of eight spans is evicted. A span that its own goroutine still shows is
// spared if another one of the eight is not shown.
//
// # How a span is found by its id
//
// Each P has a small table of the spans that were started on it, each entry a Ref. A live
// span whose entry is needed for another one moves to a table that all share.
//
// It does not know on which carriers a span is shown, nor which goroutines are in it.
package cells
