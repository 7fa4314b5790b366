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

// Stopwatch counts the time of one thread, without that in which the thread could have run
// and had no processor. Where the kernel does not tell that time, all counts. [Start] makes
// one. It is safe for concurrent use.
type Stopwatch struct {
	began time.Time
	// schedstat is the kernel's file about the thread, and waited what it said at the start.
	schedstat string
	waited    time.Duration
	// syscall and stat are the kernel's files about what the thread waits in, and whether it does.
	syscall, stat string
}

// Start returns a Stopwatch for the thread that it is called on. The calling goroutine has
// to stay on it.
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

// wait returns for how long the thread has waited for a processor since it exists.
func (s *Stopwatch) wait() time.Duration {
	var ran, waited time.Duration
	if text, err := os.ReadFile(s.schedstat); err == nil {
		_, _ = fmt.Sscan(string(text), &ran, &waited) // nanoseconds
	}
	return waited
}

// Elapsed returns how much time has passed.
func (s *Stopwatch) Elapsed() time.Duration {
	// What is waited between a look at the clock and one at the file would count wrongly. A
	// thread that has just been given a processor keeps it for longer than all three take.
	for before := s.wait(); ; {
		elapsed := time.Since(s.began)
		after := s.wait()
		if after == before {
			return elapsed - max(0, after-s.waited)
		}
		before = after
	}
}

// Past reports whether at least limit has passed. As long as it has not by the clock either,
// that costs no system call.
func (s *Stopwatch) Past(limit time.Duration) bool {
	return time.Since(s.began) >= limit && s.Elapsed() >= limit
}

// Blocked reports whether the thread waits now, and neither for a processor nor for another
// thread of this process. For those it waits where it needs a lock, and where Go does not let
// it run, as no more than GOMAXPROCS threads may. A program with file capabilities is only told
// by the kernel whether a thread waits: then the thread is blocked whatever it waits for.
func (s *Stopwatch) Blocked() bool {
	if text, err := os.ReadFile(s.syscall); err == nil {
		call, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		return call != "running" && call != strconv.Itoa(futex)
	}
	text, _ := os.ReadFile(s.stat)
	_, state, _ := bytes.Cut(text, []byte(") "))
	return !bytes.HasPrefix(state, []byte("R"))
}
