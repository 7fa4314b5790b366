// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/wire"
)

// Layout1 reports whether slots are of layout 1.
func (r *Ring) Layout1() bool { return r.layout1 }

// Load returns the span in the slot for this id, without attributes, and the goroutine and thread
// that published it. ok is false if the slot has no span or is being written. In layout 1, which
// records neither goroutine nor thread, owner and tid are 0.
//
// In layout 2 all results come from a single write, which Load verifies with the slot's write
// counter. Layout 1 has none, so Load reads the fields twice, which makes a mixture of two writes
// unlikely but not impossible.
func (r *Ring) Load(id uint64) (s Span, owner uint64, tid uint32, ok bool) {
	slot := r.slot(id)
	for range attempts {
		state := atomic.LoadUint64(&slot.State)
		if state&wire.SlotInUse != 0 {
			continue
		}
		s.TraceIDHigh, s.TraceIDLow = atomic.LoadUint64(&slot.TraceIDHigh), atomic.LoadUint64(&slot.TraceIDLow)
		s.SpanID = atomic.LoadUint64(&slot.SpanID)
		if r.layout1 {
			ok = s.TraceIDHigh == atomic.LoadUint64(&slot.TraceIDHigh) && s.TraceIDLow == atomic.LoadUint64(&slot.TraceIDLow) &&
				s.SpanID == atomic.LoadUint64(&slot.SpanID)
		} else {
			s.Ref, s.TraceFlags = atomic.LoadUint64(&slot.Ref), uint8(state>>wire.SlotTraceFlagsShift)
			owner, tid, ok = atomic.LoadUint64(&slot.Owner), atomic.LoadUint32(&slot.TID), true
		}
		if ok && atomic.LoadUint64(&slot.State) == state {
			// A writer that could not claim the slot may have cleared only the span id.
			return s, owner, tid, s.SpanID != 0
		}
	}
	return Span{}, 0, 0, false
}
