// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ring writes the slots of a ring. It claims a slot, counts the write, stores the
// span and lets go. So a slot is written whole or not at all, and readers can tell.
//
// A writer turns in_use from 0 to 1 by compare-and-swap, and in the same step counts seq
// up. If another writer holds the slot it retries a few times and then gives up. The span
// is missing there, which is better than wrong, and nothing ever waits. It stores the
// fields, and with one last store of the state word gives the slot free. A reader that
// finds in_use 0 and the same seq before and after it has read the fields has read the
// fields of one write.
//
// Call all functions that write while pinned ([goruntime.Pin]). A goroutine that moved
// between reading its thread id and the last store would write the slot of another
// thread.
//
// [Positions] is the writer's own note of what each goroutine was shown in last.
//
// It does not know the SDK, nor why a goroutine is in a span.
package ring
