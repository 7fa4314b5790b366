// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package names keeps the names of spans, each once, in memory that other processes read.
//
// A name gets a number when it is first seen, and keeps it. Cells and goroutine records have
// the number, so that a span with a known name costs one lookup and no copy. An entry is
// complete before its number is published, and never changes after that. Readers may keep
// what they have read.
//
// The memory is bounded: names beyond [Capacity] have no number, and are counted.
//
// It does not know which spans are live: it only numbers names, and shows them to readers.
package names
