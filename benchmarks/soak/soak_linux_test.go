// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

var (
	duration = flag.Duration("soak", time.Duration(testenv.Rounds(1, 3))*time.Second, "how long the service runs")
	csvFile  = flag.String("csv", "", "CSV file for the results")
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){roleService: serve, roleReader: read})
}

// short reports whether the run is too short to warm up in its first half.
func short() bool { return *duration < 2*time.Minute }

// soak is the state of the test: the service, and what its readers have found.
type soak struct {
	otelctx, dir string
	child        *childproc.Child
	ledger       *ledger
	// unit is the time scale for readers: approximately how long each of them runs.
	unit time.Duration
	// sampled passes some of the spans that readers found to the method correlate.
	sampled chan sight

	mu sync.Mutex
	// faults holds the first faults. found counts all of them.
	faults []error
	found  int
	counts map[string]uint64
	// lives counts readers by kind and fate.
	lives map[string]*[numFates]int
	// begun and done hold the times before and after the publication of each generation.
	begun, done []int64
}

// fault records a violation.
func (s *soak) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const kept = 20
	if s.found++; s.found <= kept {
		s.faults = append(s.faults, fmt.Errorf(format, args...))
	}
}

func (s *soak) count(what string, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what] += n
}

func (s *soak) lived(name string, f fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[name][f]++
}

// These are prefixes of keys of soak.counts. The name of a reader follows.
const (
	spansBy    = "spans shown by "
	contextsBy = "contexts read by "
)

// busyReads is the key of soak.counts for reads that failed because of concurrent writes.
const busyReads = "reads that met an update"

// The readers.
const (
	byReader  = "package reader"
	byInspect = "otelctx inspect"
	byWatch   = "otelctx watch"
	byRecord  = "otelctx record"
	// byReaderFrom is followed by the name of a carrier.
	byReaderFrom = byReader + " from "
)

// judge compares a span that a reader found with the ledger.
func (s *soak) judge(by string, one shown) {
	s.count(spansBy+by, 1)
	if err := s.ledger.check(one); err != nil {
		s.fault("%s: %w", by, err)
	}
}

// judgeContext checks that the generations in p were published at the time of the read.
func (s *soak) judgeContext(p published) {
	s.count(contextsBy+p.By, 1)
	s.mu.Lock()
	begun, done := s.begun, s.done
	s.mu.Unlock()
	for _, number := range []int{p.Generation, p.Beside} {
		switch {
		case number < 0 || number >= len(begun) || begun[number] > p.To:
			s.fault("%s: generation %d before it was there", p.By, number)
		case number+1 < len(done) && done[number+1] < p.From:
			s.fault("%s: generation %d %v after the next one", p.By, number, time.Duration(p.From-done[number+1]))
		}
	}
}

// update makes the service publish the next generation.
func (s *soak) update() {
	s.mu.Lock()
	number := len(s.begun)
	s.begun = append(s.begun, time.Now().UnixNano())
	s.mu.Unlock()
	s.child.Send("update %d", number)
	s.child.Expect("updated")
	s.mu.Lock()
	s.done = append(s.done, time.Now().UnixNano())
	s.mu.Unlock()
}

func (s *soak) report(t *testing.T) (r report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(s.child.Ask("report")), &r))
	return r
}

// enough reports whether there is enough data to judge: points of each curve, and spans from each
// reader.
func (s *soak) enough(c *curves, r report) bool {
	for _, curve := range c.all() {
		if curve.settled().points < leastPoints {
			return false
		}
	}
	// With fewer garbage collections, it would be unknown whether the heap grows.
	if c.collections.settled().rise < leastPoints {
		return false
	}
	if r.Without == "" && (r.Stats.Correlations == 0 || r.Correlated == 0) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.Requests > 0 && !slices.ContainsFunc(everyCount, func(what string) bool { return s.counts[what] == 0 })
}

// everyCount lists the keys of soak.counts whose counts must not be zero.
var everyCount = []string{
	spansBy + byReaderFrom + reader.GoroutineRecord.String(), spansBy + byWatch, spansBy + byRecord, contextsBy + byInspect,
	contextsBy + byReader,
}

// TestSoak fails if anything grows, if a reader finds anything wrong or ends in an unexpected way,
// or if an error is reported to otel.Handle.
func TestSoak(t *testing.T) {
	s := &soak{
		dir: t.TempDir(), unit: min(max(*duration/10, 300*time.Millisecond), 3*time.Second),
		sampled: make(chan sight, 1), counts: map[string]uint64{}, lives: map[string]*[numFates]int{},
	}
	for _, k := range s.kinds() {
		s.lives[k.name] = new([numFates]int)
	}
	s.otelctx = programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	mayRecord(t, s.otelctx)
	s.start(t)
	begin := time.Now()
	watched, endWatched := s.watched(t)
	c := s.curves(t, watched)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	for _, k := range s.kinds() {
		readers.Go(func() { s.comeAndGo(ctx, k) })
	}
	readers.Go(func() { s.correlate(ctx) })
	tick := time.NewTicker(min(*duration/100, time.Second))
	defer tick.Stop()
	// A busy machine may take longer to produce enough data.
	for enough := false; time.Since(begin) < *duration || !enough && time.Since(begin) < *duration+longest; <-tick.C {
		s.update()
		r := s.report(t)
		c.add(t, time.Since(begin), r)
		enough = s.enough(c, r)
	}
	cancel()
	readers.Wait()
	endWatched()
	r := s.report(t)
	defer func() { s.publish(t, r, c.all()) }()
	r = s.end(t)

	for _, curve := range c.all() {
		for _, problem := range curve.problems() {
			assert.Fail(t, "not flat", problem)
		}
	}
	s.verdict(t, r)
}

// mayRecord skips the test if this user may not record. The message names the missing capability.
func mayRecord(t *testing.T, otelctx string) {
	t.Helper()
	const exitNotPermitted = 4
	_, stderr, code := programs.Run(t, exec.Command(otelctx, "record", "--", "true"))
	if code == exitNotPermitted {
		t.Skip(stderr)
	}
	require.Zero(t, code, stderr)
}

func (s *soak) start(t *testing.T) {
	t.Helper()
	o := order{Directory: s.dir, Capacity: 65536}
	if short() {
		// Use few slots, so that all of them have been used, and their memory is resident, in the
		// first half of the run.
		o.Capacity = 256
	}
	line, err := json.Marshal(o)
	require.NoError(t, err)
	s.begun = []int64{time.Now().UnixNano()}
	s.child = childproc.Start(t, roleService, func(cmd *exec.Cmd) {
		if short() {
			cmd.Env = append(cmd.Env, "GOGC=25") // for enough garbage collections
		}
	})
	s.child.Send("%s", line)
	s.child.Expect("serving")
	s.done = []int64{time.Now().UnixNano()}
	s.ledger, err = openLedger(filepath.Join(s.dir, ledgerName))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.ledger.file.Close()) })
}

// watched starts a reader that repeatedly opens, reads and closes the service. It returns the
// reader's process id, and a function that ends the reader.
func (s *soak) watched(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd, err := childproc.Command(roleReader)
	require.NoError(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(fmt.Sprintln(s.child.PID())), &lines{each: s.judgeVisit}, os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd.Process.Pid, func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			s.fault("%s: %w", byReader, err)
		}
	}
}

// correlate acts as a profiler with Elastic's integration: it registers with the service, and sends it
// a message for each span in s.sampled, as if it had sampled a stack in that span.
func (s *soak) correlate(ctx context.Context) {
	sockets, _ := filepath.Glob(filepath.Join(s.dir, "*.sock"))
	if len(sockets) == 0 {
		return // The integration is off; report.Without has the reason.
	}
	for n := 0; ctx.Err() == nil; n++ {
		// To the service, each connection is a new profiler.
		to, err := net.Dial("unixgram", sockets[0])
		if err != nil {
			s.fault("profiler: %w", err)
			return
		}
		messages := [][]byte{wire.ProfilingRegistration{SamplesDelayMS: 200, HostID: "soak"}.Encode()}
		for range 100 {
			select {
			case <-ctx.Done():
			case one := <-s.sampled:
				messages = append(messages, wire.ProfilingCorrelation{
					TraceID: one.TraceID, TransactionID: one.LocalRoot, StackTraceID: [16]byte{byte(n)}, Count: 1,
				}.Encode())
			}
			for _, m := range messages {
				if _, err := to.Write(m); err != nil {
					s.fault("profiler: %w", err)
				}
			}
			messages = nil
		}
		if err := to.Close(); err != nil {
			s.fault("profiler: %w", err)
		}
	}
}

// end shuts the service down step by step, checks that nothing remains published, and returns
// the last report.
func (s *soak) end(t *testing.T) report {
	t.Helper()
	s.child.Send("quiet")
	s.child.Expect("quiet")
	r := s.report(t)
	open, err := s.ledger.open(r.Spans)
	require.NoError(t, err)
	assert.Zero(t, open, "spans that never ended")
	s.nothingPublished(t)

	s.child.Send("shutdown")
	s.child.Expect("down")
	const exitNoContext, exitProcessGone = 3, 5
	s.exits(t, exitNoContext, "inspect")
	s.exits(t, exitNoContext, "watch", "--count=1")
	fs, err := procfs.NewProc(s.child.PID())
	require.NoError(t, err)
	maps, err := fs.ProcMaps()
	require.NoError(t, err)
	for _, m := range maps {
		assert.NotContains(t, m.Pathname, "OTEL", "a mapping that is left")
		assert.NotContains(t, m.Pathname, "DD_", "a mapping that is left")
	}
	targets, err := fs.FileDescriptorTargets()
	require.NoError(t, err)
	for _, target := range targets {
		assert.NotContains(t, target, "memfd", "a descriptor that is left")
	}
	sockets, err := filepath.Glob(filepath.Join(s.dir, "*.sock"))
	require.NoError(t, err)
	assert.Empty(t, sockets, "a socket that is left")

	r = s.report(t)
	s.child.Done()
	s.exits(t, exitProcessGone, "inspect")
	return r
}

func (s *soak) exits(t *testing.T, code int, args ...string) {
	t.Helper()
	_, stderr, got := programs.Run(t, s.command(args...))
	assert.Equal(t, code, got, "%q: %s", args, stderr)
}

// nothingPublished checks that the service publishes no span once all spans have ended: package
// reader, otelctx inspect and otelctx record must find none.
func (s *soak) nothingPublished(t *testing.T) {
	t.Helper()
	p, err := reader.Open(s.child.PID())
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	threads, err := p.Threads(t.Context())
	require.NoError(t, err)
	for _, thread := range threads {
		assert.Nil(t, thread.Span)
	}
	live, err := p.Spans(t.Context())
	require.NoError(t, err)
	assert.Empty(t, live)
	layout, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	assert.Len(t, layout.Carriers, 3, "not all carriers are on")

	var d struct {
		Threads    []threadDocument
		Attributed uint64
	}
	for _, args := range [][]string{{"inspect", "--json"}, {"record", "--json", "--freq=997", "--duration=500ms"}} {
		out, err := s.command(args...).Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && args[0] == "record" && exit.ExitCode() == exitNoSamples {
			continue // idle
		}
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(out, &d))
	}
	assert.Empty(t, d.Threads)
	assert.Zero(t, d.Attributed)
}

// verdict checks that there were no faults, no errors, and enough spans and readers of each kind. It
// does not check the curves.
func (s *soak) verdict(t *testing.T, r report) {
	t.Helper()
	for _, fault := range s.faults {
		assert.NoError(t, fault)
	}
	assert.Equal(t, len(s.faults), s.found, "number of faults")
	assert.Zero(t, r.Handled, "went to otel.Handle: %q", r.Errors)
	assert.Zero(t, r.Failed)
	assert.Positive(t, r.Requests)
	if r.Without == "" {
		assert.Positive(t, r.Stats.Correlations)
		assert.Positive(t, r.Correlated)
		assert.Zero(t, r.Stats.Malformed+r.Stats.UnknownTypes)
	}
	for _, what := range everyCount {
		assert.Positive(t, s.counts[what], what)
	}
	for _, k := range s.kinds() {
		assert.Positive(t, s.lives[k.name][finishes], k.name)
		assert.Positive(t, s.lives[k.name][killed], k.name)
	}
}
