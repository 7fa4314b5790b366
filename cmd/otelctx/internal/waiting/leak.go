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
	for i := range snap.Spans {
		s := &snap.Spans[i]
		s.Leaked = ""
		if occupied[i] || s.Goroutine < 0 {
			continue
		}
		switch g := &snap.Goroutines[s.Goroutine]; {
		case g.State == reader.GoroutineGone:
			s.Leaked = Exited
		case g.State != reader.GoroutineUnknown && snap.hasLeft(s.Goroutine, s):
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

// hasLeft reports whether a goroutine is known to have left a live span that it started. It has not if it is in a span
// that it started inside this one, even in another trace, because it returns when that span ends. In doubt, hasLeft
// returns false.
func (snap *Snapshot) hasLeft(goroutine int, s *Span) bool {
	g := &snap.Goroutines[goroutine]
	in := g.LastPublished
	if g.SpanKnown {
		in = g.Span
	} else if in == 0 {
		return false // nothing is known about the goroutine
	}
	for range snap.Spans { // follow the spans to which the goroutine will return, at most all of them
		switch i, isLive := snap.byRef[in]; {
		case in == s.Ref:
			return false
		case in == 0, s.within(in):
			return true
		case !isLive:
			return false // the goroutine may return to an ancestor of this span, which may be s
		case snap.Spans[i].Goroutine == goroutine:
			in = snap.Spans[i].Previous
		default: // the goroutine has attached or inherited the span
			return snap.Spans[i].TraceID != s.TraceID
		}
	}
	return false
}

// within reports whether ref is a span in which s was started, so that leaving s may lead to ref, but leaving ref does
// not lead to s.
func (s *Span) within(ref reader.SpanRef) bool {
	return ref != 0 && (ref == s.Previous || slices.Contains(s.Ancestors, ref))
}
