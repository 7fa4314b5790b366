// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cells publishes the live spans of the process in memory that other processes can read.
// Each span has its own cell.
//
// A span keeps its cell from Start to End. During that time a [Ref], which consists of the cell's
// number and a generation, identifies the span. Every other place that publishes the span only
// stores its Ref. So one compare-and-swap of the cell's version ([Table.End]) ends the span
// everywhere, and nobody has to keep a list of these places. A span that never ends occupies only
// its cell.
//
// # Concurrency
//
// A goroutine that reserves a cell owns it until it commits the cell. Any goroutine may read a cell
// at any time. What it has read is valid if the version has not changed meanwhile ([Table.Load]).
// Any goroutine may end a span, and the goroutine whose compare-and-swap succeeds frees the cell.
//
// # Allocation
//
// Each P has a small stack of free cells (last in, first out), which are likely to be in the CPU
// cache. All other free cells are in a shared queue (first in, first out). If a span is ended by a
// goroutine other than its starter, the cell goes to the queue, so that it still describes the span
// for a while. When no cell is free, the table compares eight spans and evicts the oldest. Spans
// are evicted last if the goroutine that started them is still in them.
//
// # Lookup by id
//
// Each P has a small hash table with the Refs of the spans started on it. If a new span needs the
// entry of a live span, the live span moves to a shared hash table.
//
// The package does not know where a span is published, nor which goroutines are in it.
package cells
