// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"runtime"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// roots remembers the local roots of spans that have ended recently, because a context may be used
// after the end of its span. It contains no spans that are local roots themselves. Each P has a
// ring of the spans that ended on it most recently. A hash table would cost a CPU cache miss at the
// end of each span.
//
// All methods may be called concurrently. If an entry is being written, its checksum does not
// match, and find skips it.
type roots []rootRing

// rootEntries is the number of spans that each P remembers.
const rootEntries = 1 << 10

type rootRing struct {
	next                 uint64
	spans, roots, checks [rootEntries]uint64
	_                    [56]byte
}

func newRoots() roots { return make(roots, max(runtime.GOMAXPROCS(0), runtime.NumCPU())) }

// rootCheck returns a checksum of an entry's trace id, span id and root. Because ids are random, a
// sum weighted with odd factors is good enough.
func rootCheck(k sdkspan.Key, root uint64) uint64 {
	return k.TraceIDHigh*0x9E3779B97F4A7C15 + k.TraceIDLow*0xC2B2AE3D27D4EB4F + k.SpanID*0x165667B19E3779F9 + root
}

func (r roots) add(k sdkspan.Key, root uint64) {
	// Pin, so that no other goroutine writes to this ring (unless GOMAXPROCS has grown).
	ring := &r[goruntime.Pin()%len(r)]
	n := atomic.LoadUint64(&ring.next)
	ordered.Put(&ring.next, n+1)
	n %= rootEntries
	ordered.Put(&ring.spans[n], k.SpanID)
	ordered.Put(&ring.roots[n], root)
	ordered.Put(&ring.checks[n], rootCheck(k, root))
	goruntime.Unpin()
}

// find returns the local root of an ended span, or 0. It searches the ring of the caller's P first,
// and the latest entries of each ring first.
func (r roots) find(k sdkspan.Key) uint64 {
	p := goruntime.Pin()
	goruntime.Unpin()
	for i := range r {
		ring := &r[(p+i)%len(r)]
		next := atomic.LoadUint64(&ring.next)
		for n := range uint64(rootEntries) {
			slot := (next - 1 - n) % rootEntries
			if atomic.LoadUint64(&ring.spans[slot]) != k.SpanID {
				continue
			}
			if root := atomic.LoadUint64(&ring.roots[slot]); atomic.LoadUint64(&ring.checks[slot]) == rootCheck(k, root) {
				return root
			}
		}
	}
	return 0
}
