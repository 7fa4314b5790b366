// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/reader"
)

// Every reads every goroutine of a process, whether it is in a span or not. What it says about locks, channels and
// sockets is complete when all have been read. It is not safe for concurrent use.
type Every struct {
	// Program is the program that the process was running.
	Program *Program
	// Torn and Lost count goroutines that changed while they were read: see [reader.Goroutines].
	Torn, Lost int
	// Missing holds the reasons why some of the data could not be read so far.
	Missing []error

	*others

	process *Process
	polls   []poll
	refs    []reader.GoroutineRef // those that are still to be read
	spans   map[reader.SpanRef]SpanNames
	frames  int
}

// Occupant is a goroutine and the names of the live span that it is in, or nil if it is in none or that is unknown.
type Occupant struct {
	Goroutine

	Span *SpanNames
}

// SpanNames are the names of a span and of its local root.
type SpanNames struct{ Name, Endpoint string }

// everyBatch is the number of goroutines that are read at a time.
const everyBatch = 2048

// Every prepares to read every goroutine. The error wraps [reader.ErrNoGoroutineList] if they were not found. Other errors
// are those of [reader.Process.Spans].
func (p *Process) Every(ctx context.Context) (*Every, error) {
	program, err := p.Program(ctx)
	if err != nil {
		return nil, err
	}
	program.code.finder.Reset()
	e := &Every{Program: program, others: newOthers(), process: p, spans: map[reader.SpanRef]SpanNames{}}
	for batch, err := range p.process.SpanBatches(ctx) {
		if errors.Is(err, reader.ErrNoThreadContext) {
			break // A process may publish goroutines without spans.
		}
		if err != nil {
			return nil, err
		}
		for i := range batch {
			e.spans[batch[i].Ref] = SpanNames{batch[i].Name, batch[i].Endpoint}
		}
	}
	if e.refs, err = p.process.AllGoroutines(ctx); err != nil {
		return nil, err
	}
	// The first call finds out how to read the others, from a sample of all.
	const sample = 256
	var some []reader.GoroutineRef
	for i := 0; i < len(e.refs); i += max(1, len(e.refs)/sample) {
		some = append(some, e.refs[i])
	}
	if _, err := p.process.Goroutines(ctx, some, e.options()); err != nil {
		return nil, err
	}
	return e, p.confirm(ctx, program)
}

func (e *Every) options() reader.GoroutineOptions {
	return reader.GoroutineOptions{Stacks: true, Spans: true, Details: true, Code: e.Program.code}
}

// Next returns further goroutines, and none if all have been read. The errors are those of [reader.Process.Spans].
func (e *Every) Next(ctx context.Context) ([]Occupant, error) {
	for len(e.refs) > 0 {
		options := e.options()
		if options.Stacks = e.frames < maxEveryFrames; !options.Stacks {
			e.miss(errTooManyFrames)
		}
		batch := e.refs[:min(len(e.refs), everyBatch)]
		found, err := e.process.process.Goroutines(ctx, batch, options)
		if err != nil {
			return nil, err
		}
		e.refs = e.refs[len(batch):]
		e.Torn, e.Lost = e.Torn+found.Torn, e.Lost+found.Lost
		for _, err := range []error{found.StateErr, found.StacksErr, found.ReasonsErr} {
			e.miss(err)
		}
		var alive []Occupant
		for _, g := range found.Goroutines {
			if g.State == reader.GoroutineGone {
				continue
			}
			e.frames += len(g.Stack)
			o := Occupant{Goroutine: Goroutine{Goroutine: g, In: -1}}
			if g.SpanKnown && g.Span != 0 && !e.Program.servesConnection(&o.Goroutine) {
				if names, ok := e.spans[g.Span]; ok {
					o.Span = &names
				}
			}
			e.add(e.Program, &o.Goroutine.Goroutine)
			e.holders.add(e.Program, &o)
			if o.Wait.Polled {
				e.polls = append(e.polls, newPoll(&o.Goroutine.Goroutine, o.ID))
			}
			alive = append(alive, o)
		}
		if err := e.process.confirm(ctx, e.Program); err != nil {
			return nil, err
		}
		if len(alive) > 0 {
			return alive, nil
		}
	}
	return nil, nil
}

// FindObjects finds out who holds the locks, and looks up the sockets, that the goroutines read so far wait for.
func (e *Every) FindObjects(ctx context.Context) error {
	missing, err := e.process.proveHolders(ctx, e.Program, &e.holders)
	if err != nil {
		return err
	}
	e.miss(missing)
	polls := slices.Concat(e.polls, e.holderPolls(e.Program))
	e.polls = nil
	return e.process.findSockets(ctx, e.others, polls)
}

// maxEveryFrames is the number of frames after which no further stacks are read. They are not all in memory at once.
const maxEveryFrames = 1 << 24

func (e *Every) miss(err error) {
	if err != nil && !slices.ContainsFunc(e.Missing, func(m error) bool { return m.Error() == err.Error() }) {
		e.Missing = append(e.Missing, err)
	}
}

// Location returns the function that contains the instruction at this address, or nil if it is unknown.
func (p *Program) Location(pc uint64) *Frame {
	frames := p.Frames(&Goroutine{Goroutine: reader.Goroutine{Stack: []uint64{pc}}})
	if pc == 0 || len(frames) == 0 || unnamed(frames[0]) {
		return nil
	}
	return &frames[0]
}

// IsRuntime reports whether a goroutine belongs to the Go runtime, whose own tracebacks do not show such goroutines: it
// was started with a function of the runtime, and runs no other.
func (p *Program) IsRuntime(g *Goroutine) bool {
	entry := p.Location(g.Entry)
	if entry == nil {
		return false
	}
	name, inRuntime := strings.CutPrefix(entry.Function, "runtime.")
	return inRuntime && name != "main" && !exported(name) && !slices.ContainsFunc(g.Stack, func(pc uint64) bool {
		function, _, ok := p.code.Frame(pc)
		return ok && !strings.HasPrefix(function, "runtime.")
	})
}
