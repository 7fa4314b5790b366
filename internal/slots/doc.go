// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package slots writes the slots of a ring: it claims a slot, counts the write,
// stores the span and lets go, so that a slot is written whole or not at all and
// readers can tell. It knows nothing of where the memory comes from.
//
// # Protocol
//
// A writer turns in_use from 0 to 1 by compare-and-swap, and in the same step
// counts seq up. If another writer has the slot it tries a few times and then gives
// up: the span is missing there, which is better than wrong, and nothing ever
// waits. It stores the fields, and with one last store of the state word gives the
// slot free, in_use 0. A reader that finds in_use 0 and the same seq before and
// after it has read the fields has read one write's.
//
// A slot that is found by thread belongs to one thread nearly always, and
// compare-and-swap would be half of what a write costs. So the first thread that
// stores there has the slot to itself, and does without: it only looks whether that
// still holds. Others may have the slot show nothing, which is one
// compare-and-swap of the span's id. To store there they first make the slot a shared
// one, by the kernel's help (internal/membarrier) and for good; in a shared slot all
// claim. Where the kernel has no such help all slots are shared ones.
//
// Nothing may preempt a writer between the look at its thread id and its last
// store: on another thread it would write into a stranger's slot. The fast path is
// one assembly function; Go preempts those never, since it has no maps of their
// frames. The others are pinned.
package slots
