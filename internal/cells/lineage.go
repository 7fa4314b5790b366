// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/wire"
)

// Position says which span a goroutine is in, and whether the goroutine entered it by Attach.
type Position = wire.Position

// lineage is the part of a cell that determines where goroutines go when the cell's span ends. It
// remains in the cell until the cell is reused.
type lineage struct {
	goid      uint64
	ancestors Ancestors
	outside   bool
	before    Position
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
	l.outside = atomic.LoadUint64(&c.Flags)&wire.CellOutside != 0
	l.before = Position(atomic.LoadUint64(&c.Before))
	return t.describes(c, r)
}

// describes reports whether a cell still describes the span r, which may have ended.
func (t *Table) describes(c *wire.Cell, r Ref) bool {
	return atomic.LoadUint64(&c.Version)&^wire.CellOver == uint64(r)
}

// SetLineage fills in the lineage of a span that is about to start. position is the position of the
// goroutine that starts it. parent is the nearest live span in the context passed to Start, or 0.
func (t *Table) SetLineage(s *Span, parent Ref, position Position) {
	s.Before = position
	if parent != 0 {
		t.setAncestors(s, parent, position)
	}
}

// setAncestors sets s.Ancestors and s.Outside for a span with a parent.
func (t *Table) setAncestors(s *Span, parent Ref, position Position) {
	c := t.cell(parent)
	first, second := Ref(atomic.LoadUint64(&c.Ancestors[0])), Ref(atomic.LoadUint64(&c.Ancestors[1]))
	s.Ancestors[0] = parent
	if t.describes(c, parent) {
		s.Ancestors[1], s.Ancestors[2] = first, second
	}
	if position.Ref() != parent {
		s.Outside = t.isOutside(&s.Ancestors, position)
	}
}

// isOutside reports whether a goroutine at this position is in none of the spans. The goroutine is
// in the span of its position. It is also in that span's ancestors, unless the span was started
// outside of them.
//
//go:noinline
func (t *Table) isOutside(spans *Ancestors, position Position) bool {
	var l lineage
	if contains(spans, position.Ref()) {
		return false
	}
	if !t.lineage(position.Ref(), &l) || l.outside {
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

// Nearest returns the current position of a goroutine, given the position that was last stored for
// it. If that span is still live, the position is unchanged. Otherwise the goroutine is now in the
// span's nearest live ancestor, or in none. known is false if the ancestors are unknown, because
// the cell was reused for another span.
func (t *Table) Nearest(position Position, goid uint64) (next Position, known bool) {
	if position == 0 || t.Live(position.Ref()) {
		return position, true
	}
	var l lineage
	if !t.lineage(position.Ref(), &l) {
		return 0, false
	}
	starter := l.goid == goid
	if starter && l.outside {
		return 0, true
	}
	next = t.NearestOf(&l.ancestors, position)
	if starter && !position.Attached() && next.Ref() == l.before.Ref() {
		next = l.before // before also says whether the span was attached
	}
	return next, true
}

// NearestOf returns the new position of a goroutine that leaves its span: the first of the span's
// ancestors that is live, or 0 if there is none. position is the goroutine's old position.
func (t *Table) NearestOf(ancestors *Ancestors, position Position) Position {
	for _, r := range ancestors {
		if t.Live(r) {
			return position.Moved(r)
		}
	}
	return 0
}

// Leave returns the new position of a goroutine that has just ended a span. left is true if the
// goroutine was in that span, or in a descendant of it that the goroutine itself had started. If
// that is unknown, because cells were reused, left is true and next is 0.
func (t *Table) Leave(position Position, span Ref, goid uint64) (next Position, left bool) {
	// The usual case: the goroutine ends the span that it started and is still in, and returns to a
	// live span or to none.
	if c := t.cell(span); position == Position(span) && atomic.LoadUint64(&c.Goid) == goid {
		if next = Position(atomic.LoadUint64(&c.Before)); next == 0 || t.Live(next.Ref()) {
			return next, true
		}
	}
	return t.leave(position, span, goid)
}

// leave handles the cases that Leave does not handle itself.
func (t *Table) leave(position Position, span Ref, goid uint64) (next Position, left bool) {
	const maxDepth = 64
	var l, ended lineage
	t.lineage(span, &ended)
	for range maxDepth {
		if position.Ref() == span {
			return t.leaveEnded(position, &ended, goid), true
		}
		if position == 0 || position.Attached() || !t.lineage(position.Ref(), &l) || l.goid != goid {
			break
		}
		within, known := t.descends(l.ancestors, span)
		if !known {
			return 0, true // The position may be in a descendant of span. No position is better than a wrong one.
		}
		if !within {
			break
		}
		left = true
		if position = l.before; position != 0 && !t.describes(t.cell(position.Ref()), position.Ref()) {
			position = Position(span) // That cell was reused, so leave span itself next.
		}
	}
	next, _ = t.Nearest(position, goid)
	return next, left
}

// leaveEnded returns the new position of a goroutine that was in the span that it has ended. If the
// goroutine had started the span and not attached it, it returns to its position before Start.
// Otherwise, or if that position cannot be determined, it moves to the span's nearest live ancestor.
// If it had started the span outside of all the span's ancestors, it is in no span instead.
func (t *Table) leaveEnded(position Position, l *lineage, goid uint64) Position {
	starter := l.goid == goid
	if starter && !position.Attached() {
		if next, known := t.Nearest(l.before, goid); known {
			return next
		}
	}
	if starter && l.outside {
		return 0
	}
	return t.NearestOf(&l.ancestors, position)
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
