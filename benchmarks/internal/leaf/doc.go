// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package leaf is the baseline for benchmarks of package ringbuf: a single assembly function that
// stores the same fields in the slot of the calling thread or goroutine. Unlike a ring, it does not
// prevent concurrent writes to a slot.
package leaf
