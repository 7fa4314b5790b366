// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Errors of [Call].
var (
	// ErrNoAnswer says that a process makes those who read it wait.
	ErrNoAnswer = errors.New("the process makes those who read it wait")
	// ErrTooMany says that so many do that no more processes are read.
	ErrTooMany = errors.New("too many processes make those who read them wait")
)

// Limit is how long to wait for a process from which much is read: some ten times what
// it takes where there are tens of thousands of threads.
const Limit = 5 * time.Second

// mostWaiting bounds how many processes can keep a thread of this one waiting.
const mostWaiting = 16

// given holds how many calls that were given up still wait, by process.
var given = struct {
	sync.Mutex
	up map[int]int
}{up: make(map[int]int)}

// Call calls f, which reads the process with id pid, and returns what f returns. If that
// takes longer than limit, the error wraps [ErrNoAnswer], and if ctx is done meanwhile it
// is ctx's; f then goes on, on a goroutine that nobody waits for, until the process lets
// it go, and what it returns is dropped. Until then further calls for the process fail at
// once; and as long as 16 processes keep calls waiting so do those for others, with an
// error that wraps [ErrTooMany].
//
// Call is safe for concurrent use. What f touches must be so too.
func Call[T any](ctx context.Context, pid int, limit time.Duration, f func() (T, error)) (T, error) {
	var (
		none, value T
		err         error
	)
	if err := admit(pid); err != nil {
		return none, err
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		value, err = f()
	}()
	if reason := wait(ctx, limit, answered); reason != nil {
		count(pid, 1)
		go func() {
			<-answered
			count(pid, -1)
		}()
		return none, fmt.Errorf("pid %d: %w", pid, reason)
	}
	return value, err
}

// wait waits until there is an answer, and returns why not if there is none.
func wait(ctx context.Context, limit time.Duration, answered <-chan struct{}) error {
	// A timer would count the time for which this process was stopped itself. A ticker
	// does not make up for ticks that were missed.
	const ticks = 5
	ticker := time.NewTicker(limit / ticks)
	defer ticker.Stop()
	for range ticks {
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return fmt.Errorf("%w: no answer within %v", ErrNoAnswer, limit)
}

// admit returns an error if the process is not to be read.
func admit(pid int) error {
	given.Lock()
	defer given.Unlock()
	switch {
	case given.up[pid] > 0:
		return fmt.Errorf("pid %d: %w: still no answer", pid, ErrNoAnswer)
	case len(given.up) >= mostWaiting:
		return fmt.Errorf("%w: %d", ErrTooMany, mostWaiting)
	default:
		return nil
	}
}

// count notes that n more calls for a process wait.
func count(pid, n int) {
	given.Lock()
	defer given.Unlock()
	if given.up[pid] += n; given.up[pid] == 0 {
		delete(given.up, pid)
	}
}
