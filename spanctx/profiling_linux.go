// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ownProfile detects whether the process is taking a CPU profile of itself, or has done so until
// recently. Labels of ended spans are kept during that time, because runtime/pprof stores only the
// label pointer of each sample and reads the labels when it writes the profile.
//
// Go sets the process's ITIMER_PROF while it profiles.
type ownProfile struct{ lastAsked, keepUntil atomic.Uint64 }

const (
	// askEvery is the minimum time between two getitimer calls, unless they are concurrent. Each
	// takes a few hundred nanoseconds. The first sample of a profile comes some milliseconds after
	// the profile has started.
	askEvery = uint64(5 * time.Millisecond)
	// writeTimeout is the time allowed for writing a profile after it has been stopped.
	writeTimeout = uint64(3 * time.Second)
)

// running reports whether to keep the labels of a span that ended at the given time. It asks the
// kernel if its last answer is at least askEvery old.
func (o *ownProfile) running(ended time.Time) bool {
	last, now := o.lastAsked.Load(), uint64(ended.UnixNano())
	if now-last >= askEvery {
		now = uint64(time.Now().UnixNano()) // ended may be any time set by trace.WithTimestamp: check the clock.
	}
	if now-last < askEvery {
		return now < o.keepUntil.Load()
	}
	if timer, err := unix.Getitimer(unix.ItimerProf); err == nil && timer.Interval != (unix.Timeval{}) {
		o.keepUntil.Store(now + writeTimeout)
	}
	o.lastAsked.CompareAndSwap(last, now)
	return now < o.keepUntil.Load()
}

// wasRunning returns the last result of running. It makes no system call and may be called while
// pinned.
func (o *ownProfile) wasRunning() bool { return o.lastAsked.Load() < o.keepUntil.Load() }
