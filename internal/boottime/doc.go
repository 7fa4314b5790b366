// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package boottime reads CLOCK_BOOTTIME, the clock that timestamps process contexts. It counts
// nanoseconds since the machine started, including the time it was suspended. All processes in a
// time namespace see the same time.
//
// The package imports no other package of otelctx.
package boottime
