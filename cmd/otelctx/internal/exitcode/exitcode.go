// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package exitcode lists the exit codes of otelctx with the errors that lead to them.
package exitcode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/launch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// These exit codes are part of the interface, because scripts depend on them.
const (
	OK            = 0
	Other         = 1
	Usage         = 2
	NoContext     = 3
	NotPermitted  = 4
	ProcessGone   = 5
	Invalid       = 6
	Busy          = 7
	NoAnswer      = 8
	NoSamples     = 9
	NotConforming = 10
	NotExecutable = 126
	NotFound      = 127
)

// ErrNoSamples means that a recording has no samples, and ErrNotConforming that what was verified breaks rules.
var (
	ErrNoSamples     = errors.New("no samples")
	ErrNotConforming = errors.New("not conforming")
)

// Table lists each exit code with its meaning and the errors that lead to it. Help, the manual page and
// the documentation show this table.
var Table = []struct {
	Code   int
	Text   string
	errors []error
}{
	{OK, "success; for list also if some processes could not be read, for watch, top and record also if the process ended", nil},
	{Other, "any other error, such as an unsupported platform", nil},
	{Usage, "the command line is wrong", nil},
	{NoContext, "the process publishes no context, or for watch, spans and top --wall no spans", []error{reader.ErrNoContext, reader.ErrNoThreadContext}},
	{NotPermitted, "not permitted to read the process, or for record not permitted to sample", []error{reader.ErrNotPermitted, sampler.ErrNotPermitted, launch.ErrNotPermitted}},
	{ProcessGone, "there is no such process, or it has ended", []error{reader.ErrProcessGone}},
	{Invalid, "what the process publishes is not a valid context", []error{reader.ErrInvalid}},
	{Busy, "the context was being updated at each attempt to read it", []error{reader.ErrBusy}},
	{NoAnswer, "reading the process timed out", []error{timelimit.ErrNoAnswer, timelimit.ErrTooMany}},
	{NoSamples, "record: there are no samples, so no profile was written; the message says why", []error{ErrNoSamples}},
	{NotConforming, "verify: a rule is broken", []error{ErrNotConforming}},
	{NotExecutable, "record -- COMMAND: the command cannot be executed", []error{launch.ErrNotExecutable}},
	{NotFound, "record -- COMMAND: there is no such command", []error{launch.ErrNotFound}},
}

// Of returns the exit code for an error of a command.
func Of(err error) int {
	if own, ok := errors.AsType[coded](err); ok {
		return own.ExitCode()
	}
	for _, e := range Table {
		if slices.ContainsFunc(e.errors, func(is error) bool { return errors.Is(err, is) }) {
			return e.Code
		}
	}
	return Other
}

// coded is an error that brings its own exit code.
type coded interface {
	error
	ExitCode() int
}

// StatusError is the error of a recorded command that has failed. otelctx exits with the same code and prints no message.
type StatusError int

func (s StatusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// ExitCode returns the code.
func (s StatusError) ExitCode() int { return int(s) }

// CommandText is printed below the table of exit codes.
const CommandText = "record -- COMMAND exits with the code of the command, or with 128 plus the number of the signal that ended it."

// Text returns the table as text for --help.
func Text() string {
	const width = 70
	var b strings.Builder
	for _, e := range Table {
		line := fmt.Sprintf("  %-4d", e.Code)
		for word := range strings.FieldsSeq(e.Text) {
			if len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = strings.Repeat(" ", len("  0000"))
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String() + "\n" + CommandText
}
