// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package timelimit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stopwatch measures the time that passes for one thread. It does not count time during which the
// thread was ready to run but had no CPU, unless the kernel does not report that time. Use [Start]
// to create one. It is safe for concurrent use.
type Stopwatch struct {
	began time.Time
	// schedstat is the path of the thread's schedstat file. waited is the total waiting time in
	// that file when the stopwatch was started.
	schedstat string
	waited    time.Duration
	// syscall and stat are the paths of files with the thread's current system call and its state.
	syscall, stat string
}

// Start starts a Stopwatch for the calling thread. The calling goroutine must stay on that thread.
func Start() *Stopwatch {
	s := &Stopwatch{began: time.Now()}
	if thread, err := os.Readlink("/proc/thread-self"); err == nil {
		s.schedstat = filepath.Join("/proc", thread, "schedstat")
		s.syscall = filepath.Join("/proc", thread, "syscall")
		s.stat = filepath.Join("/proc", thread, "stat")
		s.waited = s.wait()
	}
	return s
}

// wait returns the total time that the thread has waited for a CPU.
func (s *Stopwatch) wait() time.Duration {
	var ran, waited time.Duration
	if text, err := os.ReadFile(s.schedstat); err == nil {
		_, _ = fmt.Sscan(string(text), &ran, &waited) // nanoseconds
	}
	return waited
}

// Elapsed returns the time that has passed since Start.
func (s *Stopwatch) Elapsed() time.Duration {
	// If the thread waits for a CPU between reading the clock and reading the file, the result
	// would be wrong, so try again. This ends soon: a thread that has just got a CPU keeps it for
	// longer than three reads take.
	for before := s.wait(); ; {
		elapsed := time.Since(s.began)
		after := s.wait()
		if after == before {
			return elapsed - max(0, after-s.waited)
		}
		before = after
	}
}

// Past reports whether at least limit has elapsed. It makes no system call before that much
// wall-clock time has passed.
func (s *Stopwatch) Past(limit time.Duration) bool {
	return time.Since(s.began) >= limit && s.Elapsed() >= limit
}

// Blocked reports whether the thread is waiting for something outside this process other than a
// CPU. It returns false if the thread is waiting for another thread of this process: for a lock, or
// because GOMAXPROCS other threads are running Go code. If this program has file capabilities, the
// kernel does not report the reason for a wait, and Blocked returns true for every wait.
func (s *Stopwatch) Blocked() bool {
	if text, err := os.ReadFile(s.syscall); err == nil {
		call, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		return call != "running" && call != strconv.Itoa(futex)
	}
	text, _ := os.ReadFile(s.stat)
	_, state, _ := bytes.Cut(text, []byte(") "))
	return !bytes.HasPrefix(state, []byte("R"))
}
