// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package elastic

import "unsafe"

// The assembly uses these offsets.
const (
	_ = -unsafe.Offsetof(Records{}.first)
	_ = -(unsafe.Offsetof(Records{}.size) ^ 8)
	_ = -(unsafe.Offsetof(Records{}.word) ^ 16)
	_ = -unsafe.Offsetof(Span{}.TraceIDHigh)
	_ = -(unsafe.Offsetof(Span{}.TraceIDLow) ^ 8)
	_ = -(unsafe.Offsetof(Span{}.SpanID) ^ 16)
	_ = -(unsafe.Offsetof(Span{}.TransactionID) ^ 24)
	_ = -(unsafe.Offsetof(Span{}.TraceFlags) ^ 32)
	_ = -(unsafe.Offsetof(Span{}.state) ^ 40)
)

// store stores s in the record of the calling thread, for the goroutine with this id, and the place of
// that record in last. It returns the place and the earlier value of last. If the thread has no record
// yet, store returns place 0 and stores nothing. The caller is pinned.
//
// Other code may have changed the thread-local word that points to the record. Whatever its value is,
// store writes only inside r's memory, which stays mapped.
//
//go:noescape
func store(r *Records, s *Span, goid uint64, last *uint64) (place, old uint64)
