// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/otelctx/otelctx/reader"
)

// Options select what to read.
type Options struct {
	// Stacks requests stacks, and Attributes the published attributes of spans.
	Stacks, Attributes bool
	// Details requests what goroutines wait for and who started them.
	Details bool
	// Probability is the probability of reading each goroutine; 0 reads all of them.
	Probability float64
	// Examined limits the goroutines that are examined to find those that have inherited a span. If there are more,
	// a random sample is examined. 0 examines all of them.
	Examined int
}

// maxFrames is the number of frames after which a snapshot has no further stacks, so that a process with
// millions of forged frames cannot exhaust the reader's memory. Ordinary programs have a few dozen frames per
// goroutine.
const maxFrames = 1 << 19

var errTooManyFrames = fmt.Errorf("stacks of further goroutines: there are more than %d frames", maxFrames)

// Sample takes a snapshot without confirming leaks. The errors are those of [reader.Process.Spans].
func (p *Process) Sample(ctx context.Context, options Options) (*Snapshot, error) {
	program, err := p.Program(ctx)
	if err != nil {
		return nil, err
	}
	if options.Probability <= 0 {
		options.Probability = 1
	}
	s := &sampling{Process: p, options: options, share: 1, scratch: &p.scratch, Snapshot: &Snapshot{Program: program}}
	if spare := p.spare; spare != nil {
		p.spare = nil
		s.Spans, s.Goroutines, s.byRef, s.started = spare.Spans[:0], spare.Goroutines[:0], spare.byRef, spare.started
	}
	s.reset()
	for batch, err := range p.process.SpanBatches(ctx) {
		if err != nil {
			return nil, err
		}
		for i := range batch {
			s.addSpan(&batch[i])
		}
		if err := s.read(ctx); err != nil { // Read immediately, because goroutines move on.
			return nil, err
		}
	}
	joined, err := p.process.JoinedGoroutines(ctx, s.isKnown)
	if err != nil {
		return nil, err
	}
	for _, ref := range joined {
		s.want(ref)
	}
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	if err := s.readInherited(ctx); err != nil {
		return nil, err
	}
	s.index()
	if err := s.reconcile(ctx); err != nil {
		return nil, err
	}
	return s.Snapshot, p.confirm(ctx, program)
}

// Recycle lets the next snapshot use the memory of this one, which must not be used afterwards. It frees the memory of a
// snapshot with very many goroutines, such as the first one of a process that has them: later ones read only some.
func (p *Process) Recycle(snap *Snapshot) {
	if len(snap.Goroutines) > maxRecycled {
		p.scratch = scratch{}
		return
	}
	p.spare = snap
}

// maxRecycled is the number of goroutines up to which a snapshot's memory is kept.
const maxRecycled = 1 << 12

// sampling is the state of Sample.
type sampling struct {
	*Process
	*Snapshot
	*scratch

	options Options
	// share is the share of the goroutines to be read that was examined.
	share float64
	// frames is the number of frames in the stacks read so far.
	frames int
}

// scratch is memory that successive samples reuse.
type scratch struct {
	// known maps goroutines to their indexes in the snapshot, or to leftOut. refs lists the goroutines that are still
	// to be read.
	known map[reader.GoroutineRef]int
	refs  []reader.GoroutineRef
	// times holds the time just before each goroutine was read, by its index in the snapshot.
	times []time.Time
}

func (s *scratch) reset() {
	if s.known == nil {
		s.known = map[reader.GoroutineRef]int{}
	}
	clear(s.known)
	s.refs, s.times = s.refs[:0], s.times[:0]
}

// leftOut is the index of a goroutine that is not read.
const leftOut = -1

// addSpan adds a span, and requests the goroutine that started it.
func (s *sampling) addSpan(l *reader.LiveSpan) {
	span := Span{LiveSpan: *l, Goroutine: -1}
	if ref := l.Starter; ref.ID != 0 && ref.G != 0 {
		span.Goroutine = s.want(ref)
	}
	s.Spans = append(s.Spans, span)
}

// want requests a goroutine. It returns the index that the goroutine will have in the snapshot, or leftOut.
func (s *sampling) want(ref reader.GoroutineRef) int {
	i, ok := s.known[ref]
	if !ok {
		if p := s.options.Probability; p < 1 && rand.Float64() >= p { //nolint:gosec // G404: chance, not secrecy
			i = leftOut
		} else {
			i = len(s.Goroutines) + len(s.refs)
			s.refs = append(s.refs, ref)
		}
		s.known[ref] = i
	}
	return i
}

// isKnown reports whether a goroutine has been requested before.
func (s *sampling) isKnown(ref reader.GoroutineRef) bool {
	_, known := s.known[ref]
	return known
}

// readInherited reads the goroutines that have inherited a span and published nothing themselves.
func (s *sampling) readInherited(ctx context.Context) error {
	most := s.options.Examined
	if most == 0 {
		most = math.MaxInt
	}
	inherited, share, err := s.process.InheritedGoroutines(ctx, most, s.isKnown)
	if errors.Is(err, reader.ErrNoGoroutineList) {
		s.miss(fmt.Errorf("goroutines that have inherited a span: %w", err))
		return nil
	}
	if err != nil {
		return err
	}
	s.share = share
	for _, ref := range inherited {
		s.want(ref)
	}
	first := len(s.Goroutines)
	s.options.Stacks = true
	if err := s.read(ctx); err != nil {
		return err
	}
	for i := range s.Goroutines[first:] {
		if g := &s.Goroutines[first+i]; s.Snapshot.Program.servesConnection(g) {
			g.Span, g.SpanKnown = 0, false
		}
	}
	return nil
}

// servesConnection reports whether a goroutine reads or writes a connection for net/http. It may have inherited the span
// of a request, but works for every request on the connection.
func (p *Program) servesConnection(g *Goroutine) bool {
	return slices.ContainsFunc(g.Stack, func(pc uint64) bool {
		switch function, _, _ := p.code.Frame(pc); function {
		case "net/http.(*persistConn).readLoop", "net/http.(*persistConn).writeLoop", "net/http.(*connReader).backgroundRead",
			"net/http.(*http2ClientConn).readLoop", "golang.org/x/net/http2.(*ClientConn).readLoop":
			return true
		}
		return false
	})
}

func (s *sampling) read(ctx context.Context) error {
	if len(s.refs) == 0 {
		return nil
	}
	now := time.Now()
	stacks := s.options.Stacks && s.frames <= maxFrames
	found, err := s.process.Goroutines(ctx, s.refs, reader.GoroutineOptions{
		Stacks: stacks, Spans: true, Attributes: s.options.Attributes, Details: s.options.Details, Code: s.Snapshot.Program.code,
	})
	if err != nil {
		return err
	}
	for _, g := range found.Goroutines {
		if s.frames += len(g.Stack); s.frames > maxFrames {
			g.Stack = nil
		}
		s.Goroutines = append(s.Goroutines, Goroutine{Goroutine: g, Weight: 1 / (s.options.Probability * s.share)})
		s.times = append(s.times, now)
	}
	s.refs = s.refs[:0]
	s.Torn, s.Lost = s.Torn+found.Torn, s.Lost+found.Lost
	for _, err := range []error{found.StateErr, found.StacksErr, found.ReasonsErr} {
		s.miss(err)
	}
	if s.options.Stacks && s.frames > maxFrames {
		s.miss(errTooManyFrames)
	}
	return nil
}

// miss adds a reason why data is missing, unless it is nil or known.
func (s *sampling) miss(err error) {
	if err != nil && !slices.ContainsFunc(s.Missing, func(m error) bool { return m.Error() == err.Error() }) {
		s.Missing = append(s.Missing, err)
	}
}

// reconcile finds out what has changed between the reading of the spans and that of their goroutines. It adds the spans
// to which goroutines have moved, and marks the spans that had ended or had not started yet when their goroutine was
// read.
func (s *sampling) reconcile(ctx context.Context) error {
	live := map[reader.SpanRef]bool{}
	for i := range s.Goroutines {
		g := &s.Goroutines[i]
		if n := len(g.Started); g.SpanKnown && n > 0 && g.Span == s.Spans[g.Started[n-1]].Ref {
			continue // It is in the span that it started last.
		}
		for _, started := range g.Started {
			live[s.Spans[started].Ref] = false
		}
		if g.SpanKnown && g.Span != 0 {
			live[g.Span] = false
		}
	}
	if len(live) == 0 {
		return nil
	}
	refs := make([]reader.SpanRef, 0, len(live))
	for ref := range live {
		refs = append(refs, ref)
	}
	found, err := s.process.SpansByRef(ctx, refs)
	if err != nil {
		return err
	}
	now := time.Now()
	for i := range found {
		live[found[i].Ref] = true
		if _, ok := s.byRef[found[i].Ref]; ok {
			continue
		}
		span := Span{LiveSpan: found[i], Goroutine: leftOut}
		if goroutine, ok := s.known[span.Starter]; ok {
			span.Goroutine = goroutine
		}
		s.Spans = append(s.Spans, span)
	}
	for i := range s.Spans {
		span := &s.Spans[i]
		if isLive, checked := live[span.Ref]; checked && span.Goroutine >= 0 {
			g := &s.Goroutines[span.Goroutine]
			inIt := g.SpanKnown && g.Span == span.Ref
			// The start may be any time that the program has chosen, even one to come.
			late := span.Start.After(s.times[span.Goroutine]) && span.Start.Before(now)
			span.missed = !isLive || late && !inIt
		}
	}
	s.index()
	return nil
}
