// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/wire"
)

// Layout1 reports whether slots are of layout 1.
func (r *Ring) Layout1() bool { return r.layout1 }

// Load returns the span that the slot with this id shows, without attributes, and whose slot it is.
// ok is false if it shows none, or is being written. Layout 1 does not say whose slots are: owner
// and tid are 0. All fields are of one write: in layout 2 writes are counted, and in layout 1 two
// looks are equal.
func (r *Ring) Load(id uint64) (s Span, owner uint64, tid uint32, ok bool) {
	at := r.slot(id)
	for range attempts {
		state := atomic.LoadUint64(&at.State)
		if state&wire.SlotInUse != 0 {
			continue
		}
		s.TraceIDHigh, s.TraceIDLow = atomic.LoadUint64(&at.TraceIDHigh), atomic.LoadUint64(&at.TraceIDLow)
		s.SpanID = atomic.LoadUint64(&at.SpanID)
		if r.layout1 {
			ok = s.TraceIDHigh == atomic.LoadUint64(&at.TraceIDHigh) && s.TraceIDLow == atomic.LoadUint64(&at.TraceIDLow) &&
				s.SpanID == atomic.LoadUint64(&at.SpanID)
		} else {
			s.Ref, s.TraceFlags = atomic.LoadUint64(&at.Ref), uint8(state>>wire.SlotTraceFlagsShift)
			owner, tid, ok = atomic.LoadUint64(&at.Owner), atomic.LoadUint32(&at.TID), true
		}
		if ok && atomic.LoadUint64(&at.State) == state {
			// A writer that gave up has taken back the span's id alone.
			return s, owner, tid, s.SpanID != 0
		}
	}
	return Span{}, 0, 0, false
}
