// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import "github.com/otelctx/otelctx/internal/wire"

// liveness is the state of a span according to its cell.
type liveness int

const (
	// replaced means that the cell has been reused for another span, or cannot be read.
	replaced liveness = iota
	// ended means that the span has ended. Its cell still describes it.
	ended
	live
	// unread means that the cell must be read, because it has not been read yet or changed during
	// the read.
	unread
)

// lineage is the part of a span's cell, or of its goroutine record, that determines where goroutines
// go when the span ends.
type lineage struct {
	// starter is the id of the goroutine that started the span. dispatched is true if it
	// was in none of the ancestors.
	starter    uint64
	dispatched bool
	ancestors  [wire.Ancestors]SpanRef
}

// spanLookup looks up spans in copies of their cells. If it returns unread, it has requested the
// cell, and the caller looks up the span again after the next read.
type spanLookup interface {
	// published looks up a span that a goroutine has published. It returns the lineage of a live
	// span and of one that has ended.
	published(ref SpanRef) (lineage, liveness)
	// ancestor looks up an ancestor of a published span that has ended. The cell must have been read
	// no earlier than that of the published span.
	ancestor(ref SpanRef) liveness
}

// activeSpan returns the span that a goroutine is in, by rule 3 of the contract of attribution, or 0
// if it is in none. published is the span that the goroutine published last. goid is the id of the
// goroutine modulo 2^35 at least. known is false if the active span is unknown, because the cell of
// the published span has been reused. settled is false if cells must be read first.
func activeSpan(spans spanLookup, published SpanRef, goid uint64) (active SpanRef, known, settled bool) {
	if published == 0 {
		return 0, true, true
	}
	switch l, state := spans.published(published); state {
	case unread:
		return 0, false, false
	case live:
		return published, true, true
	case ended:
		active, settled = l.next(spans, goid)
		return active, true, settled
	default:
		return 0, false, true
	}
}

// next returns the span that a goroutine is in after the span with this lineage has ended: the
// nearest live ancestor, or 0 if none is live. There is none either if the goroutine started the
// span without being in any of the ancestors. settled is false if cells must be read first.
func (l *lineage) next(spans spanLookup, goid uint64) (active SpanRef, settled bool) {
	if l.dispatched && wire.SameGoroutine(l.starter, goid) {
		return 0, true
	}
	settled = true
	for _, ref := range l.ancestors {
		switch spans.ancestor(ref) {
		case live:
			if settled {
				return ref, true
			}
		case unread:
			settled = false // continue, so that the next read includes the other cells
		}
	}
	return 0, settled
}
