// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package names stores the names of spans, each name once, in memory that other processes can read.
//
// A name gets a number when it is first used, and keeps it. Cells and goroutine records contain
// the number, so that a span with a known name costs one lookup and no copy. An entry is
// complete before its number is published, and never changes afterwards, so readers may cache it.
//
// The memory is bounded: once the table holds [Capacity] names, new names get no number and are only
// counted.
//
// The package does not know which spans are live.
package names
