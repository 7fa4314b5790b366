// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package patient

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stopwatch measures the time of one thread, excluding the time during which it was ready to run
// but had no CPU. If the kernel does not report that time, all time counts. [Start] makes one. It
// is safe for concurrent use.
type Stopwatch struct {
	began time.Time
	// schedstat is the path of the thread's schedstat file. waited is the waiting time that the
	// file contained at the start.
	schedstat string
	waited    time.Duration
	// syscall and stat are the paths of the thread's files with its system call and its state.
	syscall, stat string
}

// Start returns a Stopwatch for the calling thread. The calling goroutine must stay on that thread.
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

// wait returns the total time for which the thread has waited for a processor.
func (s *Stopwatch) wait() time.Duration {
	var ran, waited time.Duration
	if text, err := os.ReadFile(s.schedstat); err == nil {
		_, _ = fmt.Sscan(string(text), &ran, &waited) // nanoseconds
	}
	return waited
}

// Elapsed returns the time since Start.
func (s *Stopwatch) Elapsed() time.Duration {
	// If the thread waits for a CPU between reading the clock and reading the file, the wait is
	// counted wrongly, so try again. A thread that has just got a CPU keeps it for longer than all
	// three reads take.
	for before := s.wait(); ; {
		elapsed := time.Since(s.began)
		after := s.wait()
		if after == before {
			return elapsed - max(0, after-s.waited)
		}
		before = after
	}
}

// Past reports whether at least limit has elapsed. It makes no system call until the wall-clock
// time has passed limit.
func (s *Stopwatch) Past(limit time.Duration) bool {
	return time.Since(s.began) >= limit && s.Elapsed() >= limit
}

// Blocked reports whether the thread is waiting for something other than a CPU or another thread of
// this process. It waits for another thread if it needs a lock, or if GOMAXPROCS other threads run
// Go code already. For a program with file capabilities, the kernel does not report the reason for
// a wait: then every wait counts as blocked.
func (s *Stopwatch) Blocked() bool {
	if text, err := os.ReadFile(s.syscall); err == nil {
		call, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		return call != "running" && call != strconv.Itoa(futex)
	}
	text, _ := os.ReadFile(s.stat)
	_, state, _ := bytes.Cut(text, []byte(") "))
	return !bytes.HasPrefix(state, []byte("R"))
}
