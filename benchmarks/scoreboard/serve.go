// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
)

func all() []pattern {
	return slices.Concat(lifePatterns, goroutinePatterns, handoverPatterns, brokerPatterns, waitPatterns, inheritedPatterns, httpPatterns, routerPatterns, grpcPatterns, sqlPatterns, labelPatterns, samplingPatterns, datadogPatterns, cgoPatterns)
}

// server is the command scoreboard serve.
type server struct {
	patterns string
	publish  string
	dir      string
	cpu      time.Duration
	rounds   int
	parallel int
	// cpuProfile and goroutines select the profiles that the process takes of itself.
	cpuProfile, goroutines bool
}

func (s *server) flags(f *flag.FlagSet) {
	f.StringVar(&s.patterns, "patterns", "", "names of patterns, separated by commas; the default is all that do not need their own process")
	f.StringVar(&s.publish, "publish", "default", publishUsage)
	f.StringVar(&s.dir, "dir", ".", "directory for expected spans and profiles")
	f.DurationVar(&s.cpu, "cpu", 500*time.Millisecond, "minimum CPU time of each pattern")
	f.IntVar(&s.rounds, "rounds", 3, "in how many rounds the patterns run")
	f.IntVar(&s.parallel, "parallel", 1, "how many repetitions of a pattern run at a time, if the pattern allows it")
	f.BoolVar(&s.cpuProfile, "cpuprofile", false, "write a CPU profile of this process")
	f.BoolVar(&s.goroutines, "goroutines", false, "take goroutine profiles of this process all the time")
}

// These are the names of the files in a server's directory.
const (
	expectedFile   = "expected"
	cpuProfileFile = "cpu.pb.gz"
	goroutinesFile = "goroutines"
)

// serve prints "ready", waits for a line of input, and runs the patterns in rounds. It prints the name of each
// pattern before it runs it, and "done" when it has written the files. It returns at the end of the input.
func (s *server) serve(in io.Reader, out io.Writer) error {
	patterns := slices.DeleteFunc(all(), func(p pattern) bool { return p.alone })
	if s.patterns != "" {
		var err error
		if patterns, err = choose(s.patterns); err != nil {
			return err
		}
	}
	publish, err := publicationOf(s.publish)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(4) // More than the CPUs of most test machines, so that goroutines change threads.
	each := stacknumber.BurnTime()
	lines := bufio.NewScanner(in)
	service := newService(publish)
	_, _ = fmt.Fprintln(out, "ready")
	var warm atomic.Bool
	go warmUp(&warm)
	lines.Scan()
	warm.Store(true)
	var finished atomic.Bool
	ended := make(chan struct{})
	go func() {
		for lines.Scan() {
			continue
		}
		if !finished.Load() {
			os.Exit(1) // The parent has ended early.
		}
		close(ended)
	}()
	finish, watch, err := s.profile()
	if err != nil {
		return err
	}
	parallel := s.parallel
	if s.goroutines {
		parallel = together
		// A goroutine profile also contains waiting goroutines, so let them wait with the number on
		// the stack.
		stacknumber.AtBottom = waitAtBottom
	}
	var expected expected
	for round := range s.rounds {
		for _, p := range patterns {
			_, _ = fmt.Fprintln(out, "round", round, p.name())
			r := &run{service: service, pattern: p.name(), expected: &expected}
			r.repeat(p, parallel, func() bool {
				used := time.Duration(r.burned.Load()) * each
				return (s.goroutines || used >= s.cpu/time.Duration(s.rounds)) && watch.enough(p.name(), round, s.rounds)
			})
		}
	}
	if err := errors.Join(finish(), s.write(expectedFile, expected.all)); err != nil {
		return err
	}
	finished.Store(true)
	_, _ = fmt.Fprintln(out, "done")
	<-ended
	return nil
}

// waitAtBottom makes a goroutine wait while the number is on its stack.
//
//go:noinline
func waitAtBottom() { time.Sleep(3 * time.Millisecond) }

// warmUp uses the CPU until enough is true. A profiler of the whole machine discovers the process by
// these samples, and can read the executable before the patterns run.
func warmUp(enough *atomic.Bool) {
	for !enough.Load() {
		stacknumber.Spin()
		runtime.Gosched()
	}
}

// together is the number of repetitions of a pattern that run at a time for goroutine profiles.
const together = 16

// repeat runs a pattern until enough returns true, each time on a new goroutine that is in no span. Up to parallel
// repetitions run at a time, unless the pattern forbids it.
func (r *run) repeat(p pattern, parallel int, enough func() bool) {
	if p.single || p.alone {
		parallel = 1
	}
	// The deadline ends a pattern that hardly uses the CPU.
	for deadline := time.Now().Add(time.Minute); !enough() && time.Now().Before(deadline); {
		var group sync.WaitGroup
		for range parallel {
			group.Go(func() { p.once(r) })
		}
		done := make(chan struct{})
		go func() {
			group.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(5 * time.Minute):
			panic(r.pattern + " hangs")
		}
	}
}

// choose returns the patterns with these names, which are separated by commas.
func choose(names string) (chosen []pattern, err error) {
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all(), func(p pattern) bool { return p.name() == name })
		if i < 0 {
			return nil, fmt.Errorf("invalid -patterns: there is no pattern %q", name)
		}
		chosen = append(chosen, all()[i])
	}
	return chosen, nil
}

// profile starts the profiles that the process takes of itself.
func (s *server) profile() (finish func() error, watch *watcher, err error) {
	finish = func() error { return nil }
	switch {
	case s.cpuProfile:
		f, err := os.Create(filepath.Join(s.dir, cpuProfileFile))
		if err != nil {
			return nil, nil, err
		}
		// StartCPUProfile then keeps this rate instead of its own. The runtime prints a warning.
		runtime.SetCPUProfileRate(frequency)
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, nil, err
		}
		finish = func() error {
			pprof.StopCPUProfile()
			return f.Close()
		}
	case s.goroutines:
		watch = newWatcher()
		finish = func() error {
			watch.stop()
			return s.write(goroutinesFile, watch.seen)
		}
	}
	return finish, watch, nil
}

// write writes a value that the scoreboard reads to a file.
func (s *server) write(name string, value any) error {
	f, err := os.Create(filepath.Join(s.dir, name))
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(value), f.Close())
}
