// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package process says which process an error or an argument is about.
package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Error is an error about one process. Its text names the process by its id and, if it still
// existed, its name as in ps.
type Error struct {
	PID  int
	Name string
	err  error
}

// NewError returns an error about a process. Errors of package reader begin with the process id, which
// the text of the Error does not repeat.
func NewError(pid int, err error) *Error {
	e := &Error{PID: pid, err: err}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		e.Name = strings.TrimSuffix(string(comm), "\n")
	}
	return e
}

func (e *Error) Error() string {
	return "pid " + e.Process() + ": " + strings.TrimPrefix(e.err.Error(), fmt.Sprintf("pid %d: ", e.PID))
}

// Process returns the process's id, followed by its name in parentheses if it has one.
func (e *Error) Process() string {
	if e.Name == "" {
		return strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("%d (%s)", e.PID, e.Name)
}

// About is like [NewError], but returns nil if err is nil.
func About(pid int, err error) error {
	if err == nil {
		return nil
	}
	return NewError(pid, err)
}

func (e *Error) Unwrap() error { return e.err }

// IDOf returns the id of the process that an error is about, or 0 if it is unknown.
func IDOf(err error) int {
	if p, ok := errors.AsType[*Error](err); ok {
		return p.PID
	}
	return 0
}

// Validate returns an error unless pid may be the id of a process. 0 means that the command line has no id.
func Validate(pid int) error {
	switch {
	case pid == 0:
		return errors.New("expected the id of a process")
	case pid < 0:
		return fmt.Errorf("%d is not a process id", pid)
	default:
		return nil
	}
}
