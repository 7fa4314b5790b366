// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/wire"
)

// Position is what a goroutine is in.
type Position = wire.Position

// lineage is what a cell says about where goroutines go when its span ends. It holds also
// after the end, until the cell is used for another span.
type lineage struct {
	goid      uint64
	ancestors Ancestors
	outside   bool
	before    Position
}

// lineage fills l, and reports false if the cell is another span's by now.
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

// describes reports whether a cell still describes the span that r names, live or not.
func (t *Table) describes(c *wire.Cell, r Ref) bool {
	return atomic.LoadUint64(&c.Version)&^wire.CellOver == uint64(r)
}

// SetLineage fills in the ancestors of a span that a goroutine at a position starts. parent is
// the nearest live span of the context that the span is started with, or 0.
func (t *Table) SetLineage(s *Span, parent Ref, at Position) {
	s.Before = at
	if parent == 0 {
		return
	}
	c := t.cell(parent)
	first, second := Ref(atomic.LoadUint64(&c.Ancestors[0])), Ref(atomic.LoadUint64(&c.Ancestors[1]))
	s.Ancestors[0] = parent
	if t.describes(c, parent) {
		s.Ancestors[1], s.Ancestors[2] = first, second
	}
	if at.Ref() != parent {
		s.Outside = t.outside(&s.Ancestors, at)
	}
}

// outside reports whether a goroutine at a position is in none of the spans with these refs. It
// is in a span if its position is that span, or has it for an ancestor that the goroutine was in.
//
//go:noinline
func (t *Table) outside(spans *Ancestors, at Position) bool {
	var l lineage
	if contains(spans, at.Ref()) {
		return false
	}
	if !t.lineage(at.Ref(), &l) || l.outside {
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

// Nearest returns where a goroutine at a position is now. That is the position itself while its
// span is live, and then the nearest live ancestor, or nothing. known is false if the cell is
// another span's by now.
func (t *Table) Nearest(at Position, goid uint64) (now Position, known bool) {
	if at == 0 || t.Live(at.Ref()) {
		return at, true
	}
	var l lineage
	if !t.lineage(at.Ref(), &l) {
		return 0, false
	}
	own := l.goid == goid
	if own && l.outside {
		return 0, true
	}
	now = t.NearestOf(&l.ancestors, at)
	if own && !at.Attached() && now.Ref() == l.before.Ref() {
		now = l.before // The goroutine may have attached that span.
	}
	return now, true
}

// NearestOf returns the position of a goroutine that goes from a span to the first live one of
// the span's ancestors, or to nothing.
func (t *Table) NearestOf(ancestors *Ancestors, from Position) Position {
	for _, r := range ancestors {
		if t.Live(r) {
			return from.Moved(r)
		}
	}
	return 0
}

// Leave returns the position of a goroutine that has just ended a span, and whether it was in
// that span or in a descendant of it that it has started.
func (t *Table) Leave(at Position, span Ref, goid uint64) (now Position, in bool) {
	const maxDepth = 64
	var l, ended lineage
	t.lineage(span, &ended)
	for range maxDepth {
		if at.Ref() == span {
			return t.leaveEnded(at, &ended, goid), true
		}
		if at == 0 || at.Attached() || !t.lineage(at.Ref(), &l) || l.goid != goid {
			break
		}
		within, known := t.descends(l.ancestors, span)
		if !known {
			return 0, true // It may have left the span that it is shown in.
		}
		if !within {
			break
		}
		in = true
		if at = l.before; at != 0 && !t.describes(t.cell(at.Ref()), at.Ref()) {
			at = Position(span) // Nothing tells how it got here.
		}
	}
	now, _ = t.Nearest(at, goid)
	return now, in
}

// leaveEnded returns the position of a goroutine that ends the span it is in. A span that it has
// started gives way to what the goroutine was in before. Any other span, and one that it has
// attached, gives way to the nearest live ancestor.
func (t *Table) leaveEnded(at Position, l *lineage, goid uint64) Position {
	own := l.goid == goid
	if own && !at.Attached() {
		if now, known := t.Nearest(l.before, goid); known {
			return now
		}
	}
	if own && l.outside {
		return 0
	}
	return t.NearestOf(&l.ancestors, at)
}

// descends reports whether a span with these ancestors is a descendant of another span. known is
// false if the cells between the two are used for other spans by now.
func (t *Table) descends(ancestors Ancestors, of Ref) (is, known bool) {
	const maxDepth, outermost = 64, len(ancestors) - 1
	for range maxDepth {
		if contains(&ancestors, of) {
			return true, true
		}
		if ancestors[outermost] == 0 {
			return false, true
		}
		// Go on from the outermost ancestor whose cell still names its own.
		var l lineage
		i := outermost
		for i >= 0 && !t.lineage(ancestors[i], &l) {
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
