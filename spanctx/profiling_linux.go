// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ownProfile knows whether the process takes a CPU profile of itself, or has just ended
// one. Then labels of spans that end are kept. The reason is that runtime/pprof keeps a
// sample's label pointer, and reads the labels when it writes the profile.
//
// Go sets the process's ITIMER_PROF as long as it profiles.
type ownProfile struct{ asked, until atomic.Uint64 }

const (
	// askEvery is how often the kernel is asked, which takes a few hundred nanoseconds.
	// The first sample of a profile comes some milliseconds after its start.
	askEvery = uint64(5 * time.Millisecond)
	// writing is how long a profile may take to be written once it has been stopped.
	writing = uint64(3 * time.Second)
)

// running reports whether labels are to be kept. ended is when the span ended, as the span
// says.
func (o *ownProfile) running(ended time.Time) bool {
	last, now := o.asked.Load(), uint64(ended.UnixNano())
	if now-last >= askEvery {
		now = uint64(time.Now().UnixNano()) // Spans may say any time. Only the clock's counts.
	}
	if now-last < askEvery {
		return now < o.until.Load()
	}
	if timer, err := unix.Getitimer(unix.ItimerProf); err == nil && timer.Interval != (unix.Timeval{}) {
		o.until.Store(now + writing)
	}
	o.asked.CompareAndSwap(last, now)
	return now < o.until.Load()
}

// wasRunning is running as of the last time that the kernel was asked. It may be called
// while pinned.
func (o *ownProfile) wasRunning() bool { return o.asked.Load() < o.until.Load() }
