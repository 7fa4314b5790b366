// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/wire"
)

// Positions has the Ref of the span that each goroutine was shown in last, 0 for none. It is
// the writer's own: no other process finds it.
//
// A goroutine stores its own entry, and others may load it. Goroutines whose ids are equal
// modulo the size share an entry: the one that stored last has it. Its two words check each
// other. So an entry of which two goroutines have stored half each belongs to neither.
type Positions struct{ entries []entry }

type entry struct{ ref, check uint64 }

// positions is how many entries there are.
const positions = 1 << 16

// NewPositions returns a table in which nothing is stored.
func NewPositions() *Positions { return &Positions{make([]entry, positions)} }

// check returns what stands beside a Ref in the entry of a goroutine. An entry that was never
// stored is all zeros, and matches no id that there is.
func check(goid uint64, ref wire.Ref) uint64 { return ^goid ^ uint64(ref)*0x9E3779B97F4A7C15 }

// entry returns that of a goroutine. Goroutines that run at the same time often have ids that follow
// one another. So their entries are not beside each other, or the processors would pass one cache
// line back and forth. The factor is odd, so that ids which are not equal have entries of their own.
func (p *Positions) entry(goid uint64) *entry {
	return &p.entries[goid*0x9E3779B97F4A7C15%positions]
}

// Load returns what a goroutine was shown in last. It reports false if that is not known: the
// goroutine may have inherited what it is in.
func (p *Positions) Load(goid uint64) (ref wire.Ref, known bool) {
	e := p.entry(goid)
	ref = wire.Ref(atomic.LoadUint64(&e.ref))
	if atomic.LoadUint64(&e.check) != check(goid, ref) {
		return 0, false
	}
	return ref, true
}

// Store notes what the calling goroutine, which has this id, is shown in.
func (p *Positions) Store(goid uint64, ref wire.Ref) {
	e := p.entry(goid)
	ordered.Put(&e.ref, uint64(ref))
	ordered.Put(&e.check, check(goid, ref))
}
