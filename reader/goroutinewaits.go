// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"slices"
	"time"
)

// maxCollections is the maximum number of garbage collections whose ends are remembered.
const maxCollections = 1024

// setWaits sets WaitedFor of all goroutines.
//
// When a garbage collection finds a goroutine waiting for the first time, the runtime stores the end
// of the previous collection in g.waitsince. So the wait may have begun long after that time, but
// before the end of the collection that found it. That end is no later than any larger value in
// another goroutine, because all values are ends of collections.
func (c *goroutineCall) setWaits() {
	s := &c.process.goroutines
	s.mu.Lock()
	defer s.mu.Unlock()
	goroutines := c.result.Goroutines
	for i := range goroutines {
		if since := goroutines[i].waitSince; since > 0 {
			if at, known := slices.BinarySearch(s.collections, since); !known && at <= maxCollections {
				s.collections = slices.Insert(s.collections, at, since)
			}
		}
		if len(s.collections) > maxCollections {
			s.collections = slices.Delete(s.collections, 0, 1)
		}
	}
	for i := range goroutines {
		g := &goroutines[i]
		if g.waitSince == 0 {
			continue
		}
		if next, _ := slices.BinarySearch(s.collections, g.waitSince+1); next < len(s.collections) && s.collections[next] < c.now {
			g.WaitedFor = time.Duration(c.now - s.collections[next])
		}
	}
}
