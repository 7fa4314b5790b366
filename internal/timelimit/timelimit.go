// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package timelimit limits how long reading another process may take.
//
// A system call that reads the memory of a process may have to wait for pages that the process
// itself provides (userfaultfd, FUSE), and the process may let it wait forever. Such a call cannot
// be interrupted, except by ending the caller's own process. Each call therefore runs on its own
// goroutine and thread, which can be abandoned.
//
// The package does not read that memory itself: it runs a function that does.
package timelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
)

// Errors of [Call].
var (
	// ErrNoAnswer means that reading a process took too long.
	ErrNoAnswer = errors.New("reading timed out (its memory may be backed by userfaultfd or FUSE)")
	// ErrTooMany means that a process is not read, because reading has timed out for too many other
	// processes.
	ErrTooMany = errors.New("reading has timed out for too many processes")

	errStillWaiting = fmt.Errorf("%w: still no answer", ErrNoAnswer)
)

// Limit is the time limit for large reads. Reading a process with tens of thousands of threads
// takes about a tenth of it.
const Limit = 5 * time.Second

// maxAbandoned limits the number of processes with abandoned calls. maxPerUser limits the number of
// such processes per user, so that no user can prevent the reading of other users' processes.
const (
	maxAbandoned = 256
	maxPerUser   = 64
)

// abandonedCalls counts the abandoned calls that read one process and have not returned yet.
type abandonedCalls struct{ user, calls int }

// abandoned contains the abandoned calls of each process.
var abandoned = struct {
	sync.Mutex
	byPID map[int]abandonedCalls
}{byPID: make(map[int]abandonedCalls)}

// Call calls f, which reads the process with id pid, and returns f's results. If f takes longer
// than limit, the error wraps [ErrNoAnswer]. If ctx is done first, the error wraps ctx's error.
// Time during which f runs, is ready to run, or waits for a lock counts only a tenth, because this
// process or a busy machine causes such delays.
//
// An abandoned f continues on its goroutine until the process lets it return. Its results are
// dropped. If f has exceeded the limit, new calls for the same process fail at once until f
// returns, and calls that are already running fail unless they are waiting for the process
// themselves; their errors wrap [ErrNoAnswer]. If 64 processes of a user have such calls, further
// calls for any process of that user fail with an error that wraps [ErrTooMany]. If 256 processes
// have such calls, all further calls fail with that error.
//
// The thread of f does not handle the signals that users and supervisors send to this process, so
// these do not wait for f. Call is safe for concurrent use. Everything that f accesses must be safe
// for concurrent use, too, because f may continue after Call has returned.
func Call[T any](ctx context.Context, pid int, limit time.Duration, f func() (T, error)) (T, error) {
	var (
		none, value T
		err         error
	)
	if err := admit(pid); err != nil {
		return none, err
	}
	answered := make(chan struct{})
	started := make(chan func() bool, 1)
	go func() {
		defer close(answered)
		runtime.LockOSThread() // the stopwatch measures this thread
		defer runtime.UnlockOSThread()
		defer blockSignals()()
		started <- Start().Blocked
		value, err = f()
	}()
	reason := wait(ctx, pid, limit, started, answered)
	if reason == nil {
		return value, err
	}
	if errors.Is(reason, ErrNoAnswer) {
		addAbandoned(pid, 1)
		go func() {
			<-answered
			addAbandoned(pid, -1)
		}()
	}
	return none, fmt.Errorf("pid %d: %w", pid, reason)
}

// checks is the number of times within the limit that the thread of a call is checked. If a check
// finds the thread busy instead of blocked on the process, busyFactor such checks count as one.
const (
	checks     = 5
	busyFactor = 10
)

// wait waits until f has returned, and returns nil. If f must be abandoned, wait returns the
// reason. It receives a function from started that reports whether the thread of f waits for the
// process.
func wait(ctx context.Context, pid int, limit time.Duration, started <-chan func() bool, answered <-chan struct{}) error {
	var blocked func() bool
	select {
	case blocked = <-started:
	case <-ctx.Done():
		return ctx.Err()
	}
	// If this process is stopped for some time, a ticker drops the missed ticks. A timer would
	// count that time.
	ticker := time.NewTicker(limit / checks)
	defer ticker.Stop()
	for passed := 0; passed < checks*busyFactor; {
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		passed++
		if blocked() {
			passed += busyFactor - 1
		} else if hasAbandoned(pid) {
			return errStillWaiting // the abandoned call may hold the lock that this one waits for
		}
	}
	return fmt.Errorf("%w: no answer within %v", ErrNoAnswer, limit)
}

// hasAbandoned reports whether a process has an abandoned call that has not returned.
func hasAbandoned(pid int) bool {
	abandoned.Lock()
	defer abandoned.Unlock()
	return abandoned.byPID[pid].calls > 0
}

// admit returns an error if the process must not be read.
func admit(pid int) error {
	abandoned.Lock()
	defer abandoned.Unlock()
	if len(abandoned.byPID) == 0 {
		return nil
	}
	if abandoned.byPID[pid].calls > 0 {
		return fmt.Errorf("pid %d: %w", pid, errStillWaiting)
	}
	if len(abandoned.byPID) >= maxAbandoned {
		return fmt.Errorf("%w: %d", ErrTooMany, maxAbandoned)
	}
	if len(abandoned.byPID) < maxPerUser {
		return nil
	}
	user, n := userOf(pid), 0
	for _, w := range abandoned.byPID {
		if w.user == user {
			n++
		}
	}
	if n >= maxPerUser {
		return fmt.Errorf("%w: %d of user %d", ErrTooMany, n, user)
	}
	return nil
}

// userOf returns the real user id of a process, or -1 if it is unknown.
func userOf(pid int) int {
	user, err := procfs.Host().User(pid)
	if err != nil {
		return -1
	}
	return user
}

// addAbandoned adds n to the number of abandoned calls of a process.
func addAbandoned(pid, n int) {
	abandoned.Lock()
	defer abandoned.Unlock()
	w, ok := abandoned.byPID[pid]
	if !ok {
		w.user = userOf(pid)
	}
	if w.calls += n; w.calls == 0 {
		delete(abandoned.byPID, pid)
		return
	}
	abandoned.byPID[pid] = w
}
