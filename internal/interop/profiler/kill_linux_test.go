// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

var killRounds = testenv.Rounds(10, 100)

func TestKilledPublisher(t *testing.T) {
	t.Run("while updating", func(t *testing.T) {
		outcomes := map[string]int{}
		for range killRounds {
			child := start(t, roleIncessant)
			child.Expect("published")
			child.Send("go")
			readUntilKilled(t, child, "whole", 4*time.Millisecond, outcomes)
		}
		t.Logf("%v", outcomes)
	})
	t.Run("killed from its start on", func(t *testing.T) {
		outcomes := map[string]int{}
		// Repeat until a read precedes the child's first publication. This can take some rounds on a
		// busy machine.
		for round := 0; round < killRounds || outcomes[reader.ErrNoContext.Error()] == 0; round++ {
			require.Less(t, round, 1000, "no read preceded the first publication")
			child := start(t, roleIncessant)
			child.Send("go")
			readUntilKilled(t, child, "", 60*time.Millisecond, outcomes)
		}
		t.Logf("%v", outcomes)
	})
}

// readUntilKilled reads child in a loop, kills it, and continues to read until it is gone. Each read
// must return a complete publication or a documented error. The child is killed after a random delay
// of at most spread. The delay starts at the first read whose outcome is first, or at once if first
// is "". outcomes counts the reads by outcome.
func readUntilKilled(t *testing.T, child *childproc.Child, first string, spread time.Duration, outcomes map[string]int) {
	t.Helper()
	p, err := reader.Open(child.PID())
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	killed := make(chan struct{})
	kill := sync.OnceFunc(func() {
		go func() {
			defer close(killed)
			time.Sleep(rand.N(spread))
			child.Kill()
		}()
	})
	defer func() { kill(); <-killed }()
	meet := func(kind string) {
		outcomes[kind]++
		if kind == first {
			kill()
		}
	}
	if first == "" {
		kill()
	}

	read := ourReader(t, p)
	for last, gone, running := 0, false, true; running; {
		select {
		case <-killed:
			running = false
		default:
		}
		o, err := read()
		if err != nil {
			// Only documented errors are allowed, even while the process is losing its memory and
			// mappings.
			kind := errorKind(err)
			require.NotEmpty(t, kind, "%v", err)
			meet(kind)
			if !running {
				require.ErrorIs(t, err, reader.ErrProcessGone)
			}
			gone = gone || errors.Is(err, reader.ErrProcessGone)
			continue
		}
		require.False(t, gone, "a read of a process that no longer exists succeeded")
		n, err := numberOf(o)
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, last)
		last = n
		meet("whole")
	}
}

// errorKind returns the text of the documented error that err wraps. It returns "" if err is not an
// error that a reader of a dying publisher may get.
func errorKind(err error) string {
	for _, kind := range []error{reader.ErrBusy, reader.ErrNoContext, reader.ErrProcessGone} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return ""
}
