// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fate is what becomes of a reader.
type fate int

const (
	// finishes is left alone.
	finishes fate = iota
	// killed is killed with SIGKILL, wherever it is.
	killed
	// resumed is stopped with SIGSTOP, wherever it is, and goes on after a while.
	resumed
	// interrupted is told to end by SIGINT.
	interrupted
	// buried is stopped, and killed before it goes on.
	buried
	numFates
)

func (f fate) String() string {
	return [numFates]string{"left to finish", "killed", "stopped and resumed", "interrupted", "stopped and killed"}[f]
}

// life is the life of a reader's process.
type life struct {
	cmd  *exec.Cmd
	fate fate
	// ready reports whether it can be interrupted. It is asked until it says so.
	ready func() bool
	// after is how long it lives before its fate comes, and hold how long it is stopped.
	after, hold time.Duration
}

// longest is how long a reader may live, and it is much.
const longest = 2 * time.Minute

// live lives the life to its end and returns its exit code, or -1 if it was killed as
// was its fate. An error is an end that it should not have had.
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
	// A process that has ended already does not mind a signal.
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

// lines calls each with every whole line that is written to it.
type lines struct {
	each func(line []byte)
	rest []byte
	seen atomic.Bool
}

// Write is called by a command.
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

// A life tells an end that is its fate from one that is not.
func TestLives(t *testing.T) {
	const soon, never = 100 * time.Millisecond, time.Hour
	for _, tt := range []struct {
		script string
		fate   fate
		after  time.Duration
		code   int
		err    string
	}{
		{"exit 0", finishes, soon, 0, ""},
		{"echo because >&2; exit 3", finishes, soon, 3, "left to finish: exit status 3: because"},
		{"kill -KILL $$", finishes, soon, 0, "left to finish: signal: killed"},
		{"exec sleep 600", killed, soon, -1, ""},
		{"exit 0", killed, never, 0, ""},
		{"exit 3", killed, never, 3, "killed: exit status 3"},
		{"sleep 0.3", resumed, soon, 0, ""},
		{"exec sleep 600", buried, soon, -1, ""},
		{"trap 'exit 0' INT; echo ready; while true; do sleep 0.01; done", interrupted, soon, 0, ""},
		{"echo ready; exec sleep 600", interrupted, soon, 0, "interrupted: signal: interrupt"},
	} {
		t.Run(tt.fate.String()+", "+tt.script, func(t *testing.T) {
			t.Parallel()
			out := &lines{each: func([]byte) {}}
			l := life{
				cmd: exec.Command("sh", "-c", tt.script), fate: tt.fate, ready: out.seen.Load,
				after: tt.after, hold: 50 * time.Millisecond,
			}
			l.cmd.Stdout = out
			code, err := l.live()
			assert.Equal(t, tt.code, code)
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.err)
			}
		})
	}
}

func TestLines(t *testing.T) {
	var got []string
	l := lines{each: func(line []byte) { got = append(got, string(line)) }}
	for _, part := range []string{"o", "ne\n", "two\n\nfo", "ur\nrest"} {
		n, err := l.Write([]byte(part))
		require.NoError(t, err)
		require.Len(t, part, n)
	}
	require.Equal(t, []string{"one", "two", "", "four"}, got)
}
