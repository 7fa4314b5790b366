// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cells describes each live span of the process in one cell, in memory that other
// processes read.
//
// A span has the same cell from Start to End. A [Ref] names the cell during that time. It consists of
// the cell's number and a generation. Every place that publishes the span holds its Ref, and one
// compare-and-swap of the cell's version ([Table.End]) ends the span in all places. So no list of
// places is needed, and a span that never ends occupies only its cell.
//
// # Concurrency
//
// A goroutine that reserves a cell owns it until it commits the cell. Any goroutine may read a cell at
// any time. The data is valid if the version is the same afterwards ([Table.Load]). Any goroutine may
// end a span, and the goroutine whose compare-and-swap succeeds frees the cell.
//
// # Allocation
//
// Each P has a small stack of free cells (last in, first out), which are likely to be in the CPU
// cache. All other free cells are in a shared queue (first in, first out), so that the cell of a
// span that another goroutine ended still describes that span for a while. When no cell is free,
// the table compares eight spans and evicts the oldest. It evicts a span last if the goroutine that
// started it is still in it.
//
// # Lookup by id
//
// Each P has a small hash table of the spans started on it, whose entries are Refs. When another
// span needs the entry of a live span, the live span moves to a shared hash table.
//
// The package does not know where a span is published, nor which goroutines are in it.
package cells
