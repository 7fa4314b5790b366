// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
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
)

// all returns all patterns.
func all() []pattern {
	return slices.Concat(lifePatterns, goroutinePatterns, handoverPatterns, brokerPatterns, waitPatterns, inheritedPatterns, httpPatterns, routerPatterns, grpcPatterns, sqlPatterns, labelPatterns, samplingPatterns, datadogPatterns, cgoPatterns)
}

// server is wild serve.
type server struct {
	patterns string
	publish  string
	dir      string
	cpu      time.Duration
	rounds   int
	parallel int
	// Which profiles of its own the process takes.
	cpuProfile, goroutines bool
}

func (s *server) flags(f *flag.FlagSet) {
	f.StringVar(&s.patterns, "patterns", "", "names of the patterns to run, by commas; none is all that do not take a process alone")
	f.StringVar(&s.publish, "publish", "default", publishUsage)
	f.StringVar(&s.dir, "dir", ".", "where to write truths and profiles")
	f.DurationVar(&s.cpu, "cpu", 500*time.Millisecond, "how much CPU time each pattern uses at least")
	f.IntVar(&s.rounds, "rounds", 3, "in how many rounds")
	f.IntVar(&s.parallel, "parallel", 1, "how many repetitions of a pattern run at a time, if it allows that")
	f.BoolVar(&s.cpuProfile, "cpuprofile", false, "write the process's own CPU profile")
	f.BoolVar(&s.goroutines, "goroutines", false, "take goroutine profiles all the time")
}

const publishUsage = "which carriers the service has: default, thread_slots, goroutine_table, record, or small, which is default with 64 slots"

// Files in the directory of a server.
const (
	truthsFile     = "truths"
	cpuProfileFile = "cpu.pb.gz"
	goroutinesFile = "goroutines"
)

// serve says "ready", and at the first line of its input runs the patterns in rounds, each
// announced by its name. It says "done" when the files are written, and ends at the end of
// the input.
func (s *server) serve(in io.Reader, out io.Writer) error {
	patterns, err := s.choose()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(4) // more than processors may be, so that goroutines change threads
	each := burnTime()
	lines := bufio.NewScanner(in)
	carriers, ok := publications[s.publish]
	if !ok {
		return fmt.Errorf("invalid -publish %q: use default, thread_slots, goroutine_table, record, small", s.publish)
	}
	service := newService(carriers...)
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
			os.Exit(1) // the process that has started this is gone
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
		// The profile has goroutines that wait, too.
		atBottom = waitAtBottom
	}
	var truths truths
	for round := range s.rounds {
		for _, p := range patterns {
			_, _ = fmt.Fprintln(out, "round", round, p.name())
			r := &run{service: service, pattern: p.name(), truths: &truths}
			r.repeat(p, parallel, func() bool {
				used := time.Duration(r.burned.Load()) * each
				return (s.goroutines || used >= s.cpu/time.Duration(s.rounds)) && watch.enough(p.name(), round, s.rounds)
			})
		}
	}
	if err := errors.Join(finish(), s.write(truthsFile, truths.write)); err != nil {
		return err
	}
	finished.Store(true)
	_, _ = fmt.Fprintln(out, "done")
	<-ended
	return nil
}

// warmUp uses the processor until it is told to stop. A profiler of the whole machine
// learns of a process by its samples, and first has to read its program.
func warmUp(enough *atomic.Bool) {
	for !enough.Load() {
		sink.Store(spin(sink.Load()))
		runtime.Gosched()
	}
}

// together is how many repetitions are seen at a time in one goroutine profile.
const together = 16

// repeat runs a pattern, each time on a new goroutine outside of all spans. Where that is
// asked for and possible it runs several at a time.
func (r *run) repeat(p pattern, parallel int, enough func() bool) {
	if p.single || p.alone {
		parallel = 1
	}
	// Patterns that do little else than wait end too.
	for deadline := time.Now().Add(time.Minute); !enough() && time.Now().Before(deadline); {
		var group sync.WaitGroup
		for range parallel {
			group.Go(func() { p.run(r) })
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

// choose returns the patterns to run.
func (s *server) choose() ([]pattern, error) {
	if s.patterns == "" {
		return slices.DeleteFunc(all(), func(p pattern) bool { return p.alone }), nil
	}
	var chosen []pattern
	for name := range strings.SplitSeq(s.patterns, ",") {
		i := slices.IndexFunc(all(), func(p pattern) bool { return p.name() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no pattern %s", name)
		}
		chosen = append(chosen, all()[i])
	}
	return chosen, nil
}

// profile begins to take the profiles of its own that the server is asked for.
func (s *server) profile() (finish func() error, watch *watcher, err error) {
	finish = func() error { return nil }
	switch {
	case s.cpuProfile:
		f, err := os.Create(filepath.Join(s.dir, cpuProfileFile))
		if err != nil {
			return nil, nil, err
		}
		// StartCPUProfile asks for its own rate, which the runtime refuses where another one
		// is in force, and says so on standard error.
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
			return s.write(goroutinesFile, watch.write)
		}
	}
	return finish, watch, nil
}

func (s *server) write(name string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(s.dir, name))
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
