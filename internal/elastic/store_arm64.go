// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package elastic

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/wire"
)

// store stores s in the record of the calling thread, for the goroutine with this id, and the place of
// that record in last. It returns the place and the earlier value of last. If the thread has no record
// yet, store returns place 0 and stores nothing. The caller is pinned.
//
// The stores in the record need no memory barriers: a profiler interrupts the thread on the same CPU,
// and therefore sees its stores in program order.
func store(r *Records, s *Span, goid uint64, last *uint64) (place, old uint64) {
	offset := uint64(threadWord(r.word) - r.first)
	if offset >= r.size || offset%wire.ProfilingThreadSize != 0 {
		return 0, 0
	}
	place = offset/wire.ProfilingThreadSize + 1
	t := r.record(Place(place))
	state := uint64(uint32(atomic.LoadUint64(stateOf(t)))+1) | wire.ProfilingVersionBit
	atomic.StoreUint64(stateOf(t), state)
	atomic.StoreUint64(&t.Key, s.SpanID)
	put := func(field unsafe.Pointer, v uint64) { *(*[8]byte)(field) = *(*[8]byte)(unsafe.Pointer(&v)) }
	put(unsafe.Pointer(&t.Record.SpanID), s.SpanID)
	put(unsafe.Pointer(&t.Record.TraceID[0]), s.TraceIDHigh)
	put(unsafe.Pointer(&t.Record.TraceID[8]), s.TraceIDLow)
	put(unsafe.Pointer(&t.Record.TransactionID), s.TransactionID)
	t.Record.TraceFlags = s.TraceFlags
	atomic.StoreUint64(&t.Owner, goid)
	atomic.StoreUint64(stateOf(t), state|s.state)

	return place, atomic.SwapUint64(last, place)
}
