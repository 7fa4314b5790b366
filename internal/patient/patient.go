// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

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
	// ErrNoAnswer says that reading a process took too long.
	ErrNoAnswer = errors.New("reading timed out (its memory may be backed by userfaultfd or FUSE)")
	// ErrTooMany says that this happened with so many processes that no more are read.
	ErrTooMany = errors.New("reading has timed out for too many processes")

	errSilent = fmt.Errorf("%w: still no answer", ErrNoAnswer)
)

// Limit is how long to wait for a process from which much is read. It is some ten times
// what reading tens of thousands of threads takes.
const Limit = 5 * time.Second

// mostWaiting bounds how many processes can keep a thread of this one waiting, and
// mostOfUser how many of one user. So no user can keep other users' processes from
// being read.
const (
	mostWaiting = 256
	mostOfUser  = 64
)

// waits are the calls for a process that were given up and still wait.
type waits struct{ user, calls int }

// given holds what still waits, by process.
var given = struct {
	sync.Mutex
	up map[int]waits
}{up: make(map[int]waits)}

// Call calls f, which reads the process with id pid, and returns what f returns. If that
// takes longer than limit, the error wraps [ErrNoAnswer]. While f runs, could run or waits
// for a lock, a tenth of the time counts: then this process or the machine is busy. If ctx
// is done meanwhile, it wraps ctx's error. f then goes on, until the process lets it go, on
// a goroutine that nobody waits for. What it returns is dropped. As long as it takes longer
// than limit, further calls for the process fail at once, and so do those that wait for a
// lock. While 64 processes of a user do that, calls for any process of that user fail with
// an error that wraps [ErrTooMany]. While 256 do in all, calls for any process fail so.
//
// Signals to this process are left to other threads than f's, and do not wait for f. Call is
// safe for concurrent use. What f touches must be so too.
func Call[T any](ctx context.Context, pid int, limit time.Duration, f func() (T, error)) (T, error) {
	var (
		none, value T
		err         error
	)
	if err := admit(pid); err != nil {
		return none, err
	}
	answered := make(chan struct{})
	begun := make(chan func() bool, 1)
	go func() {
		defer close(answered)
		runtime.LockOSThread() // the thread whose time counts
		defer runtime.UnlockOSThread()
		defer leaveSignals()()
		begun <- Start().Blocked
		value, err = f()
	}()
	reason := wait(ctx, pid, limit, begun, answered)
	if reason == nil {
		return value, err
	}
	if errors.Is(reason, ErrNoAnswer) {
		count(pid, 1)
		go func() {
			<-answered
			count(pid, -1)
		}()
	}
	return none, fmt.Errorf("pid %d: %w", pid, reason)
}

// What a call waits for is looked at so many times within its limit. A look counts for so much
// less where that is not the process.
const (
	looks  = 5
	lesser = 10
)

// wait waits until there is an answer, and returns why not if there is none. What it gets from
// begun reports whether the process keeps the thread waiting.
func wait(ctx context.Context, pid int, limit time.Duration, begun <-chan func() bool, answered <-chan struct{}) error {
	var blocked func() bool
	select {
	case blocked = <-begun:
	case <-ctx.Done():
		return ctx.Err()
	}
	// A timer would count the time for which this process was stopped itself. A ticker
	// does not make up for ticks that were missed.
	ticker := time.NewTicker(limit / looks)
	defer ticker.Stop()
	for passed := 0; passed < looks*lesser; {
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		passed++
		if blocked() {
			passed += lesser - 1
		} else if silent(pid) {
			return errSilent // which may have what this call waits for
		}
	}
	return fmt.Errorf("%w: no answer within %v", ErrNoAnswer, limit)
}

// silent reports whether a call for a process has been given up and still waits.
func silent(pid int) bool {
	given.Lock()
	defer given.Unlock()
	return given.up[pid].calls > 0
}

// admit returns an error if the process is not to be read.
func admit(pid int) error {
	given.Lock()
	defer given.Unlock()
	if len(given.up) == 0 {
		return nil
	}
	if given.up[pid].calls > 0 {
		return fmt.Errorf("pid %d: %w", pid, errSilent)
	}
	if len(given.up) >= mostWaiting {
		return fmt.Errorf("%w: %d", ErrTooMany, mostWaiting)
	}
	if len(given.up) < mostOfUser {
		return nil
	}
	user, n := userOf(pid), 0
	for _, w := range given.up {
		if w.user == user {
			n++
		}
	}
	if n >= mostOfUser {
		return fmt.Errorf("%w: %d of user %d", ErrTooMany, n, user)
	}
	return nil
}

// userOf returns who has started a process, -1 if that is not known.
func userOf(pid int) int {
	user, err := procfs.NewFS("/proc").User(pid)
	if err != nil {
		return -1
	}
	return user
}

// count notes that n more calls for a process wait.
func count(pid, n int) {
	given.Lock()
	defer given.Unlock()
	w, known := given.up[pid]
	if !known {
		w.user = userOf(pid)
	}
	if w.calls += n; w.calls == 0 {
		delete(given.up, pid)
		return
	}
	given.up[pid] = w
}
