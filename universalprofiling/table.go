// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/apmlib"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
)

// table knows the spans that are shown, and the transactions that have ended and are
// not exported yet. Of those that have to give way to others, transactions that have ended
// do first; a span that does is shown no more.
type table = spantable.Table[entry, struct{}]

type span = spantable.Span[entry, struct{}]

func newTable(evict func(*span)) *table {
	return spantable.New(spantable.Buckets(), evict, func(e *entry) bool {
		return origin(atomic.LoadUint64((*uint64)(&e.origin)))&ended != 0
	})
}

// entry is what the table knows of a span, beside its ids. With those it takes one cache
// line.
type entry struct {
	transaction uint64
	// resumes is the parent if the goroutine was showing that when it started the span,
	// and so will go back to it; else 0. Once a transaction has ended it is when, in
	// nanoseconds since the package began.
	resumes uint64
	origin  origin
	// at is where the span is shown, above the last bits of the version as of which
	// it was noted, so that nothing is noted in an entry that has passed to another
	// span.
	at uint64
	// exports is for how many exporters a transaction that has ended waits. Its users
	// hold the lock of the correlations.
	exports uint64
	_       uint64
}

// origin is the id of the goroutine that started a span, above these and, as the lowest
// byte, the trace flags.
type origin uint64

const (
	ended     origin = 1 << 8
	localRoot origin = 1 << 9
	goidShift        = 10
)

func (o origin) goid() uint64 { return uint64(o >> goidShift) }

func (o origin) flags() uint8 { return uint8(o) }

// live is a span that the table has, with a copy of what that knows of it.
type live struct {
	span

	traceIDHigh, traceIDLow uint64
	transaction, resumes    uint64
	origin                  origin
}

// find looks for the span with this id in a trace, fills l with it, and reports whether
// it is there; it may have ended. If it is not, what l holds means nothing.
func find(t *table, traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return t.Find(sdkspan.Key{TraceIDHigh: traceIDHigh, TraceIDLow: traceIDLow, SpanID: id}, &l.span) && l.load()
}

// findLive is find for a span that has not ended.
func findLive(t *table, traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return find(t, traceIDHigh, traceIDLow, id, l) && l.origin&ended == 0
}

// findRoot is find for a local root.
func findRoot(t *table, traceIDHigh, traceIDLow, id uint64, l *live) bool {
	return find(t, traceIDHigh, traceIDLow, id, l) && l.origin&localRoot != 0
}

// load copies what the table knows of l, and reports whether it still is that span's.
func (l *live) load() bool {
	l.traceIDHigh, l.traceIDLow = l.TraceID()
	e := l.Data()
	l.transaction, l.resumes = atomic.LoadUint64(&e.transaction), atomic.LoadUint64(&e.resumes)
	l.origin = origin(atomic.LoadUint64((*uint64)(&e.origin)))
	return !l.Changed()
}

// store stores l, which is shown at a place, into the entry that is reserved for it.
func (l *live) store(at apmlib.Place) {
	e := l.Data()
	ordered.Put(&e.transaction, l.transaction)
	ordered.Put(&e.resumes, l.resumes)
	ordered.Put((*uint64)(&e.origin), uint64(l.origin))
	ordered.Put(&e.at, word(at, l.At))
	l.Commit(l.traceIDHigh, l.traceIDLow)
}

// end has a claimed entry say that the transaction has ended, at a time, and waits for
// so many exporters, and gives it to all.
func (l *live) end(at, exports uint64) {
	e := l.Data()
	ordered.Put(&e.resumes, at)
	ordered.Put(&e.exports, exports)
	ordered.Put((*uint64)(&e.origin), uint64(l.origin|ended))
	l.Release()
}

// word returns a place as it is noted for a span as of a version.
func word(at apmlib.Place, version uint64) uint64 {
	return uint64(at)<<32 | uint64(uint32(version))
}

// place returns where a span is shown.
func place(s *span) apmlib.Place {
	return apmlib.Place(atomic.LoadUint64(&s.Data().at) >> 32)
}

// note notes a place, which shows the span already, and reports whether the end of the
// span will find it there.
//
// The end changes the version first and then looks; this notes first, by
// compare-and-swap, which orders it, and then looks at the version: one of them sees the
// other.
func (l *live) note(at apmlib.Place) bool {
	in := &l.Data().at
	for {
		w := atomic.LoadUint64(in)
		if uint32(w) != uint32(l.At) {
			return false
		}
		if atomic.CompareAndSwapUint64(in, w, word(at, l.At)) {
			return !l.Changed()
		}
	}
}
