// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// The goroutine table: a header and entries indexed by goroutine id. Each entry has the active span
// of a goroutine.
const (
	// GoroutinesMagic is the first word of a goroutine table: "OTGT", most significant byte first.
	GoroutinesMagic   = 0x4F544754
	GoroutinesLayout1 = 1

	GoroutinesHeaderSize = 128
	GoroutineEntrySize   = 16
	// GoroutinesCapacity is the number of entries in this layout. Goroutines whose ids are equal
	// modulo the capacity share an entry.
	GoroutinesCapacity = 1 << 16

	// GoroutinesName is the name of the mapping.
	GoroutinesName = "OTELCTX_GOROUTINES"
)

// GoroutineEntry holds the active span of a goroutine. Only that goroutine writes the entry, unless
// another goroutine shares it. If both write at the same time, the entry may end up with one word
// from each. Readers detect this, because Check then fits neither goroutine.
type GoroutineEntry struct {
	_ structs.HostLayout

	// ActiveSpan is the [ActiveSpan] that the goroutine has stored last.
	ActiveSpan uint64
	// Check is the result of [GoroutineCheck] for the goroutine and its active span.
	Check uint64
}

// ActiveSpan is the active span of a goroutine: the Ref of a span, or 0 for none. Its lowest bit is
// set if the goroutine entered the span by Attach instead of starting it.
type ActiveSpan uint64

const attached ActiveSpan = 1

// AttachedTo returns the active span of a goroutine that has entered the span r by Attach. It returns
// 0 if r is 0.
func AttachedTo(r Ref) ActiveSpan {
	if r == 0 {
		return 0
	}
	return ActiveSpan(r) | attached
}

// Ref returns the Ref of the span, or 0 if there is none.
func (a ActiveSpan) Ref() Ref { return Ref(a &^ attached) }

// Attached reports whether the goroutine entered the span by Attach.
func (a ActiveSpan) Attached() bool { return a&attached != 0 }

// Moved returns the active span of a goroutine that moves from a to the related span r. The result is
// attached if a is. Moved returns 0 if r is 0.
func (a ActiveSpan) Moved(r Ref) ActiveSpan {
	if r == 0 {
		return 0
	}
	return ActiveSpan(r) | a&attached
}

const (
	// spread is the distance between the entries of goroutines with consecutive ids, which often
	// run at the same time. It spans two cache lines to avoid false sharing.
	spread = 8
	groups = GoroutinesCapacity / spread
	// addressBits is the number of bits of an address, excluding the lowest three, which are 0.
	addressBits = 45
	// checkFactor spreads the bits of an active span over the check word.
	checkFactor = 0x9E3779B97F4A7C15
)

// GoroutineIndex returns the index of the goroutine's entry in the table.
func GoroutineIndex(goid uint64) int {
	return int(goid%groups*spread + goid/groups%spread)
}

// GoroutineCheck returns the check word for a goroutine, given its id and the address
// of its g. The word encodes the whole address and 19 bits of the id. Together with the index of
// the entry, these bits give the id modulo 2^35.
func GoroutineCheck(goid, g uint64, active ActiveSpan) uint64 {
	return ^(g>>3&(1<<addressBits-1) | goid/GoroutinesCapacity<<addressBits) ^ uint64(active)*checkFactor
}

// Goroutine decodes the owner of e, the entry at this index: its id modulo 2^35 and the address of
// its g. If two goroutines share the entry, the result may match neither, so the caller must
// compare the id with the one in the g ([SameGoroutine]).
func (e *GoroutineEntry) Goroutine(index int) (goid, g uint64) {
	owner := ^(e.Check ^ e.ActiveSpan*checkFactor)
	low := uint64(index)/spread + uint64(index)%spread*groups
	return owner>>addressBits*GoroutinesCapacity + low, owner & (1<<addressBits - 1) << 3
}

// SameGoroutine reports whether goid, the full id of a goroutine, matches modulo, an id that
// [GoroutineEntry.Goroutine] has returned.
func SameGoroutine(goid, modulo uint64) bool { return (goid^modulo)<<(64-35) == 0 }

const (
	_ = -(unsafe.Sizeof(GoroutineEntry{}) ^ GoroutineEntrySize)
	_ = -(unsafe.Offsetof(GoroutineEntry{}.Check) ^ 8)
)

// GoroutinesIn returns the header at the start of b, which the caller has mapped, and the entries
// that follow it. It panics if b is too short or not 8-byte aligned.
func GoroutinesIn(b []byte) (*TableHeader, []GoroutineEntry) {
	return tableIn[GoroutineEntry](b, GoroutinesHeaderSize)
}
