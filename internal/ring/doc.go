// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ring writes the slots of a ring, so that readers never see a slot that is half written. A
// write claims the slot, counts itself, stores the span and releases the slot.
//
// A writer changes in_use from 0 to 1 by compare-and-swap and increments seq in the same step. If
// another writer holds the slot, it retries a few times and then gives up: a missing span is better
// than a wrong one, and no writer ever waits. It stores the fields and releases the slot with one
// last store of the state word. A reader that finds in_use 0 and the same seq before and after
// reading the fields has read the fields of one write.
//
// Writing functions must be called while pinned ([goruntime.Pin]). A goroutine that moved between
// reading its thread id and the last store would write the slot of another thread.
//
// The package does not depend on the SDK.
package ring
