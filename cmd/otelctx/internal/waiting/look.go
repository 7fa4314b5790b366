// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"

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

	// Spans are the indexes of its spans in [Look.Spans], the one that was started last being the
	// last.
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
	pc, err := p.process.ProcessContext(ctx)
	if err != nil {
		return ""
	}
	for _, kv := range pc.Message.GetResource().GetAttributes() {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// Look looks once. The errors are those of [reader.Process.Spans].
func (p *Process) Look(ctx context.Context) (*Look, error) {
	look := new(Look)
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
				if !ok {
					i = first + len(refs)
					known[ref] = i
					refs = append(refs, ref)
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
	for i, s := range look.Spans {
		if s.Goroutine >= 0 {
			g := &look.Goroutines[s.Goroutine]
			g.Spans = append(g.Spans, i)
			// Few have many: the one started last goes to the end.
			for j := len(g.Spans) - 1; j > 0 && look.Spans[g.Spans[j-1]].Start.After(s.Start); j-- {
				g.Spans[j-1], g.Spans[j] = g.Spans[j], g.Spans[j-1]
			}
		}
	}
	return look, nil
}

// Frames returns the stack of a goroutine with the names of its functions, those that the compiler has
// inlined among them, the innermost first.
func (p *Process) Frames(g *Goroutine) []Frame {
	frames := make([]Frame, 0, len(g.Stack)+8)
	for _, pc := range g.Stack {
		frames = append(frames, p.code.frames(pc)...)
	}
	return frames
}

// Frame is a function of a stack. Function is a number in hexadecimal if its name is not known.
type Frame = symbols.Line

// ErrLeft reports whether an error of a look says that the process is gone.
func ErrLeft(err error) bool { return errors.Is(err, reader.ErrProcessGone) }
