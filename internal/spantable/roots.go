// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// rootRing remembers the local roots of the spans that have ended most recently on a P, because a
// context may be used after the end of its span. It contains no spans that are local roots themselves.
// A hash table would cost a CPU cache miss at the end of each span.
//
// If an entry is being written, its checksum does not match, and find skips it.
type rootRing struct {
	next    uint64
	entries [rootEntries]rootEntry
	_       [56]byte
}

// rootEntries is the number of spans that each P remembers.
const rootEntries = 1 << 10

type rootEntry struct{ spanID, root, endpoint, check uint64 }

// rootCheck returns a checksum of an entry. Because ids are random, a sum weighted with odd factors is
// good enough.
func rootCheck(k sdkspan.Key, root, endpoint uint64) uint64 {
	return k.TraceIDHigh*0x9E3779B97F4A7C15 + k.TraceIDLow*0xC2B2AE3D27D4EB4F + k.SpanID*0x165667B19E3779F9 + root + endpoint*0xD6E8FEB86659FD93
}

// RememberRoot remembers the local root of a live span that is about to end, whose key is k. It reports
// whether the span is a local root itself, and returns the number of its endpoint.
func (t *Table) RememberRoot(r Ref, k sdkspan.Key) (isRoot bool, endpoint uint16) {
	root, endpoint := t.LocalRoot(r)
	if root == 0 || root == k.SpanID {
		return root != 0, endpoint
	}
	if p := goruntime.Pin(); p < len(t.locals) {
		t.use(uint32(p))
		t.locals[p].roots.add(k, root, uint64(endpoint))
	}
	goruntime.Unpin()
	return false, endpoint
}

// EndedRoot returns the span id and the number of the name of an ended span's local root. Both are 0 if
// they are unknown.
func (t *Table) EndedRoot(k sdkspan.Key) (spanID uint64, name uint16) {
	p := goruntime.Pin()
	goruntime.Unpin()
	n := int(t.usedLocals.Load())
	for i := range n { // begin with the current P
		if spanID, name = t.locals[(p+i)%n].roots.find(k); spanID != 0 {
			break
		}
	}
	return spanID, name
}

// ForgetRoots forgets the local roots of ended spans, as if many other spans had ended. It is for tests
// in which no spans end meanwhile.
func (t *Table) ForgetRoots() {
	for i := range t.usedLocals.Load() {
		atomic.StoreUint64(&t.locals[i].roots.next, 0)
	}
}

// add adds an entry. The caller is pinned to the ring's P.
func (r *rootRing) add(k sdkspan.Key, root, endpoint uint64) {
	n := atomic.LoadUint64(&r.next)
	ordered.Store(&r.next, n+1)
	e := &r.entries[n%rootEntries]
	ordered.Store(&e.spanID, k.SpanID)
	ordered.Store(&e.root, root)
	ordered.Store(&e.endpoint, endpoint)
	ordered.Store(&e.check, rootCheck(k, root, endpoint))
}

// find searches the latest entries first.
func (r *rootRing) find(k sdkspan.Key) (root uint64, endpoint uint16) {
	next := atomic.LoadUint64(&r.next)
	for n := range min(next, rootEntries) {
		e := &r.entries[(next-1-n)%rootEntries]
		if atomic.LoadUint64(&e.spanID) != k.SpanID {
			continue
		}
		root, endpoint := atomic.LoadUint64(&e.root), atomic.LoadUint64(&e.endpoint)
		if atomic.LoadUint64(&e.check) == rootCheck(k, root, endpoint) {
			return root, uint16(endpoint)
		}
	}
	return 0, 0
}
