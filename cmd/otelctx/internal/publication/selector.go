// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package publication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
)

// Selector selects a process on the command line: by its id, or by the service.name that it publishes. The zero value
// selects none.
type Selector struct {
	PID     int
	Service string
}

// UnmarshalText is called by kong.
func (s *Selector) UnmarshalText(text []byte) error {
	pid, err := strconv.Atoi(string(text))
	switch {
	case err != nil && len(text) > 0:
		s.Service = string(text)
		return nil
	case pid <= 0:
		return fmt.Errorf("%q is neither a process id nor a service name", text)
	}
	s.PID = pid
	return nil
}

// Validate returns an error for the zero value.
func (s *Selector) Validate() error {
	if *s == (Selector{}) {
		return errors.New("expected the id of a process, or its service name")
	}
	return nil
}

// Find returns the id of the process. For a service name, it fails unless exactly one process publishes the name.
func (s *Selector) Find(ctx context.Context) (pid int, err error) {
	if s.PID != 0 {
		return s.PID, nil
	}
	found := Survey(ctx, false)
	var named []string
	for _, p := range found.Publications {
		if p.Service() == s.Service {
			pid = p.PID
			named = append(named, processerror.Name(p.PID))
		}
	}
	switch {
	case len(named) == 1:
		return pid, nil
	case len(named) > 1:
		return 0, &selectionError{
			fmt.Sprintf("%d processes publish the service name %s: %s", len(named), display.Key(s.Service), strings.Join(named, ", ")),
			"Say which one, by its id.", exitcode.Usage,
		}
	case found.Failure != nil:
		return 0, found.Failure
	}
	none := &selectionError{
		"no process publishes the service name " + display.Key(s.Service), "Run otelctx list to see which processes publish.", exitcode.ProcessGone,
	}
	if len(found.Unread) > 0 {
		none.text += fmt.Sprintf("; %d could not be read", len(found.Unread))
		none.advice = "Run otelctx list to see which processes publish, and why some cannot be read."
	}
	return 0, none
}

// selectionError says why a [Selector] does not select a process.
type selectionError struct {
	text, advice string
	code         int
}

func (e *selectionError) Error() string { return e.text }

// Advice is printed below the error.
func (e *selectionError) Advice() string { return e.advice }

// ExitCode returns the exit code of a command with this error.
func (e *selectionError) ExitCode() int { return e.code }
