// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package names stores the names of spans in memory that other processes can read. It stores each
// name only once.
//
// A name gets a number when it is first used, and keeps that number. Cells and goroutine records
// contain the number, so a span with a known name costs a lookup but no copy. An entry of the table
// is complete before its number is published, and never changes afterwards. So readers may cache
// it.
//
// The memory is bounded: once the table is full, new names get no number and are only counted.
//
// Names are never removed, even if no live span has the name.
package names
