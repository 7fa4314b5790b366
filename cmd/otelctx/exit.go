// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/launch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// These exit codes are part of the interface, because scripts depend on them.
const (
	exitOK            = 0
	exitOther         = 1
	exitUsage         = 2
	exitNoContext     = 3
	exitNotPermitted  = 4
	exitProcessGone   = 5
	exitInvalid       = 6
	exitBusy          = 7
	exitNoAnswer      = 8
	exitNoSamples     = 9
	exitNotConforming = 10
	exitNotExecutable = 126
	exitNotFound      = 127
)

// exitCodes lists each exit code with its meaning and the errors that lead to it. Help, the manual page and
// the documentation show this table.
var exitCodes = []struct {
	code   int
	text   string
	errors []error
}{
	{exitOK, "success; for list also if some processes could not be read, for watch and record also if the process ended", nil},
	{exitOther, "any other error, such as an unsupported platform", nil},
	{exitUsage, "the command line is wrong", nil},
	{exitNoContext, "the process publishes no context, or for watch and spans no spans", []error{reader.ErrNoContext, reader.ErrNoThreadContext}},
	{exitNotPermitted, "not permitted to read the process, or for record not permitted to sample", []error{reader.ErrNotPermitted, sampler.ErrNotPermitted, launch.ErrNotPermitted}},
	{exitProcessGone, "there is no such process, or it has ended", []error{reader.ErrProcessGone}},
	{exitInvalid, "what the process publishes is not a valid context", []error{reader.ErrInvalid}},
	{exitBusy, "the context was being updated at each attempt to read it", []error{reader.ErrBusy}},
	{exitNoAnswer, "reading the process timed out", []error{patient.ErrNoAnswer, patient.ErrTooMany}},
	{exitNoSamples, "record: there are no samples, so no profile was written; the message says why", []error{errNoSamples}},
	{exitNotConforming, "verify: a rule is broken", []error{errNotConforming}},
	{exitNotExecutable, "record -- COMMAND: the command cannot be executed", []error{launch.ErrNotExecutable}},
	{exitNotFound, "record -- COMMAND: there is no such command", []error{launch.ErrNotFound}},
}

// exitCode returns the exit code for an error of a command.
func exitCode(err error) int {
	if status, ok := errors.AsType[exitStatusError](err); ok {
		return int(status)
	}
	for _, e := range exitCodes {
		if slices.ContainsFunc(e.errors, func(is error) bool { return errors.Is(err, is) }) {
			return e.code
		}
	}
	return exitOther
}

// exitStatusError is the exit code of a recorded command. otelctx exits with the same code and prints no
// message.
type exitStatusError int

func (s exitStatusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// commandExitText is printed below the table of exit codes.
const commandExitText = "record -- COMMAND exits with the code of the command, or with 128 plus the number of the signal that ended it."

// exitCodesText returns the table as text for --help.
func exitCodesText() string {
	const width = 70
	var b strings.Builder
	for _, e := range exitCodes {
		line := fmt.Sprintf("  %-4d", e.code)
		for word := range strings.FieldsSeq(e.text) {
			if len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = strings.Repeat(" ", len("  0000"))
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String() + "\n" + commandExitText
}
