// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"runtime"
	"sync"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// ended has the transactions that have ended and that exporters have not exported yet. Some
// are never exported: a part that is full forgets the older half of its transactions.
//
// Ps add to different parts, so that they rarely share a lock. With one lock, two Ps that do
// nothing else spend 2.9 times a no-op processor's time on a transaction, in place of 1.8.
type ended struct {
	parts []endedPart
	half  int // of what each part has room for
}

type endedPart struct {
	mu            sync.Mutex
	newest, older map[sdkspan.Key]endedTransaction
	_             [40]byte
}

// endedTransaction is when a transaction has ended, and how many exporters have not exported
// it yet, which is more than 0.
type endedTransaction struct {
	at      uint64
	exports int64
}

// newEnded returns an ended that remembers at least so many transactions.
func newEnded(transactions int) *ended {
	const maxParts = 4
	e := &ended{parts: make([]endedPart, min(runtime.GOMAXPROCS(0), maxParts)), half: transactions}
	for i := range e.parts {
		p := &e.parts[i]
		p.newest, p.older = map[sdkspan.Key]endedTransaction{}, map[sdkspan.Key]endedTransaction{}
	}
	return e
}

func (e *ended) add(k sdkspan.Key, t endedTransaction) {
	n := goruntime.Pin()
	goruntime.Unpin()
	p := &e.parts[n%len(e.parts)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.newest) >= e.half {
		p.newest, p.older = p.older, p.newest
		clear(p.newest)
	}
	p.newest[k] = t
}

// find returns a transaction, and whether it is known. If an exporter exports it, one less
// is awaited, and behind the last one the transaction is forgotten.
func (e *ended) find(k sdkspan.Key, exported bool) (t endedTransaction, ok bool) {
	for i := range e.parts {
		if t, ok = e.parts[i].find(k, exported); ok {
			break
		}
	}
	return t, ok
}

func (p *endedPart) find(k sdkspan.Key, exported bool) (endedTransaction, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, in := range [...]map[sdkspan.Key]endedTransaction{p.newest, p.older} {
		t, ok := in[k]
		if !ok {
			continue
		}
		if exported {
			if t.exports--; t.exports > 0 {
				in[k] = t
			} else {
				delete(in, k)
			}
		}
		return t, true
	}
	return endedTransaction{}, false
}
