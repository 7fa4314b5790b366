// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
)

// exitBusy is the exit code of otelctx if an update of the context was in progress at each attempt to
// read it. This happens if the kernel suspends the service during an update.
const exitBusy = 7

// exitNoSamples is the exit code of otelctx record if it has taken no samples, because the process was idle or the
// recording ended too soon.
const exitNoSamples = 9

// kind describes a kind of reader and how to run it.
type kind struct {
	name string
	// once runs one reader and ends it according to its fate. It returns an error if the reader
	// did anything wrong.
	once func(fate) error
	// fates lists the fates of consecutive readers. After the last fate, the first follows.
	fates []fate
	// pause is the maximum time between two readers of this kind.
	pause time.Duration
}

func (s *soak) kinds() []kind {
	all := []fate{finishes, killed, resumed, interrupted, buried}
	// otelctx inspect exits too soon to be interrupted.
	brief := []fate{finishes, killed, resumed, buried}
	return []kind{
		{byInspect, s.inspect, brief, s.unit / 2},
		{byWatch, s.watch, all, s.unit / 2},
		{byRecord, s.record, all, s.unit / 2},
	}
}

// comeAndGo runs readers of a kind, one after the other, until ctx is done, but at least two of them,
// so that one is killed.
func (s *soak) comeAndGo(ctx context.Context, k kind) {
	const least = 2
	for n := 0; ctx.Err() == nil || n < least; n++ {
		f := k.fates[n%len(k.fates)]
		if err := k.once(f); err != nil {
			s.fault("%s, %w", k.name, err)
		}
		s.lived(k.name, f)
		sleep(ctx, rand.N(k.pause))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *soak) command(args ...string) *exec.Cmd {
	return exec.Command(s.otelctx, append([]string{args[0], strconv.Itoa(s.child.PID())}, args[1:]...)...)
}

// threadDocument is a thread in a span, in the JSON of otelctx inspect and watch.
type threadDocument struct {
	TraceID string `json:"trace_id"`
	SpanID  string `json:"span_id"`
	Proven  bool   `json:"proven"`
}

// judgeThreads checks the spans of the threads in a command's output against the ledger.
func (s *soak) judgeThreads(by string, threads []threadDocument, from, to int64) {
	for _, t := range threads {
		if !t.Proven {
			s.fault("%s: a span is not proven: %+v", by, t)
		}
		traceID, err := trace.TraceIDFromHex(t.TraceID)
		spanID, err2 := trace.SpanIDFromHex(t.SpanID)
		if err := errors.Join(err, err2); err != nil {
			s.fault("%s: %+v: %w", by, t, err)
			continue
		}
		s.judge(by, shown{traceID, spanID, from, to})
	}
}

func (s *soak) inspect(f fate) error {
	var out bytes.Buffer
	l := life{cmd: s.command("inspect", "--json"), fate: f, after: rand.N(30 * time.Millisecond), hold: rand.N(s.unit)}
	l.cmd.Stdout = &out
	from := time.Now().UnixNano()
	code, err := l.live()
	to := time.Now().UnixNano()
	switch {
	case code == exitBusy:
		s.count(busyReads, 1)
		return nil
	case code != 0 || err != nil:
		return err
	}
	var d struct {
		Resource, Attributes map[string]any
		Threads              []threadDocument
	}
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		return err
	}
	p := published{By: byInspect, From: from, To: to}
	if err := p.setGenerations(d.Resource, d.Attributes); err != nil {
		return err
	}
	s.judgeContext(p)
	s.judgeThreads(byInspect, d.Threads, from, to)
	return nil
}

func (s *soak) watch(f fate) error {
	const interval = 5 * time.Millisecond
	type frame struct {
		TimeUnixNano int64 `json:"time_unix_nano"`
		Threads      []threadDocument
	}
	var last *frame
	out := &lines{each: func(line []byte) {
		next := new(frame)
		if err := json.Unmarshal(line, next); err != nil {
			s.fault("%s: %w", byWatch, err)
			return
		}
		if last != nil {
			// A frame has the time at which its read began. The threads were read between that
			// time and the beginning of the next frame.
			s.judgeThreads(byWatch, last.Threads, last.TimeUnixNano, next.TimeUnixNano)
		}
		last = next
	}}
	duration := s.unit/2 + rand.N(s.unit)
	l := life{
		cmd:  s.command("watch", "--json", "--interval="+interval.String(), fmt.Sprintf("--count=%d", duration/interval)),
		fate: f, ready: out.seen.Load, after: rand.N(duration), hold: rand.N(s.unit),
	}
	l.cmd.Stdout = out
	code, err := l.live()
	if last != nil {
		s.judgeThreads(byWatch, last.Threads, last.TimeUnixNano, time.Now().UnixNano())
	}
	if code == exitBusy {
		s.count(busyReads, 1)
		return nil
	}
	return err
}

func (s *soak) record(f fate) error {
	dir, err := os.MkdirTemp(s.dir, "recording-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "profile.pb.gz")
	duration := s.unit + rand.N(s.unit)
	var out bytes.Buffer
	l := life{
		cmd:  s.command("record", "--json", "--freq=997", "--top=1", "--output="+file, "--duration="+duration.String()),
		fate: f, after: rand.N(duration), hold: rand.N(s.unit),
	}
	l.ready = func() bool { return samples(l.cmd.Process.Pid) }
	l.cmd.Stdout = &out
	code, err := l.live()
	switch {
	case code == exitBusy:
		s.count(busyReads, 1)
		return nil
	case code == exitNoSamples && (f == interrupted || f == resumed):
		return nil // The recorder was interrupted at once, or stopped for most of its time.
	case code != 0 || err != nil:
		if b, missing := os.ReadFile(file); code == -1 && missing == nil && len(b) > 0 {
			// A killed recorder leaves a file that is either empty or complete.
			err = s.judgeRecording(b)
		}
		return err
	}
	var d struct{ Samples, Attributed, Unproven, Lost uint64 }
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		return err
	}
	s.count("samples of "+byRecord, d.Samples)
	s.count("samples of "+byRecord+" that were lost", d.Lost)
	if d.Unproven != 0 {
		return fmt.Errorf("%d samples are not proven", d.Unproven)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return s.judgeRecording(b)
}

// samples reports whether the recorder with this process id has started to sample.
func samples(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	targets, _ := p.FileDescriptorTargets()
	return slices.Contains(targets, "anon_inode:[perf_event]")
}

// judgeRecording checks that each sample of a profile has the span that the number on its stack
// identifies, or no span if the number permits that.
func (s *soak) judgeRecording(b []byte) error {
	return stacknumber.Read(b, func(number uint64, labels map[string][]string, count int) error {
		value := func(key string) string { return strings.Join(labels[key], " and ") }
		if value("span_id") == "" {
			if number&mayBeMissing == 0 {
				s.fault("%s: %d samples in span number %d without it", byRecord, count, number>>1)
			}
			return nil
		}
		traceID, err := trace.TraceIDFromHex(value("trace_id"))
		spanID, err2 := trace.SpanIDFromHex(value("span_id"))
		if shown := numberOf(spanID) << 1 % stacknumber.Max; shown != number&^mayBeMissing {
			s.fault("%s: %d samples in span number %d were attributed to number %d", byRecord, count, number>>1, shown>>1)
		}
		for range count {
			s.judge(byRecord, shown{traceID, spanID, math.MinInt64, math.MaxInt64})
		}
		return errors.Join(err, err2)
	})
}

// judgeVisit checks what a reader process has found in a visit. line is the visit in JSON.
func (s *soak) judgeVisit(line []byte) {
	var v visit
	if err := json.Unmarshal(line, &v); err != nil {
		s.fault("%s: %w", byReader, err)
		return
	}
	for _, e := range v.Errors {
		s.fault("%s: %s", byReader, e)
	}
	s.count("visits of "+byReader, 1)
	s.count(busyReads, uint64(v.Busy))
	for _, p := range v.Contexts {
		s.judgeContext(p)
	}
	for _, one := range v.Spans {
		s.judge(one.By, one.shown)
		if one.LocalRoot != [8]byte{} {
			select {
			case s.sampled <- one:
			default:
			}
		}
	}
}
