// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package callstack describes the stacks of goroutines in the output of otelctx.
package callstack

import (
	"fmt"
	"path"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
)

// Stack is the stack of a goroutine. If it is incomplete, Error is the reason.
type Stack struct {
	// Frames are the innermost first. Long names of functions and files are cut.
	Frames []Code `json:"frames"`
	Error  string `json:"error"`

	visible []Code // those that Go's own stack traces show
}

// Code is a position in the program's code. Unknown fields are "" or 0.
type Code struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// New returns the symbolized stack of a goroutine.
func New(p *waiting.Program, g *waiting.Goroutine) Stack {
	frames := p.Frames(g)
	s := Stack{Frames: make([]Code, 0, len(frames))}
	for _, f := range frames {
		s.Frames = append(s.Frames, Code{f.Function, f.File, f.Line})
	}
	for _, f := range waiting.Visible(frames) {
		s.visible = append(s.visible, Code{f.Function, f.File, f.Line})
	}
	switch {
	case g.StackErr != nil:
		s.Error = g.StackErr.Error()
	case len(frames) == waiting.MaxFrames:
		s.Error = fmt.Sprintf("only the first %d frames are shown", waiting.MaxFrames)
	}
	return s
}

// User returns the innermost frame of the user's own code, or nil if there is none: see [waiting.Program.User].
func User(p *waiting.Program, frames []waiting.Frame) *Code {
	if i := p.User(frames); i >= 0 {
		return &Code{frames[i].Function, frames[i].File, frames[i].Line}
	}
	return nil
}

// Text returns the function and its place, if that is known.
func (c *Code) Text(l display.Layout) string {
	if c.File == "" {
		return c.function(l)
	}
	return fmt.Sprintf("%s (%s)", c.function(l), c.place(l))
}

// function returns the name of the function. Unless the layout is wide, only the last element of its package's import path
// is left.
func (c *Code) function(l display.Layout) string {
	if l.Wide {
		return display.Escape(c.Function)
	}
	return display.Escape(waiting.ShortName(c.Function))
}

// place returns the file and the line. Unless the layout is wide, it leaves out the directory of the file, because the
// function's package implies it.
func (c *Code) place(l display.Layout) string {
	file := c.File
	if !l.Wide {
		file = path.Base(file)
	}
	return fmt.Sprintf("%s:%d", display.Escape(file), c.Line)
}

// Append appends the stack as in Go's own stack traces, which leave out most functions of the runtime.
func (s *Stack) Append(out []byte, l display.Layout) []byte {
	rows := make([][]string, len(s.visible))
	for i, f := range s.visible {
		place := "-"
		if f.File != "" {
			place = f.place(l)
		}
		rows[i] = []string{"    " + f.function(l), place}
	}
	out = append(out, l.Table([]display.Column{{Min: 40, KeepEnd: true}, {}}, rows)...)
	if s.Error != "" {
		out = fmt.Appendf(out, "    (%s)\n", display.Escape(s.Error))
	}
	return out
}
