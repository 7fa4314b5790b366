// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package timelimit

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// onThread runs f on a new thread, which exits when f returns.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// pin pins the calling thread to one CPU, which is the same for all callers.
func pin(t *testing.T) {
	var set unix.CPUSet
	if !assert.NoError(t, unix.SchedGetaffinity(0, &set)) {
		return
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			set.Zero()
			set.Set(cpu)
			break
		}
	}
	assert.NoError(t, unix.SchedSetaffinity(0, &set))
}

// Time during which the thread waits for a CPU that seven other threads use is not counted.
func TestStopwatchExcludesWaiting(t *testing.T) {
	if _, err := os.Stat("/proc/thread-self/schedstat"); err != nil {
		t.Skip("the kernel has no schedstat: ", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	var (
		stop            atomic.Bool
		others, started sync.WaitGroup
	)
	for range 7 {
		started.Add(1)
		others.Go(func() {
			onThread(func() {
				pin(t)
				for started.Done(); !stop.Load(); {
					continue
				}
			})
		})
	}
	started.Wait()
	var all, elapsed time.Duration
	onThread(func() {
		pin(t)
		begin := time.Now()
		watch := Start()
		// The kernel assigns time slices of some milliseconds, and may first let this thread catch
		// up with the others.
		for ran := all; all < 300*time.Millisecond || ran > all/4 && all < testenv.Patience; {
			all = time.Since(begin)
			var ts unix.Timespec
			assert.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts))
			ran = time.Duration(ts.Nano())
		}
		elapsed = watch.Elapsed()
	})
	stop.Store(true)
	others.Wait()
	assert.Positive(t, elapsed)
	assert.Less(t, elapsed, all/2)
}

// Time during which the thread sleeps is counted. The kernel measures waiting with another clock
// than Go, so the test does not compare times. Instead, the thread sleeps until its stopwatch is
// past the limit. If sleeping did not count, the loop would end before that.
func TestStopwatchCountsSleep(t *testing.T) {
	const (
		nap    = 10 * time.Millisecond
		limit  = 300 * time.Millisecond
		rounds = 300
	)
	onThread(func() {
		watch, past := Start(), false
		for range rounds {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(nap)}, nil) // a signal may end the sleep early
			if past = watch.Past(limit); past {
				break
			}
		}
		assert.True(t, past)
		assert.False(t, watch.Past(time.Hour))
	})
}

// Blocked returns true only for a thread that waits for something outside its process.
func TestBlocked(t *testing.T) {
	read, answer := waiting(t)
	var stop atomic.Bool
	locked := make(chan struct{})
	for name, c := range map[string]struct {
		f       func()
		end     func()
		blocked bool
	}{
		"waits in the kernel": {func() { _, _ = read() }, answer, true},
		"waits for a lock":    {func() { <-locked }, func() { close(locked) }, false},
		"runs": {func() {
			for !stop.Load() {
				continue
			}
		}, func() { stop.Store(true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			started, ended := make(chan *Stopwatch, 1), make(chan struct{})
			go func() {
				defer close(ended)
				onThread(func() {
					started <- Start()
					c.f()
				})
			}()
			watch := <-started
			// In a program with file capabilities, the kernel does not report the system call.
			untold := *watch
			untold.syscall = ""
			waits := name != "runs"
			// The thread may not be waiting yet.
			assert.Eventually(t, func() bool {
				for range 20 {
					if watch.Blocked() != c.blocked || untold.Blocked() != waits {
						return false
					}
				}
				return true
			}, testenv.Patience, time.Millisecond)
			c.end()
			<-ended
		})
	}
}
