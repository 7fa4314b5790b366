// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package processerror has the type of errors about one process. Their text names the process.
package processerror

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// MaxExec is the time after which a process that seems to be gone has ended. During an exec, a process cannot be
// read either: its first thread has exited, and another thread has not yet taken its place.
const MaxExec = 250 * time.Millisecond

// Error is an error about one process. Its text names the process by its id and, if it still
// existed, its name as in ps.
type Error struct {
	PID     int
	process string
	err     error
}

// New returns an error about a process. Errors of package reader begin with the process id, which
// the text of the Error does not repeat. If the process exists although /proc has no directory for it, the error
// wraps [reader.ErrNotPermitted].
func New(pid int, err error) *Error {
	if errors.Is(err, reader.ErrProcessGone) && hidden(pid) {
		err = fmt.Errorf("%w: /proc hides it", reader.ErrNotPermitted)
	}
	return &Error{PID: pid, process: Name(pid), err: err}
}

func (e *Error) Error() string {
	return "pid " + e.Process() + ": " + strings.TrimPrefix(e.err.Error(), fmt.Sprintf("pid %d: ", e.PID))
}

// Process returns the process's id, followed by its name in parentheses if it had one.
func (e *Error) Process() string { return e.process }

// Name returns the id of a process, followed by its name as in ps, in parentheses, unless it has ended.
func Name(pid int) string {
	comm, err := os.ReadFile(procfs.Host().Path(pid, "comm"))
	if err != nil {
		return strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d (%s)", pid, strings.TrimSuffix(string(comm), "\n"))
}

// About is like [New], but returns nil if err is nil.
func About(pid int, err error) error {
	if err == nil {
		return nil
	}
	return New(pid, err)
}

func (e *Error) Unwrap() error { return e.err }

// PID returns the id of the process that an error is about, or 0 if it is unknown.
func PID(err error) int {
	if p, ok := errors.AsType[*Error](err); ok {
		return p.PID
	}
	return 0
}
