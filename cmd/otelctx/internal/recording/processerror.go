// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ProcessError is an error about one process. Its text names the process by its id and, if it still
// existed, its name as in ps.
type ProcessError struct {
	PID  int
	Name string
	err  error
}

// NewProcessError returns an error about a process. Errors of package reader begin with the process id, which
// the text of the ProcessError does not repeat.
func NewProcessError(pid int, err error) *ProcessError {
	e := &ProcessError{PID: pid, err: err}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		e.Name = strings.TrimSuffix(string(comm), "\n")
	}
	return e
}

func (e *ProcessError) Error() string {
	return "pid " + e.Process() + ": " + strings.TrimPrefix(e.err.Error(), fmt.Sprintf("pid %d: ", e.PID))
}

// Process returns the process's id, followed by its name in parentheses if it has one.
func (e *ProcessError) Process() string {
	if e.Name == "" {
		return strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("%d (%s)", e.PID, e.Name)
}

func (e *ProcessError) Unwrap() error { return e.err }
