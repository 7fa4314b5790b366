// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/wire"
)

// ActiveSpan says which span a goroutine is in, and whether the goroutine entered it by Attach.
type ActiveSpan = wire.ActiveSpan

// lineage is the part of a cell that determines where goroutines go when the cell's span ends. It
// remains in the cell until the cell is reused.
type lineage struct {
	goid       uint64
	ancestors  Ancestors
	dispatched bool
	previous   ActiveSpan
}

// lineage fills l with the lineage of a span. It returns false if r is 0 or the cell was reused for
// another span.
func (t *Table) lineage(r Ref, l *lineage) bool {
	if r == 0 {
		return false
	}
	c := t.cell(r)
	l.goid = atomic.LoadUint64(&c.Goid)
	l.ancestors[0], l.ancestors[1] = Ref(atomic.LoadUint64(&c.Ancestors[0])), Ref(atomic.LoadUint64(&c.Ancestors[1]))
	l.ancestors[2] = Ref(atomic.LoadUint64(&c.Ancestors[2]))
	l.dispatched = atomic.LoadUint64(&c.Flags)&wire.CellDispatched != 0
	l.previous = ActiveSpan(atomic.LoadUint64(&c.Previous))
	return t.describes(c, r)
}

// describes reports whether a cell still describes the span r, which may have ended.
func (t *Table) describes(c *wire.Cell, r Ref) bool {
	return atomic.LoadUint64(&c.Version)&^wire.CellOver == uint64(r)
}

// SetLineage fills in the lineage of a span that is about to start. active is the active span of the
// goroutine that starts it. parent is the nearest live span in the context passed to Start, or 0.
func (t *Table) SetLineage(s *Span, parent Ref, active ActiveSpan) {
	s.Previous = active
	if parent != 0 {
		t.setAncestors(s, parent, active)
	}
}

// setAncestors sets s.Ancestors and s.Dispatched for a span with a parent.
func (t *Table) setAncestors(s *Span, parent Ref, active ActiveSpan) {
	c := t.cell(parent)
	first, second := Ref(atomic.LoadUint64(&c.Ancestors[0])), Ref(atomic.LoadUint64(&c.Ancestors[1]))
	s.Ancestors[0] = parent
	if t.describes(c, parent) {
		s.Ancestors[1], s.Ancestors[2] = first, second
	}
	if active.Ref() != parent {
		s.Dispatched = t.isInNone(&s.Ancestors, active)
	}
}

// isInNone reports whether a goroutine with this active span is in none of the spans. The goroutine is
// in its active span, and also in that span's ancestors, unless its starter was in none of them.
//
//go:noinline
func (t *Table) isInNone(spans *Ancestors, active ActiveSpan) bool {
	var l lineage
	if contains(spans, active.Ref()) {
		return false
	}
	if !t.lineage(active.Ref(), &l) || l.dispatched {
		return true
	}
	for _, r := range l.ancestors {
		if contains(spans, r) {
			return false
		}
	}
	return true
}

func contains(refs *Ancestors, r Ref) bool {
	return r != 0 && (refs[0] == r || refs[1] == r || refs[2] == r)
}

// Nearest returns the current active span of a goroutine, given the one that was last stored for it. If
// that span is still live, the result is the same. Otherwise the goroutine is now in the
// span's nearest live ancestor, or in none. known is false if the ancestors are unknown, because
// the cell was reused for another span.
func (t *Table) Nearest(active ActiveSpan, goid uint64) (next ActiveSpan, known bool) {
	if active == 0 || t.Live(active.Ref()) {
		return active, true
	}
	var l lineage
	if !t.lineage(active.Ref(), &l) {
		return 0, false
	}
	starter := l.goid == goid
	if starter && l.dispatched {
		return 0, true
	}
	next = t.NearestOf(&l.ancestors, active)
	if starter && !active.Attached() && next.Ref() == l.previous.Ref() {
		next = l.previous // previous also says whether the span was attached
	}
	return next, true
}

// NearestOf returns the new active span of a goroutine that leaves its span: the first of the span's
// ancestors that is live, or 0 if there is none. active is the span that it leaves.
func (t *Table) NearestOf(ancestors *Ancestors, active ActiveSpan) ActiveSpan {
	for _, r := range ancestors {
		if t.Live(r) {
			return active.Moved(r)
		}
	}
	return 0
}

// Leave returns the new active span of a goroutine that has just ended a span. left is true if the
// goroutine was in that span, or in a descendant of it that the goroutine itself had started. If
// that is unknown, because cells were reused, left is true and next is 0.
func (t *Table) Leave(active ActiveSpan, span Ref, goid uint64) (next ActiveSpan, left bool) {
	// The usual case: the goroutine ends the span that it started and is still in, and returns to a
	// live span or to none.
	if c := t.cell(span); active == ActiveSpan(span) && atomic.LoadUint64(&c.Goid) == goid {
		if next = ActiveSpan(atomic.LoadUint64(&c.Previous)); next == 0 || t.Live(next.Ref()) {
			return next, true
		}
	}
	return t.leave(active, span, goid)
}

// leave handles the cases that Leave does not handle itself.
func (t *Table) leave(active ActiveSpan, span Ref, goid uint64) (next ActiveSpan, left bool) {
	const maxDepth = 64
	var l, ended lineage
	t.lineage(span, &ended)
	for range maxDepth {
		if active.Ref() == span {
			return t.leaveEnded(active, &ended, goid), true
		}
		if active == 0 || active.Attached() || !t.lineage(active.Ref(), &l) || l.goid != goid {
			break
		}
		within, known := t.descends(l.ancestors, span)
		if !known {
			return 0, true // The goroutine may be in a descendant of span. No span is better than a wrong one.
		}
		if !within {
			break
		}
		left = true
		if active = l.previous; active != 0 && !t.describes(t.cell(active.Ref()), active.Ref()) {
			active = ActiveSpan(span) // That cell was reused, so leave span itself next.
		}
	}
	next, _ = t.Nearest(active, goid)
	return next, left
}

// leaveEnded returns the new active span of a goroutine that was in the span that it has ended. If the
// goroutine had started the span and not attached it, it returns to its previous span.
// Otherwise, or if that cannot be determined, it moves to the span's nearest live ancestor.
// If it was in none of the span's ancestors at Start, it is in no span instead.
func (t *Table) leaveEnded(active ActiveSpan, l *lineage, goid uint64) ActiveSpan {
	starter := l.goid == goid
	if starter && !active.Attached() {
		if next, known := t.Nearest(l.previous, goid); known {
			return next
		}
	}
	if starter && l.dispatched {
		return 0
	}
	return t.NearestOf(&l.ancestors, active)
}

// descends reports whether a span with these ancestors is a descendant of other. known is false if
// that cannot be determined, because cells of spans in between were reused.
func (t *Table) descends(ancestors Ancestors, other Ref) (is, known bool) {
	const maxDepth, outermost = 64, len(ancestors) - 1
	for range maxDepth {
		if contains(&ancestors, other) {
			return true, true
		}
		if ancestors[outermost] == 0 {
			return false, true
		}
		// Continue with the outermost ancestor whose cell has not been reused.
		var l lineage
		i := outermost
		for i >= 0 && !t.lineage(ancestors[i], &l) { //nolint:gosec // G602: i is from 0 to outermost
			i--
		}
		if i < 0 {
			return false, false
		}
		if l.ancestors[outermost-i] == 0 {
			return false, true
		}
		ancestors = l.ancestors
	}
	return false, false
}
