// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package busyservice

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// Frequency returns the number of samples per second of CPU time at which tests should sample a
// busyservice. It is higher than in production, so that tests take less time, and not a round number, so
// that samples do not fall into step with regular events. It is lower on emulated CPUs, where a sample
// takes far longer, and on kernels that limit the rate.
func Frequency() int {
	const usual, fewer = 4999, 1499
	setting, _ := os.ReadFile("/proc/sys/kernel/perf_event_max_sample_rate")
	most, err := strconv.Atoi(strings.TrimSpace(string(setting)))
	if testenv.Emulated() || err == nil && most < usual {
		return fewer
	}
	return usual
}

// Process is a process that a test has started.
type Process interface{ PID() int }

// AwaitUse waits until a process has used d more CPU time.
func AwaitUse(t testing.TB, c Process, d time.Duration) {
	t.Helper()
	var until time.Duration
	for deadline := time.Now().Add(testenv.Patience); ; time.Sleep(time.Millisecond) {
		used, err := Used(c)
		if err != nil {
			t.Fatal(err)
		}
		if until == 0 {
			until = used + d
		}
		if used >= until {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the process has used less than %v of CPU time within %v", d-(until-used), testenv.Patience)
		}
	}
}

// Used returns the CPU time that all threads of a process have used so far.
func Used(c Process) (time.Duration, error) {
	// Compute the id of the clock for the process's CPU time, as clock_getcpuclockid(3) does.
	const sched = 2
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^c.PID()<<3|sched), &ts)
	return time.Duration(ts.Nano()), err
}
