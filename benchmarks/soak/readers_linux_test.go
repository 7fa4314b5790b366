// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// exitBusy is otelctx's exit code for a context that was being updated each time it was
// looked at. That happens if the process does not run meanwhile.
const exitBusy = 7

// exitNoSamples is the exit code of otelctx record without samples: the process was idle, or the
// recording ended before its first one.
const exitNoSamples = 9

// kind is a kind of readers that come and go.
type kind struct {
	name string
	// once lives one life of the fate and returns what it should not have done.
	once func(fate) error
	// fates are what becomes of them, in turn.
	fates []fate
	// pause is how long there is none, at most.
	pause time.Duration
}

func (s *soak) kinds() []kind {
	all := []fate{finishes, killed, resumed, interrupted, buried}
	// A reader that ends by itself, soon, cannot be told to.
	brief := []fate{finishes, killed, resumed, buried}
	return []kind{
		{byInspect, s.inspect, brief, s.unit / 2},
		{byWatch, s.watch, all, s.unit / 2},
		{byRecord, s.record, all, s.unit / 2},
		{byReader, s.visit, all, s.unit / 2},
	}
}

// comeAndGo has readers of a kind live one after the other, with each fate in its turn.
// It goes on until ctx is done, and at least until one has been killed.
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

// threadDocument is a thread in a span, as otelctx inspect and watch say.
type threadDocument struct {
	TraceID    string            `json:"trace_id"`
	SpanID     string            `json:"span_id"`
	Proven     bool              `json:"proven"`
	Attributes map[string]string `json:"attributes"`
}

// judgeThreads checks what a command said of threads.
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
		s.judge(by, shown{traceID, spanID, laneIn(t.Attributes), from, to})
	}
}

// laneIn returns what laneOf does.
func laneIn(attributes map[string]string) string {
	if lane, ok := attributes[laneKey]; ok && len(attributes) == 1 || len(attributes) == 0 {
		return lane
	}
	return fmt.Sprint(attributes)
}

// inspect is a life of otelctx inspect.
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
	if err := p.tell(d.Resource, d.Attributes); err != nil {
		return err
	}
	s.judgeContext(p)
	s.judgeThreads(byInspect, d.Threads, from, to)
	return nil
}

// watch is a life of otelctx watch.
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
			// A look was over when the next one began.
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

// record is a life of otelctx record.
func (s *soak) record(f fate) error {
	dir, err := os.MkdirTemp(s.dir, "recording-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "profile.otlp")
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
		return nil // it was interrupted at its start, or stopped for most of its time
	case code != 0 || err != nil:
		if _, missing := os.Stat(file); code == -1 && !errors.Is(missing, fs.ErrNotExist) {
			// It was killed when all was written, or else what is there is not whole.
			_, err = readProfile(file)
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
	data, err := readProfile(file)
	if err != nil {
		return err
	}
	s.judgeProfile(data)
	return nil
}

// samples reports whether a recorder samples by now.
func samples(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	targets, _ := p.FileDescriptorTargets()
	return slices.Contains(targets, "anon_inode:[perf_event]")
}

func readProfile(file string) (*profilespb.ProfilesData, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	data := new(profilespb.ProfilesData)
	return data, proto.Unmarshal(b, data)
}

// clockError is by how much a recorder's clock may be off: it reads the wall clock when it
// begins, and counts from there.
const clockError = 5 * time.Millisecond

// judgeProfile checks the span of each sample.
func (s *soak) judgeProfile(data *profilespb.ProfilesData) {
	d := data.GetDictionary()
	for _, rp := range data.GetResourceProfiles() {
		for _, sp := range rp.GetScopeProfiles() {
			for _, p := range sp.GetProfiles() {
				for _, sample := range p.GetSamples() {
					if sample.GetLinkIndex() != 0 {
						s.judgeSample(d, sample)
					}
				}
			}
		}
	}
}

func (s *soak) judgeSample(d *profilespb.ProfilesDictionary, sample *profilespb.Sample) {
	var one shown
	link := d.GetLinkTable()[sample.GetLinkIndex()]
	copy(one.TraceID[:], link.GetTraceId())
	copy(one.SpanID[:], link.GetSpanId())
	for _, i := range sample.GetAttributeIndices() {
		a := d.GetAttributeTable()[i]
		if key := d.GetStringTable()[a.GetKeyStrindex()]; strings.HasPrefix(key, "soak.") {
			one.Lane = laneIn(map[string]string{key: a.GetValue().GetStringValue()})
		}
	}
	for _, at := range sample.GetTimestampsUnixNano() {
		one.From, one.To = int64(at)-clockError.Nanoseconds(), int64(at)+clockError.Nanoseconds()
		s.judge(byRecord, one)
	}
}

// visit is a life of a process that reads the service by package reader.
func (s *soak) visit(f fate) error {
	out := &lines{each: s.judgeVisit}
	l, err := s.reader(out, errand{PID: s.child.PID(), Visits: 50})
	if err != nil {
		return err
	}
	l.fate, l.ready, l.after, l.hold = f, out.seen.Load, rand.N(s.unit/2), rand.N(s.unit)
	_, err = l.live()
	return err
}

// reader returns a process that reads by package reader, not started yet.
func (s *soak) reader(out *lines, e errand) (*life, error) {
	cmd, err := childproc.Command(roleReader)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(e)
	cmd.Stdin, cmd.Stdout = bytes.NewReader(append(line, '\n')), out
	return &life{cmd: cmd}, err
}

// judgeVisit checks what a reader has said of a visit.
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
			default: // There are enough.
			}
		}
	}
}
