// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"

	"github.com/otelctx/otelctx/reader"
)

// Leak is the way in which a goroutine left a live span that it started. "" means that the span has not
// leaked.
type Leak string

const (
	// Exited means that the goroutine has exited.
	Exited Leak = "exited"
	// MovedOn means that the goroutine is in no span, in an ancestor of this span, or in a span of another trace, and
	// will not return to this span when that one ends.
	MovedOn Leak = "moved_on"
)

// findLeaks fills in [Span.Leaked].
func (snap *Snapshot) findLeaks() {
	occupied := snap.occupied()
	paths := map[int]*path{} // of goroutines
	for i := range snap.Spans {
		s := &snap.Spans[i]
		s.Leaked = ""
		if occupied[i] || s.Goroutine < 0 {
			continue
		}
		switch g := &snap.Goroutines[s.Goroutine]; {
		case g.State == reader.GoroutineGone:
			s.Leaked = Exited
		case g.State != reader.GoroutineUnknown && snap.hasLeft(paths, s):
			s.Leaked = MovedOn
		}
	}
}

// occupied reports for each span whether a goroutine is in it or in a descendant.
func (snap *Snapshot) occupied() []bool {
	occupied := make([]bool, len(snap.Spans))
	var pending []int
	occupy := func(i int) {
		if !occupied[i] {
			occupied[i] = true
			pending = append(pending, i)
		}
	}
	for i := range snap.Goroutines {
		if g := &snap.Goroutines[i]; g.In >= 0 && g.State != reader.GoroutineGone {
			occupy(g.In)
		}
	}
	for len(pending) > 0 {
		last := len(pending) - 1
		ancestors := snap.Spans[pending[last]].Ancestors
		pending = pending[:last]
		for _, ancestor := range ancestors {
			if i, ok := snap.byRef[ancestor]; ok {
				occupy(i)
			}
		}
	}
	return occupied
}

// path is the way of a goroutine through spans as they end: the span that it is in, the one to which it returns from
// there, and so on.
type path struct {
	// places maps the spans on the path to their places.
	places map[reader.SpanRef]int
	// out is true if the path ends outside of spans.
	out bool
	// joined is the index of the last span on the path if the goroutine has attached or inherited it. Otherwise it is
	// negative.
	joined int
}

// pathOf returns the path of a goroutine. It is nil if nothing is known about the goroutine.
func (snap *Snapshot) pathOf(goroutine int) *path {
	g := &snap.Goroutines[goroutine]
	in := g.LastPublished
	if g.SpanKnown {
		in = g.Span
	} else if in == 0 {
		return nil
	}
	p := &path{places: map[reader.SpanRef]int{}, joined: -1}
	for {
		if in == 0 {
			p.out = true
			return p
		}
		if _, cyclic := p.places[in]; cyclic {
			return p
		}
		p.places[in] = len(p.places)
		switch i, isLive := snap.byRef[in]; {
		case !isLive: // the goroutine may return to any ancestor of this span
			return p
		case snap.Spans[i].Goroutine != goroutine:
			p.joined = i
			return p
		default:
			in = snap.Spans[i].Previous
		}
	}
}

// hasLeft reports whether the goroutine that started a live span is known to have left it. It has not if it is in a span
// that it started inside this one, even in another trace, because it returns when that span ends. In doubt, hasLeft
// returns false. It keeps the paths of goroutines in paths, because one goroutine may have started many spans.
func (snap *Snapshot) hasLeft(paths map[int]*path, s *Span) bool {
	p, known := paths[s.Goroutine]
	if !known {
		p = snap.pathOf(s.Goroutine)
		paths[s.Goroutine] = p
	}
	if p == nil {
		return false
	}
	// On its path, the goroutine may return to s, or to a span in which s was started.
	first := len(p.places)
	for _, outer := range append([]reader.SpanRef{s.Previous}, s.Ancestors...) {
		if place, ok := p.places[outer]; ok && outer != 0 {
			first = min(first, place)
		}
	}
	if place, ok := p.places[s.Ref]; ok && place <= first {
		return false
	}
	return first < len(p.places) || p.out || p.joined >= 0 && snap.Spans[p.joined].TraceID != s.TraceID
}

// within reports whether ref is a span in which s was started, so that leaving s may lead to ref, but leaving ref does
// not lead to s.
func (s *Span) within(ref reader.SpanRef) bool {
	return ref != 0 && (ref == s.Previous || slices.Contains(s.Ancestors, ref))
}
