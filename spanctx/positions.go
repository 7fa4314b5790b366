// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/ordered"
)

// positions has the ref of the span that each goroutine was shown in last, 0 for none. It is
// what this package itself goes by, whichever carriers are on.
//
// A goroutine stores its own entry, and others may load it. Goroutines whose ids are equal
// modulo the size share an entry: the one that stored last has it. Its two words check each
// other, so that an entry of which two goroutines have stored half each is nobody's.
type positions [1 << 16]struct{ ref, check uint64 }

// check returns what stands beside a ref in the entry of a goroutine. It is never 0 for an id
// that there is, so that an entry that was never stored is nobody's.
func check(goid uint64, ref cells.Ref) uint64 { return ^goid ^ uint64(ref)*0x9E3779B97F4A7C15 }

// load returns what a goroutine was shown in last. It reports false if that is not known: the
// goroutine may have inherited what it is in.
func (p *positions) load(goid uint64) (ref cells.Ref, known bool) {
	e := &p[goid%uint64(len(p))]
	ref = cells.Ref(atomic.LoadUint64(&e.ref))
	if atomic.LoadUint64(&e.check) != check(goid, ref) {
		return 0, false
	}
	return ref, true
}

// store notes what the calling goroutine is shown in.
func (p *positions) store(goid uint64, ref cells.Ref) {
	e := &p[goid%uint64(len(p))]
	ordered.Put(&e.ref, uint64(ref))
	ordered.Put(&e.check, check(goid, ref))
}
