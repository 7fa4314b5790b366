// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package timelimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const short = 20 * time.Millisecond

// waiting returns a function f that waits in the kernel, as when reading another process. f returns
// when answer is called or the test ends.
func waiting(t *testing.T) (f func() (int, error), answer func()) {
	t.Helper()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	t.Cleanup(func() { _ = unix.Close(pipe[0]) })
	answer = sync.OnceFunc(func() { _ = unix.Close(pipe[1]) })
	t.Cleanup(answer)
	return func() (int, error) {
		for {
			if _, err := unix.Read(pipe[0], make([]byte, 1)); !errors.Is(err, unix.EINTR) {
				return 1, nil
			}
		}
	}, answer
}

// settle waits until all abandoned calls have returned.
func settle(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		abandoned.Lock()
		defer abandoned.Unlock()
		return len(abandoned.byPID) == 0
	}, testenv.Patience, time.Millisecond)
}

func TestCall(t *testing.T) {
	value, err := Call(t.Context(), 1, Limit, func() (string, error) { return "answer", nil })
	require.NoError(t, err)
	assert.Equal(t, "answer", value)
	wrong := errors.New("wrong")
	value, err = Call(t.Context(), 1, Limit, func() (string, error) { return "with", wrong })
	assert.Equal(t, wrong, err)
	assert.Equal(t, "with", value)
}

func TestCallWithoutAnswer(t *testing.T) {
	f, answer := waiting(t)
	value, err := Call(t.Context(), 1, short, f)
	require.ErrorIs(t, err, ErrNoAnswer)
	assert.EqualError(t, err, "pid 1: reading timed out (its memory may be backed by userfaultfd or FUSE): no answer within 20ms")
	assert.Zero(t, value)

	ask := func() (int, error) { return 2, nil }
	_, err = Call(t.Context(), 1, Limit, ask)
	require.ErrorIs(t, err, ErrNoAnswer, "the call is still waiting")
	value, err = Call(t.Context(), 2, Limit, ask)
	require.NoError(t, err, "another process")
	assert.Equal(t, 2, value)

	answer()
	settle(t)
	value, err = Call(t.Context(), 1, Limit, ask)
	require.NoError(t, err, "the process has answered")
	assert.Equal(t, 2, value)
}

// If a call holds a lock and waits for the process, another call that waits for the lock is
// abandoned as well.
func TestCallsOfOneProcess(t *testing.T) {
	f, answer := waiting(t)
	has, lets := make(chan struct{}), make(chan struct{})
	second := make(chan error)
	go func() {
		<-has
		_, err := Call(t.Context(), 1, 50*short, func() (int, error) { <-lets; return 0, nil })
		second <- err
	}()
	_, err := Call(t.Context(), 1, short, func() (int, error) {
		defer close(lets)
		close(has)
		return f()
	})
	require.ErrorIs(t, err, ErrNoAnswer)
	require.ErrorIs(t, <-second, errStillWaiting)
	answer()
	settle(t)
}

func TestCallCancelled(t *testing.T) {
	f, answer := waiting(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Call(ctx, 1, Limit, f)
	require.ErrorIs(t, err, context.Canceled)
	_, err = Call(t.Context(), 1, Limit, func() (int, error) { return 2, nil })
	require.NoError(t, err, "the call was abandoned together with the other one")
	answer()
}

// The thread of a call blocks SIGUSR1: a signal to that thread stays pending, and is delivered when
// the call returns.
func TestCallBlocksSignals(t *testing.T) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGUSR1)
	defer signal.Stop(heard)
	pending, err := Call(t.Context(), 1, Limit, func() (string, error) {
		if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGUSR1); err != nil {
			return "", err
		}
		status, err := os.ReadFile("/proc/thread-self/status")
		return string(status), err
	})
	require.NoError(t, err)
	assert.Contains(t, pending, fmt.Sprintf("\nSigPnd:\t%016x\n", 1<<(unix.SIGUSR1-1)))
	<-heard
}

func TestTooManyCalls(t *testing.T) {
	f, answer := waiting(t)
	const first = 1 << 30 // no process has such an id, so the user is unknown
	for pid := range maxPerUser {
		_, err := Call(t.Context(), first+pid, short, f)
		require.ErrorIs(t, err, ErrNoAnswer)
	}
	_, err := Call(t.Context(), first+maxPerUser, Limit, f)
	require.ErrorIs(t, err, ErrTooMany)
	require.NotErrorIs(t, err, ErrNoAnswer)
	value, err := Call(t.Context(), os.Getpid(), Limit, func() (int, error) { return 2, nil })
	require.NoError(t, err, "another user's process")
	assert.Equal(t, 2, value)
	answer()
	settle(t)
}

// A call that is busy itself may take ten times the limit.
func TestWaitDiscountsOwnTime(t *testing.T) {
	for _, c := range []struct {
		name    string
		blocked func(look int) bool
		checks  int
	}{
		{"blocked", func(int) bool { return true }, 5},
		{"running", func(int) bool { return false }, 50},
		{"alternating", func(look int) bool { return look%2 == 0 }, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			started, n := make(chan func() bool, 1), 0
			started <- func() bool {
				n++
				return c.blocked(n)
			}
			assert.ErrorIs(t, wait(t.Context(), 1<<30, short, started, nil), ErrNoAnswer)
			assert.Equal(t, c.checks, n)
		})
	}
}
