// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/reader"
)

// Process is a process whose goroutines are read. It is not safe for concurrent use.
type Process struct {
	process *reader.Process
	code    *code
	// spans and goroutines are the numbers of spans and goroutines in the last snapshot. They size the next
	// one.
	spans, goroutines int
}

// Snapshot holds the live spans of a process and the goroutines that started them or are in them.
type Snapshot struct {
	// Spans lists the live spans in no particular order.
	Spans []Span
	// Goroutines lists each goroutine that started one of these spans or is in one of them.
	Goroutines []Goroutine
	// Torn and Lost count goroutines that changed while they were read: see [reader.Goroutines].
	Torn, Lost int
	// Missing holds the reasons why some of the data could not be read.
	Missing []error
}

// Span is a live span.
type Span struct {
	reader.LiveSpan

	// Goroutine is the index in [Snapshot.Goroutines] of the goroutine that started the span, negative if
	// unknown.
	Goroutine int
	// Joined holds the indexes of the other goroutines that are in the span, for example because they have
	// attached it.
	Joined []int
	// Leaked says how the goroutine that started the span left it without ending it. It is "" if that
	// goroutine has not left the span, or if another goroutine is known to be in the span or in one of its
	// descendants.
	Leaked Leak
}

// Leak is the way in which a goroutine left a live span that it started. "" means that the span has not
// leaked.
type Leak string

const (
	// Exited means that the goroutine has exited.
	Exited Leak = "exited"
	// MovedOn means that the goroutine is in no span, in a span of another trace, or in an ancestor of this span.
	MovedOn Leak = "moved_on"
)

// Goroutine is a goroutine that has started live spans or is in one.
type Goroutine struct {
	reader.Goroutine

	// Started holds the indexes in [Snapshot.Spans] of the live spans that the goroutine started, the latest
	// last.
	Started []int
	// In is the index of the span that the goroutine is in, or negative if it is in none. If the process
	// does not publish which span a goroutine is in, In is the live span that the goroutine started last.
	In int

	// read is the time just before the goroutine was read.
	read time.Time
}

// Open prepares to read a process. Close releases it. The errors are those of package reader.
func Open(pid int) (*Process, error) {
	process, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	return &Process{process: process, code: newCode(pid)}, nil
}

// Close closes the process. Its snapshots stay valid.
func (p *Process) Close() error {
	p.code.close()
	return p.process.Close()
}

// Service returns the service name of the process, or "" if it publishes none.
func (p *Process) Service(ctx context.Context) string {
	attributes, _ := p.Resource(ctx)
	for _, kv := range attributes {
		if kv.GetKey() == string(semconv.ServiceNameKey) {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// Resource returns the attributes and the schema URL of the process's resource, or nil and "" if it
// publishes none.
func (p *Process) Resource(ctx context.Context) (attributes []*commonpb.KeyValue, schemaURL string) {
	pc, err := p.process.ProcessContext(ctx)
	if err != nil {
		return nil, ""
	}
	return pc.Message.GetResource().GetAttributes(), pc.SchemaURL()
}

// Options select what to read.
type Options struct {
	// Stacks requests stacks, and Attributes the published attributes of spans.
	Stacks, Attributes bool
	// Probability is the probability of reading each goroutine; 0 reads all of them.
	Probability float64
}

// Snapshot takes a snapshot and confirms leaks. The errors are those of [reader.Process.Spans].
//
// Spans are read before their goroutines. In between, a span may end, or its goroutine may not yet have
// published that it is in the span. Both cases resemble a leak, so a leak is reported only if a second
// snapshot confirms it. Apparently leaked spans that have ended by the second snapshot are left out.
func (p *Process) Snapshot(ctx context.Context) (*Snapshot, error) {
	snapshot, err := p.Sample(ctx, Options{Stacks: true, Attributes: true})
	if err != nil {
		return nil, err
	}
	snapshot.findLeaks()
	if !slices.ContainsFunc(snapshot.Spans, func(s Span) bool { return s.Leaked != "" }) {
		return snapshot, nil
	}
	again, err := p.Sample(ctx, Options{})
	if err != nil {
		return nil, err
	}
	again.findLeaks()
	leaked := make(map[reader.SpanRef]Leak, len(again.Spans))
	for i := range again.Spans {
		leaked[again.Spans[i].Ref] = again.Spans[i].Leaked
	}
	snapshot.Spans = slices.DeleteFunc(snapshot.Spans, func(s Span) bool {
		_, live := leaked[s.Ref]
		return s.Leaked != "" && !live
	})
	for i := range snapshot.Spans {
		if s := &snapshot.Spans[i]; s.Leaked != "" {
			s.Leaked = leaked[s.Ref]
		}
	}
	snapshot.index()
	return snapshot, nil
}

// index fills in [Goroutine.Started], [Goroutine.In] and [Span.Joined].
func (snap *Snapshot) index() {
	counts := make([]int, len(snap.Goroutines))
	for i := range snap.Spans {
		if g := snap.Spans[i].Goroutine; g >= 0 {
			counts[g]++
		}
	}
	all := make([]int, len(snap.Spans))
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
		// Keep Started sorted by start time. An insertion is cheap, because few goroutines have many spans.
		for j := len(g.Started) - 1; j > 0 && snap.Spans[g.Started[j-1]].Start.After(s.Start); j-- {
			g.Started[j-1], g.Started[j] = g.Started[j], g.Started[j-1]
		}
	}
	snap.place()
}

// place fills in [Goroutine.In] and [Span.Joined].
func (snap *Snapshot) place() {
	byRef := make(map[reader.SpanRef]int, len(snap.Spans))
	for i := range snap.Spans {
		snap.Spans[i].Joined = nil
		byRef[snap.Spans[i].Ref] = i
	}
	for i := range snap.Goroutines {
		g := &snap.Goroutines[i]
		g.In = -1
		if n := len(g.Started); n > 0 {
			g.In = g.Started[n-1]
		}
		if !g.SpanKnown {
			continue
		}
		// A span that is not in the snapshot started after the spans were read.
		if in, ok := byRef[g.Span]; ok {
			g.In = in
		} else if g.Span == 0 {
			g.In = -1
		}
		if g.In >= 0 && snap.Spans[g.In].Goroutine != i {
			snap.Spans[g.In].Joined = append(snap.Spans[g.In].Joined, i)
		}
	}
}

// findLeaks fills in [Span.Leaked].
func (snap *Snapshot) findLeaks() {
	byRef := make(map[reader.SpanRef]int, len(snap.Spans))
	for i := range snap.Spans {
		byRef[snap.Spans[i].Ref] = i
	}
	// occupied reports for each span whether a goroutine is in it or in a descendant.
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
			if i, ok := byRef[ancestor]; ok {
				occupy(i)
			}
		}
	}
	for i := range snap.Spans {
		s := &snap.Spans[i]
		s.Leaked = ""
		if occupied[i] || s.Goroutine < 0 {
			continue
		}
		switch g := &snap.Goroutines[s.Goroutine]; {
		case g.State == reader.GoroutineGone:
			s.Leaked = Exited
		case g.State == reader.GoroutineUnknown:
		// A goroutine in a sibling of the span may still return to the span, so it does not count as moved
		// on.
		case g.In < 0 || snap.Spans[g.In].TraceID != s.TraceID || slices.Contains(s.Ancestors[:], snap.Spans[g.In].Ref):
			s.Leaked = MovedOn
		}
	}
}

// maxFrames is the number of frames after which a snapshot reads no further stacks, so that a process with
// millions of forged frames cannot exhaust the reader's memory. Ordinary programs have a few dozen frames per
// goroutine.
const maxFrames = 1 << 19

var errTooManyFrames = fmt.Errorf("stacks of further goroutines: there are more than %d frames", maxFrames)

// Sample takes a snapshot without confirming leaks.
func (p *Process) Sample(ctx context.Context, options Options) (*Snapshot, error) {
	const spare = 16 // room for more entries than in the last snapshot
	snapshot := &Snapshot{Spans: make([]Span, 0, p.spans+spare), Goroutines: make([]Goroutine, 0, p.goroutines+spare)}
	const leftOut = -1
	known := make(map[reader.GoroutineRef]int, p.goroutines)
	var refs []reader.GoroutineRef
	// want requests a goroutine. It returns the index that the goroutine will have in the snapshot, or leftOut if
	// it is not read.
	want := func(ref reader.GoroutineRef) int {
		i, ok := known[ref]
		if !ok {
			if options.Probability > 0 && options.Probability < 1 && rand.Float64() >= options.Probability { //nolint:gosec // G404: chance, not secrecy
				i = leftOut
			} else {
				i = len(snapshot.Goroutines) + len(refs)
				refs = append(refs, ref)
			}
			known[ref] = i
		}
		return i
	}
	frames := 0
	read := func() error {
		now := time.Now()
		stacks := options.Stacks && frames < maxFrames
		found, err := p.process.Goroutines(ctx, refs, reader.GoroutineOptions{Stacks: stacks, Spans: true, Attributes: options.Attributes, Code: p.code})
		if err != nil {
			return err
		}
		for _, g := range found.Goroutines {
			snapshot.Goroutines = append(snapshot.Goroutines, Goroutine{Goroutine: g, read: now})
			frames += len(g.Stack)
		}
		refs = refs[:0]
		snapshot.Torn, snapshot.Lost = snapshot.Torn+found.Torn, snapshot.Lost+found.Lost
		snapshot.Missing = nil
		for _, err := range []error{found.StateErr, found.StacksErr, found.ReasonsErr} {
			if err != nil {
				snapshot.Missing = append(snapshot.Missing, err)
			}
		}
		if stacks != options.Stacks {
			snapshot.Missing = append(snapshot.Missing, errTooManyFrames)
		}
		return nil
	}
	for batch, err := range p.process.SpanBatches(ctx) {
		if err != nil {
			return nil, err
		}
		for _, s := range batch {
			span := Span{LiveSpan: s, Goroutine: -1}
			if ref := (reader.GoroutineRef{ID: s.Goroutine, G: s.G}); ref.ID != 0 && ref.G != 0 {
				span.Goroutine = want(ref)
			}
			snapshot.Spans = append(snapshot.Spans, span)
		}
		if err := read(); err != nil { // Read immediately, because goroutines move on.
			return nil, err
		}
	}
	joined, err := p.process.JoinedGoroutines(ctx)
	if err != nil {
		return nil, err
	}
	for _, ref := range joined {
		want(ref)
	}
	if len(refs) > 0 {
		if err := read(); err != nil {
			return nil, err
		}
	}
	p.spans, p.goroutines = len(snapshot.Spans), len(snapshot.Goroutines)
	snapshot.index()
	if err := p.forgetMoves(ctx, snapshot); err != nil {
		return nil, err
	}
	return snapshot, nil
}

// forgetMoves corrects goroutines that moved to another span while the snapshot was taken. If the span that
// a goroutine started last ended before the snapshot was complete, or started after the goroutine was read,
// the goroutine counts as still in that span. Otherwise it would count for an enclosing span, because its
// next span may be unknown.
func (p *Process) forgetMoves(ctx context.Context, snapshot *Snapshot) error {
	live := map[reader.SpanRef]bool{}
	moved := func(g *Goroutine) *Span {
		if n := len(g.Started); n > 0 && g.SpanKnown && g.Span != snapshot.Spans[g.Started[n-1]].Ref {
			return &snapshot.Spans[g.Started[n-1]]
		}
		return nil
	}
	for i := range snapshot.Goroutines {
		if s := moved(&snapshot.Goroutines[i]); s != nil {
			live[s.Ref] = false
		}
	}
	if len(live) == 0 {
		return nil
	}
	for batch, err := range p.process.SpanBatches(ctx) {
		if err != nil {
			return err
		}
		for i := range batch {
			if _, wanted := live[batch[i].Ref]; wanted {
				live[batch[i].Ref] = true
			}
		}
	}
	for i := range snapshot.Goroutines {
		g := &snapshot.Goroutines[i]
		if s := moved(g); s != nil && (!live[s.Ref] || s.Start.After(g.read)) {
			g.SpanKnown = false
		}
	}
	snapshot.place()
	return nil
}

// MaxFrames is the maximum number of frames that [Process.Frames] returns. It limits what a process with forged inlined
// calls can make of a stack.
const MaxFrames = 1 << 14

// Frames returns the stack of a goroutine, the innermost frame first, including inlined functions. The name
// of an unknown function is its address. Long names are cut, and frames after the first MaxFrames are left out.
func (p *Process) Frames(g *Goroutine) []Frame {
	frames := make([]Frame, 0, len(g.Stack)+8)
	for _, pc := range g.Stack {
		lines := p.code.location(pc).Lines
		if len(lines) == 0 {
			lines = []Frame{{Function: fmt.Sprintf("%#x", pc)}}
		}
		for _, line := range lines {
			if len(frames) == MaxFrames {
				return frames
			}
			line.Function, line.File = cutName(line.Function), cutName(line.File)
			frames = append(frames, line)
		}
	}
	return frames
}

// cutName shortens the name of a function or a file. A program may give them any length.
func cutName(name string) string {
	const maxName = 512 // bytes
	if len(name) <= maxName {
		return name
	}
	return strings.ToValidUTF8(name[:maxName], "") + "…"
}

// Locations returns the stack of a goroutine in the form that profiles use, the innermost frame first. The
// locations must not be changed.
func (p *Process) Locations(g *Goroutine) []*symbols.Location {
	stack := make([]*symbols.Location, len(g.Stack))
	for i, pc := range g.Stack {
		stack[i] = p.code.location(pc)
	}
	return stack
}

// Frame is a function in a stack.
type Frame = symbols.Line
