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

// roots remember the local roots of spans that have ended and are none themselves: a context
// may be used after the end of its span. Each P has a ring of the last ones that ended on it.
// A table by id would cost each end a miss of the processor's cache.
//
// All methods may be called concurrently. A goroutine that reads an entry while it is
// written finds that its check does not hold.
type roots []rootRing

// rootEntries is how many spans each P remembers.
const rootEntries = 1 << 10

type rootRing struct {
	next                 uint64
	spans, roots, checks [rootEntries]uint64
	_                    [56]byte
}

func newRoots() roots { return make(roots, max(runtime.GOMAXPROCS(0), runtime.NumCPU())) }

// rootCheck tells which trace, span and root an entry is of. Ids are random, so a sum with odd
// factors does.
func rootCheck(k sdkspan.Key, root uint64) uint64 {
	return k.TraceIDHigh*0x9E3779B97F4A7C15 + k.TraceIDLow*0xC2B2AE3D27D4EB4F + k.SpanID*0x165667B19E3779F9 + root
}

func (r roots) add(k sdkspan.Key, root uint64) {
	// Pinned, so that nobody else writes here, unless there are more Ps than there were.
	ring := &r[goruntime.Pin()%len(r)]
	n := atomic.LoadUint64(&ring.next)
	ordered.Put(&ring.next, n+1)
	n %= rootEntries
	ordered.Put(&ring.spans[n], k.SpanID)
	ordered.Put(&ring.roots[n], root)
	ordered.Put(&ring.checks[n], rootCheck(k, root))
	goruntime.Unpin()
}

// find returns the local root of a span that has ended, or 0. It looks at the caller's P first,
// and at what ended last before the rest.
func (r roots) find(k sdkspan.Key) uint64 {
	p := goruntime.Pin()
	goruntime.Unpin()
	for i := range r {
		ring := &r[(p+i)%len(r)]
		next := atomic.LoadUint64(&ring.next)
		for n := range uint64(rootEntries) {
			at := (next - 1 - n) % rootEntries
			if atomic.LoadUint64(&ring.spans[at]) != k.SpanID {
				continue
			}
			if root := atomic.LoadUint64(&ring.roots[at]); atomic.LoadUint64(&ring.checks[at]) == rootCheck(k, root) {
				return root
			}
		}
	}
	return 0
}
