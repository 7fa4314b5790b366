// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/otelctx/otelctx/reader"
)

// Snapshot holds the live spans of a process and the goroutines that started them or are in them.
type Snapshot struct {
	// Program is the program that the process was running.
	Program *Program
	// Spans lists the live spans in no particular order.
	Spans []Span
	// Goroutines lists each goroutine that started one of these spans or is in one of them. It may contain others.
	Goroutines []Goroutine
	// Torn and Lost count goroutines that changed while they were read: see [reader.Goroutines].
	Torn, Lost int
	// Missing holds the reasons why some of the data could not be read.
	Missing []error

	// byRef maps spans to their indexes in Spans.
	byRef map[reader.SpanRef]int
	// started is the memory of the goroutines' Started.
	started []int
	// others is nil in samples.
	*others
}

// Span is a live span.
type Span struct {
	reader.LiveSpan

	// Goroutine is the index in [Snapshot.Goroutines] of the goroutine that started the span, negative if
	// unknown.
	Goroutine int
	// Joined holds the indexes of the other goroutines that are in the span, because they have attached or inherited
	// it, by ascending id.
	Joined []int
	// Leaked says how the goroutine that started the span left it without ending it. It is "" if that
	// goroutine has not left the span, or if another goroutine is known to be in the span or in one of its
	// descendants.
	Leaked Leak

	// missed is true if the goroutine was read when the span had already ended or had not yet started.
	missed bool
}

// Goroutine is a goroutine that has started live spans or is in one.
type Goroutine struct {
	reader.Goroutine

	// Weight is the number of goroutines that this one stands for, if only a random part of them was read.
	Weight float64
	// Started holds the indexes in [Snapshot.Spans] of the live spans that the goroutine started, the latest
	// last.
	Started []int
	// In is the index of the span that the goroutine is in, or negative if it is in none. If it is unknown which span
	// a goroutine is in, In is the live span that it started last.
	In int
	// Elsewhere is true if the goroutine was in the span In when the spans were read, but had left it when its state
	// and its stack were read.
	Elsewhere bool
}

// Snapshot takes a snapshot and confirms leaks. The errors are those of [reader.Process.Spans].
//
// Spans are read before their goroutines. In between, a span may end, or its goroutine may not yet have
// published that it is in the span. Both cases resemble a leak, so a leak is reported only if a second
// snapshot confirms it. Spans that ended while the snapshot was taken are left out.
func (p *Process) Snapshot(ctx context.Context) (*Snapshot, error) {
	const attempts = 3
	for range attempts - 1 {
		if snapshot, err := p.snapshotOnce(ctx); !errors.Is(err, errReplaced) {
			return snapshot, err
		}
	}
	return p.snapshotOnce(ctx)
}

func (p *Process) snapshotOnce(ctx context.Context) (*Snapshot, error) {
	snapshot, err := p.Sample(ctx, Options{Stacks: true, Attributes: true, Details: true})
	if err != nil {
		return nil, err
	}
	if err := p.findOthers(ctx, snapshot); err != nil {
		return nil, err
	}
	snapshot.drop(func(s *Span) bool { return s.missed })
	snapshot.findLeaks()
	if !slices.ContainsFunc(snapshot.Spans, func(s Span) bool { return s.Leaked != "" }) {
		return snapshot, nil
	}
	again, err := p.Sample(ctx, Options{})
	if err != nil {
		return nil, err
	}
	if again.Program != snapshot.Program {
		return nil, errReplaced
	}
	again.findLeaks()
	snapshot.drop(func(s *Span) bool {
		i, isLive := again.byRef[s.Ref]
		if isLive && s.Leaked != "" {
			s.Leaked = again.Spans[i].Leaked
		}
		return s.Leaked != "" && !isLive
	})
	return snapshot, nil
}

func (snap *Snapshot) drop(unwanted func(s *Span) bool) {
	kept := snap.Spans[:0]
	for i := range snap.Spans {
		if s := &snap.Spans[i]; !unwanted(s) {
			kept = append(kept, *s)
		}
	}
	if len(kept) < len(snap.Spans) {
		snap.Spans = kept
		snap.index()
	}
}

// index fills in byRef, [Goroutine.Started], [Goroutine.In] and [Span.Joined].
func (snap *Snapshot) index() {
	if snap.byRef == nil {
		snap.byRef = make(map[reader.SpanRef]int, len(snap.Spans))
	}
	clear(snap.byRef)
	snap.started = slices.Grow(snap.started[:0], len(snap.Goroutines)+len(snap.Spans))
	counts, all := snap.started[:len(snap.Goroutines)], snap.started[len(snap.Goroutines):len(snap.Goroutines)+len(snap.Spans)]
	clear(counts)
	for i := range snap.Spans {
		snap.byRef[snap.Spans[i].Ref] = i
		if g := snap.Spans[i].Goroutine; g >= 0 {
			counts[g]++
		}
	}
	for i, n := range counts {
		snap.Goroutines[i].Started, all = all[:0:n], all[n:]
	}
	for i := range snap.Spans {
		s := &snap.Spans[i]
		if s.Goroutine < 0 {
			continue
		}
		g := &snap.Goroutines[s.Goroutine]
		g.Started = append(g.Started, i)
	}
	for i := range snap.Goroutines {
		slices.SortStableFunc(snap.Goroutines[i].Started, func(a, b int) int { return snap.Spans[a].Start.Compare(snap.Spans[b].Start) })
	}
	for i := range snap.Spans {
		snap.Spans[i].Joined = nil
	}
	for i := range snap.Goroutines {
		g := &snap.Goroutines[i]
		snap.place(g)
		if g.In >= 0 && snap.Spans[g.In].Goroutine != i {
			snap.Spans[g.In].Joined = append(snap.Spans[g.In].Joined, i)
		}
	}
	for i := range snap.Spans {
		slices.SortFunc(snap.Spans[i].Joined, func(a, b int) int { return cmp.Compare(snap.Goroutines[a].ID, snap.Goroutines[b].ID) })
	}
}

// place sets g.In and g.Elsewhere.
func (snap *Snapshot) place(g *Goroutine) {
	g.In, g.Elsewhere = -1, false
	if in, ok := snap.byRef[g.Span]; ok && g.SpanKnown {
		g.In = in
		return
	}
	for _, i := range slices.Backward(g.Started) {
		s := &snap.Spans[i]
		if !g.SpanKnown && s.within(g.LastPublished) {
			continue // The goroutine has gone back from this span.
		}
		if s.missed || !g.SpanKnown || g.Span != 0 {
			g.In, g.Elsewhere = i, s.missed || g.SpanKnown
		}
		return
	}
}
