// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command probe calibrates, compares the result with public sources, and prints a report. Tests
// build it in many ways. It exits with status 1 if a fact is wrong. A refused fact is not wrong:
// the report contains it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
)

type report struct {
	Version     string
	Calls       int // reads and writes during calibration; 0 if the kernel does not count them
	ThreadsLeft int
	Threads     int // number of threads on which the checks ran
	Offsets     map[string]int64
	Refused     map[string]string
	Wrong       []string
}

// others are additional checks for some kinds of builds.
var others []func(*checker)

func main() {
	pprof.Do(context.Background(), pprof.Labels("main", "kept"), run)
}

func run(ctx context.Context) {
	rep := report{Version: runtime.Version(), Offsets: map[string]int64{}, Refused: map[string]string{}}
	before := calls() // opening the file also starts the runtime's poller
	labels, files, threads := goruntime.Labels(), count("/proc/self/fd"), count("/proc/self/task")
	restore := func() {}
	if slices.Contains(os.Args, "nofiles") {
		restore = noFiles()
	}
	rt := goruntime.Calibrate()
	rep.Calls = calls() - before
	restore()
	rep.ThreadsLeft = count("/proc/self/task") - threads

	c := &checker{rt: rt, tids: map[int]bool{}}
	c.equal("the caller's labels", goruntime.Labels(), labels)
	c.equal("open files", count("/proc/self/fd"), files)
	for _, f := range goruntime.Facts() {
		if offset, err := rt.Offset(f); err != nil {
			rep.Refused[f.String()] = err.Error()
		} else {
			rep.Offsets[f.String()] = offset
		}
	}

	var wg sync.WaitGroup
	for range 500 {
		wg.Go(c.goroutine)
	}
	wg.Wait()
	// These goroutines are all locked to their threads at the same time, so the runtime must create
	// threads for the last ones.
	var locked atomic.Int32
	all := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if locked.Add(1) == 8 {
				close(all)
			}
			<-all
			c.goroutine()
		})
	}
	wg.Wait()
	for _, f := range others {
		f(c)
	}
	rep.Wrong, rep.Threads = c.wrong, len(c.tids)

	_ = json.NewEncoder(os.Stdout).Encode(rep)
	if len(rep.Wrong) > 0 {
		os.Exit(1)
	}
}

// noFiles keeps the process from opening files until restore is called.
func noFiles() (restore func()) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		panic(err)
	}
	set := func(limit unix.Rlimit) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			panic(err)
		}
	}
	set(unix.Rlimit{Max: old.Max})
	return func() { set(old) }
}

// calls returns the number of read and write system calls that the process has made so far.
func calls() (n int) {
	text, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(text)) {
		var reads, writes int
		_, _ = fmt.Sscanf(line, "syscr: %d", &reads)
		_, _ = fmt.Sscanf(line, "syscw: %d", &writes)
		n += reads + writes
	}
	return n
}

func count(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	return len(entries)
}

type checker struct {
	rt *goruntime.Runtime

	mu    sync.Mutex
	tids  map[int]bool
	wrong []string
}

func (c *checker) equal(what string, got, want any) {
	if got != want {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wrong = append(c.wrong, fmt.Sprintf("%s: %v instead of %v", what, got, want))
	}
}

// goroutine checks all facts about the calling goroutine and its thread, before and after the
// goroutine has moved to other threads.
func (c *checker) goroutine() {
	for range 3 {
		c.self()
		time.Sleep(100 * time.Microsecond)
		runtime.Gosched()
	}
	c.labels()
}

func (c *checker) self() {
	var buf [64]byte
	var goid uint64
	if _, err := fmt.Sscanf(string(buf[:runtime.Stack(buf[:], false)]), "goroutine %d ", &goid); err != nil {
		panic(err)
	}

	goruntime.Pin()
	self := c.rt.Self()
	tid, _, _ := unix.RawSyscall(unix.SYS_GETTID, 0, 0, 0)
	again := c.rt.Self().TID
	goruntime.Unpin()

	c.mu.Lock()
	c.tids[int(tid)] = true
	c.mu.Unlock()
	c.equal("thread id", self.TID, uint32(tid))
	c.equal("thread id alone", again, uint32(tid))
	if c.known(goruntime.GGoid) {
		c.equal("goroutine id", self.Goid, goid)
		c.equal("goroutine id alone", c.rt.Goroutine().Goid, goid)
	} else {
		c.equal("unknown goroutine id", self.Goid, uint64(0))
	}
	c.equal("m is known", self.M != 0, c.known(goruntime.GM))
}

func (c *checker) labels() {
	if !c.known(goruntime.LabelList) {
		return
	}
	// This goroutine has set no labels itself. It has inherited those of main.
	if list := (*goruntime.LabelMap)(goruntime.Labels()).List; len(list) != 1 || list[0] != (goruntime.Label{Key: "main", Value: "kept"}) {
		c.equal("inherited labels", fmt.Sprint(list), "main=kept")
	}
	rec := &struct {
		goruntime.LabelMap
		more [28]byte
	}{LabelMap: goruntime.LabelMap{List: []goruntime.Label{{Key: "trace_id", Value: strings.Repeat("ab", 16)}}}}
	old := goruntime.Labels()
	goruntime.SetLabels(unsafe.Pointer(rec))
	var profile strings.Builder
	if goruntime.Labels() != unsafe.Pointer(rec) {
		c.equal("label pointer", goruntime.Labels(), unsafe.Pointer(rec))
	}
	c.mu.Lock()
	first := len(c.tids) > 0 && c.rt.Self().TID%4 == 0
	c.mu.Unlock()
	if first {
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			panic(err)
		}
		c.equal("labels in the profile", strings.Contains(profile.String(), `"trace_id":"`+strings.Repeat("ab", 16)+`"`), true)
	}
	goruntime.SetLabels(old)
}

func (c *checker) known(f goruntime.Fact) bool {
	_, err := c.rt.Offset(f)
	return err == nil
}
