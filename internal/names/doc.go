// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package names stores the names of spans in memory that other processes read, each name once.
//
// A name gets a number when it is first used, and keeps it. Cells and goroutine records contain
// the number, so that a span with a known name costs one lookup and no copy. An entry is
// complete before its number is published, and never changes afterwards, so readers may cache it.
//
// The memory is bounded: once [Capacity] is reached, further names get no number, and are counted.
//
// The package does not know which spans are live.
package names
