// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/reader"
)

// Process is a process whose goroutines are looked at. It is not safe for concurrent use.
type Process struct {
	process *reader.Process
	code    *code
}

// Look is what a process was doing at one moment.
type Look struct {
	// Spans are the live spans, in no particular order.
	Spans []Span
	// Goroutines are the goroutines that have started them, each once. Spans have their indexes.
	Goroutines []Goroutine
	// Torn and Lost count what changed while it was read: see [reader.Goroutines].
	Torn, Lost int
	// Missing says what could not be found out of any goroutine, and why.
	Missing []error
}

// Span is a live span.
type Span struct {
	reader.LiveSpan

	// Goroutine is the index of the span's goroutine in [Look.Goroutines], negative if the span does
	// not say which it is.
	Goroutine int
}

// Goroutine is a goroutine that has started live spans.
type Goroutine struct {
	reader.Goroutine

	// Spans are the indexes of its spans in [Look.Spans], in the order in which they started. It is
	// empty if all of them have ended since.
	Spans []int
}

// Open begins to look at a process. Close releases it. The errors are those of package reader.
func Open(pid int) (*Process, error) {
	process, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	return &Process{process, newCode(pid)}, nil
}

// Close releases what the process holds.
func (p *Process) Close() error {
	p.code.close()
	return p.process.Close()
}

// Service returns the name of the process's service, "" if it publishes none.
func (p *Process) Service(ctx context.Context) string {
	attributes, _ := p.Resource(ctx)
	for _, kv := range attributes {
		if kv.GetKey() == string(semconv.ServiceNameKey) {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// Resource returns the attributes of the process's resource and their schema URL, nothing if it
// publishes none.
func (p *Process) Resource(ctx context.Context) (attributes []*commonpb.KeyValue, schemaURL string) {
	pc, err := p.process.ProcessContext(ctx)
	if err != nil {
		return nil, ""
	}
	return pc.Message.GetResource().GetAttributes(), pc.SchemaURL()
}

// Look looks once, at all goroutines. The errors are those of [reader.Process.Spans].
//
// Spans whose goroutine has exited are looked at once more and left out if they have ended by then: they
// had not yet when they were read, but had when the goroutine was.
func (p *Process) Look(ctx context.Context) (*Look, error) {
	look, err := p.Sample(ctx, 1)
	if err != nil {
		return nil, err
	}
	over := map[spanID]bool{}
	for _, s := range look.Spans {
		if s.Goroutine >= 0 && look.Goroutines[s.Goroutine].State == reader.GoroutineGone {
			over[idOf(&s.LiveSpan)] = true
		}
	}
	if len(over) == 0 {
		return look, nil
	}
	for batch, err := range p.process.SpanBatches(ctx) {
		if err != nil {
			return nil, err
		}
		for i := range batch {
			delete(over, idOf(&batch[i]))
		}
	}
	look.Spans = slices.DeleteFunc(look.Spans, func(s Span) bool { return over[idOf(&s.LiveSpan)] })
	look.index()
	return look, nil
}

// spanID is the identity of a span.
type spanID struct {
	trace [16]byte
	span  [8]byte
}

func idOf(s *reader.LiveSpan) spanID { return spanID{s.TraceID, s.SpanID} }

// index has goroutines know their spans.
func (l *Look) index() {
	counts := make([]int, len(l.Goroutines))
	for _, s := range l.Spans {
		if s.Goroutine >= 0 {
			counts[s.Goroutine]++
		}
	}
	all := make([]int, len(l.Spans))
	for i, n := range counts {
		l.Goroutines[i].Spans, all = all[:0:n], all[n:]
	}
	for i, s := range l.Spans {
		if s.Goroutine < 0 {
			continue
		}
		g := &l.Goroutines[s.Goroutine]
		g.Spans = append(g.Spans, i)
		// Few have many: the one started last goes to the end.
		for j := len(g.Spans) - 1; j > 0 && l.Spans[g.Spans[j-1]].Start.After(s.Start); j-- {
			g.Spans[j-1], g.Spans[j] = g.Spans[j], g.Spans[j-1]
		}
	}
}

// Sample looks once, and reads each goroutine with the given probability. The spans of the others are
// missing too.
func (p *Process) Sample(ctx context.Context, probability float64) (*Look, error) {
	look := new(Look)
	const leftOut = -2
	known := map[reader.GoroutineRef]int{}
	var refs []reader.GoroutineRef
	for batch, err := range p.process.SpanBatches(ctx) {
		if err != nil {
			return nil, err
		}
		refs = refs[:0]
		first := len(look.Goroutines)
		for _, s := range batch {
			span := Span{s, -1}
			ref := reader.GoroutineRef{ID: s.Goroutine, G: s.G}
			if ref.ID != 0 && ref.G != 0 {
				i, ok := known[ref]
				if !ok && probability < 1 && rand.Float64() >= probability { //nolint:gosec // G404: chance, not secrecy
					i, ok = leftOut, true
					known[ref] = leftOut
				}
				if !ok {
					i = first + len(refs)
					known[ref] = i
					refs = append(refs, ref)
				}
				if i == leftOut {
					continue
				}
				span.Goroutine = i
			}
			look.Spans = append(look.Spans, span)
		}
		// At once: goroutines move on.
		found, err := p.process.Goroutines(ctx, refs, reader.GoroutineOptions{Stacks: true, Code: p.code})
		if err != nil {
			return nil, err
		}
		for _, g := range found.Goroutines {
			look.Goroutines = append(look.Goroutines, Goroutine{Goroutine: g})
		}
		look.Torn, look.Lost = look.Torn+found.Torn, look.Lost+found.Lost
		look.Missing = nil
		for _, err := range []error{found.StateErr, found.StacksErr, found.ReasonsErr} {
			if err != nil {
				look.Missing = append(look.Missing, err)
			}
		}
	}
	look.index()
	return look, nil
}

// Frames returns the stack of a goroutine with the names of its functions, those that the compiler has
// inlined among them, the innermost first. A function whose name is not known has its address instead.
func (p *Process) Frames(g *Goroutine) []Frame {
	frames := make([]Frame, 0, len(g.Stack)+8)
	for _, pc := range g.Stack {
		if l := p.code.location(pc); len(l.Lines) > 0 {
			frames = append(frames, l.Lines...)
		} else {
			frames = append(frames, Frame{Function: fmt.Sprintf("%#x", pc)})
		}
	}
	return frames
}

// Locations returns the stack of a goroutine as profiles have it, the innermost first. Nobody may
// change the locations.
func (p *Process) Locations(g *Goroutine) []*symbols.Location {
	stack := make([]*symbols.Location, len(g.Stack))
	for i, pc := range g.Stack {
		stack[i] = p.code.location(pc)
	}
	return stack
}

// Frame is a function of a stack.
type Frame = symbols.Line
