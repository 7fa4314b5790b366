// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package boottime reads CLOCK_BOOTTIME, the clock that timestamps process contexts. It counts
// nanoseconds since the machine started, including suspension, and is the same in every process of
// a time namespace.
//
// The package imports no other package of otelctx.
package boottime
