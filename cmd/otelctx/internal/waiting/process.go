// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/reader"
)

// Process is a process whose goroutines are read. It is not safe for concurrent use.
type Process struct {
	pid     int
	process *reader.Process
	files   *symbols.Files
	program *Program // nil before the first call of Program
	// scratch is memory that successive samples reuse, and spare a snapshot whose memory the next one may use, or nil.
	scratch scratch
	spare   *Snapshot
}

// Open prepares to read a process, which must be closed. The error wraps one of package reader.
func Open(pid int) (*Process, error) {
	process, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	return &Process{pid: pid, process: process, files: symbols.NewFiles()}, nil
}

// Close closes the process. Its snapshots stay valid.
func (p *Process) Close() error {
	if p.program != nil {
		p.program.code.close()
	}
	p.files.Close()
	return p.process.Close()
}

// Program is what has been learnt about the program that a process runs: its resource and its code. After an exec, and
// after the process has published its context again, the process has another Program.
type Program struct {
	// Attributes and SchemaURL describe the resource. They are nil and "" if the program publishes none.
	Attributes []*commonpb.KeyValue
	SchemaURL  string

	layout *reader.ThreadLayout
	code   *code
}

// errReplaced means that a process executed a program or published its context while it was read.
var errReplaced = fmt.Errorf("%w: the process has just executed a program or published again", reader.ErrBusy)

// CountRequests counts the requests to the program that the process runs, as of the last call of Program, for this service.
func (p *Process) CountRequests(r *requests.Process, c *requests.Counter, service string) {
	r.Read(c, p.process, func() (*reader.ThreadLayout, string) { return p.program.layout, service })
}

// Program returns the program that the process runs now. The errors are those of [reader.Process.ThreadLayout].
func (p *Process) Program(ctx context.Context) (*Program, error) {
	var known *reader.ThreadLayout
	if p.program != nil {
		known = p.program.layout
	}
	layout, err := p.process.ThreadLayoutSince(ctx, known)
	if err != nil {
		return nil, err
	}
	if p.program != nil && layout == known {
		return p.program, nil
	}
	next := &Program{layout: layout, code: openCode(p.pid, p.files)}
	if pc := layout.Context; pc != nil {
		next.Attributes, next.SchemaURL = pc.Resource.GetAttributes(), pc.SchemaURL()
	}
	if p.program != nil {
		p.program.code.close()
	}
	p.program = next
	return next, p.confirm(ctx, next)
}

// confirm returns an error that wraps errReplaced unless the process still runs the program.
func (p *Process) confirm(ctx context.Context, program *Program) error {
	layout, err := p.process.ThreadLayoutSince(ctx, program.layout)
	if err == nil && layout != program.layout && layout.Advertisement != nil { // without one there is nothing to read
		err = errReplaced
	}
	return err
}

// Service returns the service name of the program, or "" if it publishes none.
func (p *Program) Service() string {
	for _, kv := range p.Attributes {
		if kv.GetKey() == string(semconv.ServiceNameKey) {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// MaxFrames is the maximum number of frames that [Program.Frames] returns. It limits what a process with forged inlined
// calls can make of a stack.
const MaxFrames = 1 << 14

// Frames returns the stack of a goroutine, the innermost frame first, including inlined functions. The name
// of an unknown function is its address. Long names are cut, and frames after the first MaxFrames are left out.
func (p *Program) Frames(g *Goroutine) []Frame {
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

// Unnamed returns the reason why functions in stacks that were symbolized so far have no names, or nil.
func (p *Program) Unnamed() error {
	if p.code == nil || p.code.unreadable == "" {
		return nil
	}
	return fmt.Errorf("names of functions: the table of Go functions in %s cannot be read; programs made by garble hide it", p.code.unreadable)
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
func (p *Program) Locations(g *Goroutine) []*symbols.Location {
	stack := make([]*symbols.Location, len(g.Stack))
	for i, pc := range g.Stack {
		stack[i] = p.code.location(pc)
	}
	return stack
}

// Frame is a function in a stack.
type Frame = symbols.Line
