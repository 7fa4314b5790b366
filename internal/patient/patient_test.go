// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const short = 20 * time.Millisecond

// waiting returns a function that answers when the test ends, or is told to.
func waiting(t *testing.T) (f func() (int, error), answer func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return func() (int, error) {
		<-ctx.Done()
		return 1, nil
	}, cancel
}

// settle waits until all calls that were given up have ended.
func settle(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		given.Lock()
		defer given.Unlock()
		return len(given.up) == 0
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
	require.ErrorIs(t, err, ErrNoAnswer, "it still waits")
	value, err = Call(t.Context(), 2, Limit, ask)
	require.NoError(t, err, "another process")
	assert.Equal(t, 2, value)

	answer()
	settle(t)
	value, err = Call(t.Context(), 1, Limit, ask)
	require.NoError(t, err, "it has answered")
	assert.Equal(t, 2, value)
}

func TestCallCancelled(t *testing.T) {
	f, answer := waiting(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Call(ctx, 1, Limit, f)
	require.ErrorIs(t, err, context.Canceled)
	_, err = Call(t.Context(), 1, Limit, func() (int, error) { return 2, nil })
	require.NoError(t, err, "it has not been given the time to answer")
	answer()
}

func TestTooManyCalls(t *testing.T) {
	f, answer := waiting(t)
	const first = 1 << 30 // There is no such process: nobody knows whose they are.
	for pid := range mostOfUser {
		_, err := Call(t.Context(), first+pid, short, f)
		require.ErrorIs(t, err, ErrNoAnswer)
	}
	_, err := Call(t.Context(), first+mostOfUser, Limit, f)
	require.ErrorIs(t, err, ErrTooMany)
	require.NotErrorIs(t, err, ErrNoAnswer)
	value, err := Call(t.Context(), os.Getpid(), Limit, func() (int, error) { return 2, nil })
	require.NoError(t, err, "another user's process")
	assert.Equal(t, 2, value)
	answer()
	settle(t)
}
