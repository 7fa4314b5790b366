// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ownprofile

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Detector detects whether the process is taking a CPU profile of itself, or has done so until
// recently. Labels of ended spans are kept during that time, because runtime/pprof stores only the
// label pointer of each sample and reads the labels when it writes the profile.
//
// Go sets the process's ITIMER_PROF while it profiles.
type Detector struct {
	// LastAsked is the time of the last getitimer call, and KeepUntil the time until which labels are
	// kept, both in nanoseconds since epoch. They are 0 before the first call.
	LastAsked, KeepUntil atomic.Uint64
}

// epoch is a second before the start of the process. Times since epoch are monotonic: reading only that
// clock takes half as long as time.Now.
var epoch = time.Now().Add(-time.Second)

const (
	// AskEvery is the minimum time between two getitimer calls, unless they are concurrent. Each
	// takes a few hundred nanoseconds. The first sample of a profile comes some milliseconds after
	// the profile has started.
	AskEvery = 5 * time.Millisecond
	// writeTimeout is the time allowed for writing a profile after it has been stopped.
	writeTimeout = 3 * time.Second
)

// Running reports whether to keep the labels of a span that ended at the given time, or now if ended is
// zero. It asks the kernel if its last answer is at least [AskEvery] old.
func (d *Detector) Running(ended time.Time) bool {
	last, now := d.LastAsked.Load(), uint64(ended.Sub(epoch))
	if now-last >= uint64(AskEvery) {
		now = uint64(time.Since(epoch)) // ended may be any time set by trace.WithTimestamp: check the clock.
	}
	if now-last < uint64(AskEvery) {
		return now < d.KeepUntil.Load()
	}
	if timer, err := unix.Getitimer(unix.ItimerProf); err == nil && timer.Interval != (unix.Timeval{}) {
		d.KeepUntil.Store(now + uint64(writeTimeout))
	}
	d.LastAsked.CompareAndSwap(last, now)
	return now < d.KeepUntil.Load()
}

// WasRunning returns the last result of Running. It makes no system call and may be called while
// pinned.
func (d *Detector) WasRunning() bool { return d.LastAsked.Load() < d.KeepUntil.Load() }
