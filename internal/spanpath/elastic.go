// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanpath

import (
	"encoding/binary"

	"github.com/otelctx/otelctx/internal/elastic"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
)

// Elastic stores spans in the thread records of Elastic's Universal Profiling. Unlike the readers of
// slots, the profiler reads neither cells nor owners. The goroutine that ends a span must therefore
// clear it from the records that contain it.
type Elastic struct {
	Records *elastic.Records
	// RootEnds is called before a local root ends.
	RootEnds func(k sdkspan.Key, traceFlags uint8)
	// Failed is called with the reason why spans can no longer be stored, possibly several times.
	Failed func(error)
}

// MemoryOrder converts an id, a big-endian number, to the number that is stored in memory as the
// bytes of the id.
func MemoryOrder(id uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return binary.NativeEndian.Uint64(b[:])
}

// store stores a span, or none if k is zero, in the record of the calling thread. It returns false
// if the thread has no record yet. The caller is pinned. If store returns true, it was a barrier.
func (e *Elastic) store(k *sdkspan.Key, localRoot uint64, flags uint8, self *goruntime.Self) bool {
	if k.SpanID == 0 {
		return e.Records.Store(nil, self.Goid)
	}
	// Assign the fields one by one: building a struct elsewhere and copying it at once would stall
	// the CPU.
	var s elastic.Span
	s.TraceIDHigh, s.TraceIDLow = MemoryOrder(k.TraceIDHigh), MemoryOrder(k.TraceIDLow)
	s.SpanID, s.TransactionID, s.TraceFlags = MemoryOrder(k.SpanID), MemoryOrder(localRoot), flags
	return e.Records.Store(&s, self.Goid)
}

// storeAgain is store for a goroutine that returns to a span, or attaches it. k is zero if the span is
// not live.
func (e *Elastic) storeAgain(t *spantable.Table, ref spantable.Ref, k *sdkspan.Key, flags uint8, self *goruntime.Self) bool {
	var localRoot uint64
	if k.SpanID != 0 {
		if localRoot, _ = t.LocalRoot(ref); !t.IsOf(ref, self.Goid) {
			t.SetShared(ref)
		}
	}
	return e.store(k, localRoot, flags, self)
}

// clear clears the records that contain a span. The span has ended, and its cell still describes it.
// clear may be called while pinned.
func (e *Elastic) clear(t *spantable.Table, ref spantable.Ref) {
	starter, spanID := t.StarterOf(ref)
	if t.Shared(ref) {
		e.Records.ClearAll(MemoryOrder(spanID))
	} else {
		e.Records.Clear(starter, MemoryOrder(spanID))
	}
}
