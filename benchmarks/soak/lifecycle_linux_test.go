// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// fate is the way in which a reader ends.
type fate int

const (
	finishes    fate = iota // exits by itself
	killed                  // is killed by SIGKILL at a random moment
	resumed                 // is stopped by SIGSTOP at a random moment, continued by SIGCONT, and exits by itself
	interrupted             // is ended by SIGINT
	buried                  // is killed by SIGKILL while it is stopped
	numFates
)

func (f fate) String() string {
	return [numFates]string{"left to finish", "killed", "stopped and resumed", "interrupted", "stopped and killed"}[f]
}

// life runs a reader's process from its start to its end.
type life struct {
	cmd  *exec.Cmd
	fate fate
	// ready reports whether the reader handles SIGINT already. It is called repeatedly.
	ready func() bool
	// after is the time from the start to the first signal. hold is the time for which the
	// reader is stopped.
	after, hold time.Duration
}

// longest is the time limit for a reader. Only a reader that hangs takes that long.
const longest = 2 * time.Minute

// live runs the reader and returns its exit code, or -1 if it was killed on purpose. It returns an error if the
// reader ended in a way that its fate does not permit.
func (l *life) live() (code int, err error) {
	var stderr bytes.Buffer
	l.cmd.Stderr = &stderr
	l.cmd.WaitDelay = longest
	if err := l.cmd.Start(); err != nil {
		return 0, err
	}
	var late, ended atomic.Bool
	timeout := time.AfterFunc(longest, func() {
		late.Store(true)
		_ = l.cmd.Process.Kill()
	})
	defer timeout.Stop()
	// The process may have ended already.
	signal := func(s syscall.Signal) { _ = l.cmd.Process.Signal(s) }
	meet := time.AfterFunc(l.after, func() {
		switch l.fate {
		case killed:
			signal(syscall.SIGKILL)
		case resumed, buried:
			signal(syscall.SIGSTOP)
			time.Sleep(l.hold)
			if l.fate == buried {
				signal(syscall.SIGKILL)
			}
			signal(syscall.SIGCONT)
		case interrupted:
			for !l.ready() && !ended.Load() {
				time.Sleep(time.Millisecond)
			}
			signal(syscall.SIGINT)
		}
	})
	_ = l.cmd.Wait()
	ended.Store(true)
	meet.Stop()
	state := l.cmd.ProcessState
	status, _ := state.Sys().(syscall.WaitStatus)
	switch {
	case late.Load():
		return 0, fmt.Errorf("%s: did not end in %v: %s", l.fate, longest, stderr.Bytes())
	case status.Signaled() && status.Signal() == syscall.SIGKILL && (l.fate == killed || l.fate == buried):
		return -1, nil
	case status.Signaled():
		return 0, fmt.Errorf("%s: %v: %s", l.fate, state, stderr.Bytes())
	case state.ExitCode() != 0:
		return state.ExitCode(), fmt.Errorf("%s: %v: %s", l.fate, state, stderr.Bytes())
	}
	return 0, nil
}

// lines is a writer that calls each for every complete line that is written to it.
type lines struct {
	each func(line []byte)
	rest []byte
	seen atomic.Bool
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		l.seen.Store(true)
		l.each(line)
		l.rest = append(l.rest[:0], rest...)
	}
}
