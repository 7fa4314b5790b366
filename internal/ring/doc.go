// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ring writes the active span of each thread or goroutine to a slot of a ring. Readers
// never see a half-written slot.
//
// A writer claims a slot with one compare-and-swap of its state word, which changes in_use from 0
// to 1 and increments seq. It then stores the fields. A last store of the state word sets in_use to
// 0 again and releases the slot. A writer that finds the slot claimed retries a few times and then
// gives up: a missing span is better than a wrong one, and writers must not wait.
//
// A reader reads the state word, the fields, and the state word again. If in_use is 0 and seq is
// unchanged, the fields come from a single write. There is one exception: a writer that gives up
// clears the span id without a claim. Layout 1 has no seq, so its readers read the fields twice
// instead.
//
// Callers of [Ring.Store] must be pinned ([goruntime.Pin]). Otherwise the goroutine could move to
// another thread after it has read its thread id, and would then write to the slot of a thread that
// it no longer runs on.
//
// The package does not depend on the SDK.
package ring
