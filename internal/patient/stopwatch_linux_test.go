// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// pin has the calling thread run on one processor, the same one for all.
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

// A goroutine that waits for a processor beside seven others has not had much time of its own.
func TestStopwatchLeavesOutWaiting(t *testing.T) {
	if _, err := os.Stat("/proc/thread-self/schedstat"); err != nil {
		t.Skip("the kernel has no schedstat: ", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	var (
		over   atomic.Bool
		others sync.WaitGroup
	)
	for range 7 {
		others.Go(func() {
			onThread(func() {
				for pin(t); !over.Load(); {
					continue
				}
			})
		})
	}
	var all, elapsed time.Duration
	onThread(func() {
		pin(t)
		begin := time.Now()
		watch := Start()
		// The kernel gives slices of some milliseconds.
		for all < 300*time.Millisecond {
			all = time.Since(begin)
		}
		elapsed = watch.Elapsed()
	})
	over.Store(true)
	others.Wait()
	assert.Positive(t, elapsed)
	assert.Less(t, elapsed, all/2)
}

// One that waits for anything else has.
func TestStopwatchCountsSleep(t *testing.T) {
	onThread(func() {
		watch := Start()
		require.NoError(t, unix.Nanosleep(&unix.Timespec{Nsec: int64(short)}, nil))
		assert.GreaterOrEqual(t, watch.Elapsed(), short)
		assert.True(t, watch.Past(short))
		assert.False(t, watch.Past(time.Hour))
	})
}
