// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// store stores s in the record of the calling thread. It returns the place of that record, the
// place to which the goroutine stored before, and the goroutine id. If the thread has no record
// yet, store returns place 0 and stores nothing.
//
// No memory barriers are needed: a profiler interrupts the thread on the same CPU, and therefore
// sees its stores in program order.
func store(r *Records, s *Span) (place, old, goid uint64) {
	goruntime.Pin()
	defer goruntime.Unpin()
	offset := uint64(threadWord(r.word) - r.first)
	if offset >= r.size || offset%wire.ProfilingThreadSize != 0 {
		return 0, 0, 0
	}
	goid = r.runtime.Goroutine().Goid
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

	h := r.home(goid)
	old = atomic.SwapUint64(&h.place, place)
	atomic.StoreUint64(&h.goid, goid)
	atomic.StoreUint64(&h.ref, s.Ref)
	atomic.StoreUint64(&h.check, goid^s.Ref)
	return place, old, goid
}
