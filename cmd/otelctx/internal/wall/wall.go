// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wall records the wall-clock time of spans. It repeatedly takes a snapshot of the goroutines of
// processes, called a look, and attributes the time since the previous look to what each goroutine is doing.
//
// Each goroutine counts once, for the span that it is in. Recording only needs the permission
// to read the processes, and runs nothing in them.
package wall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// Config selects what to record.
type Config struct {
	PIDs []int
	// Frequency is the average number of looks per second. The intervals are random, so that looks are not
	// in step with the process's own periods.
	Frequency int
	// Duration limits the recording; 0 records until the processes end or the context is done.
	Duration time.Duration
	// Version is the version of the recording program.
	Version string
	// Progress, if not nil, is called with the elapsed time and the number of goroutines looked at so far.
	Progress func(elapsed time.Duration, goroutines uint64)
	// Part, if not nil, is called with profiles of about ten seconds each.
	Part func(*profilespb.ProfilesData)
}

// Result is a recording.
type Result struct {
	Start, End time.Time
	// Looks counts the looks, each at all processes, and Goroutines the goroutines read in all looks. Torn
	// counts reads that were repeated because a goroutine changed meanwhile, Lost goroutines that changed
	// each time. Sampled reports that there were so many goroutines that each look read only a random part of
	// them.
	Looks, Goroutines uint64
	Torn, Lost        uint64
	Sampled           bool
	// Late is the average delay of looks, Latest the largest.
	Late, Latest time.Duration
	// Overloaded reports that looks were late by more than a tenth of their interval on average, so the
	// times are less exact than their standard errors suggest.
	Overloaded bool
	// Rows holds the time of spans by name, the most first.
	Rows []Row
	// Functions holds the time of waits by the function of the user's code that waits, the most first.
	Functions []FunctionTime
	// Missing holds the reasons why some of the data could not be read.
	Missing []error
	// Ended reports that all processes have ended.
	Ended bool
}

// Times is wall-clock time by goroutine state. Waits breaks down the time of waits and system calls by kind.
type Times struct {
	Total, Running, Runnable, Unknown time.Duration
	Waits                             map[string]time.Duration
	// Looks counts the looks at which the span was found.
	Looks uint64
	// squares is the sum of the squared increments, in seconds squared.
	squares float64
}

// Waiting returns the time of all waits.
func (t *Times) Waiting() time.Duration { return t.Total - t.Running - t.Runnable - t.Unknown }

// Error returns the standard error of the total, under the assumption that at each look every goroutine is in
// a different span and all are independent. The real error is smaller for spans longer than the interval
// between looks, and does not include the effect of late looks.
func (t *Times) Error() time.Duration {
	return time.Duration(math.Sqrt(t.squares) * float64(time.Second))
}

// Row is the time of spans with one name.
type Row struct {
	Service, Endpoint, Name string
	Times
}

// FunctionTime is the time of waits of one kind in a function.
type FunctionTime struct {
	Service, Function, Kind string
	Time                    time.Duration
}

const (
	// maxGoroutines is how many goroutines of a process are read at a look. If there are more, a random
	// part is read.
	maxGoroutines = 512
	// maxRows bounds rows and functions. Beyond it, time is counted under the name others.
	maxRows = 1 << 14
	others  = "(others)"
	// partTime is the length of a part of a profile.
	partTime = 10 * time.Second
)

// rowKey identifies a row of spans, or a wait in a function.
type rowKey struct{ service, a, b string }

// target is a recorded process.
type target struct {
	pid      int
	process  *waiting.Process
	resource profile.Resource
	service  string
	last     time.Time // the last look
	// probability is the probability of reading each goroutine.
	probability float64
	// exited are the spans whose goroutine had exited at the last look.
	exited map[[8]byte]bool
	stacks map[string]*stack
	key    []byte // scratch space
	gone   bool
}

// Recorder records processes. It is not safe for concurrent use.
type Recorder struct {
	Config

	targets   []*target
	result    Result
	rows      map[rowKey]*Row
	functions map[rowKey]*FunctionTime
	builder   *profile.Builder
	tops      map[string]*symbols.Location
	begun     time.Time // start of the current part
	late      time.Duration
}

// Open prepares a recording: it opens the processes and reads their symbols. Record or Close releases them.
// The error is about a process that cannot be read: see [waiting.Open] and [waiting.Process.Look].
func Open(ctx context.Context, c Config) (*Recorder, error) {
	raisePriority()
	r := &Recorder{Config: c, rows: map[rowKey]*Row{}, functions: map[rowKey]*FunctionTime{}, tops: map[string]*symbols.Location{}}
	for _, pid := range c.PIDs {
		t, err := patient.Call(ctx, pid, patient.Limit, func() (*target, error) { return open(ctx, pid) })
		if err != nil {
			r.Close(ctx)
			return nil, err
		}
		r.targets = append(r.targets, t)
	}
	return r, nil
}

// Close releases the processes, if Record has not done so.
func (r *Recorder) Close(ctx context.Context) {
	for _, t := range r.targets {
		_, _ = patient.Call(context.WithoutCancel(ctx), t.pid, patient.Limit, func() (struct{}, error) { return struct{}{}, t.process.Close() })
	}
	r.targets = nil
}

// Record records until the duration has passed, ctx is done or all processes have ended; none of these is
// an error. The error is about a process that cannot be read at the first look.
func (r *Recorder) Record(ctx context.Context) (*Result, error) {
	defer r.Close(ctx)
	r.result.Start = time.Now()
	for _, t := range r.targets {
		t.last = r.result.Start
	}
	r.newPart()
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	r.endPart()
	return r.finish(), nil
}

func open(ctx context.Context, pid int) (*target, error) {
	p, err := waiting.Open(pid)
	if err != nil {
		return nil, err
	}
	attributes, schema := p.Resource(ctx)
	t := &target{pid: pid, process: p, service: p.Service(ctx), probability: 1, stacks: map[string]*stack{}}
	if t.service == "" {
		t.service = "unknown_service"
		attributes = append(slices.Clip(attributes), profile.StringAttribute(string(semconv.ServiceNameKey), t.service))
	}
	t.resource, _ = profile.NewResource(attributes, schema)
	// The first look reads the symbols, and its time does not count.
	if _, err = p.Look(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return t, nil
}

// run looks at the processes until the recording ends. The last look covers the rest of the time.
func (r *Recorder) run(ctx context.Context) error {
	period := time.Second / time.Duration(r.Frequency)
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	for {
		due = due.Add(time.Duration(float64(period) * (0.5 + rand.Float64()))) //nolint:gosec // G404: chance, not secrecy
		end := r.result.Start.Add(r.Duration)
		last := r.Duration > 0 && !due.Before(end)
		if last {
			due = end
		}
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		late := max(time.Since(due), 0)
		r.late += late
		r.result.Latest = max(r.result.Latest, late)
		if err := r.look(ctx); err != nil {
			return err
		}
		if now := time.Now(); now.After(due.Add(period)) {
			due = now // Missed looks are not made up for.
		}
		if r.Progress != nil {
			r.Progress(time.Since(r.result.Start), r.result.Goroutines)
		}
		if last || r.result.Ended {
			return nil
		}
		if time.Since(r.begun) > partTime {
			r.endPart()
			r.newPart()
		}
	}
}

// look looks once at all processes.
func (r *Recorder) look(ctx context.Context) error {
	r.result.Looks++
	r.result.Ended = true
	for _, t := range r.targets {
		if t.gone {
			continue
		}
		now := time.Now()
		look, err := patient.Call(ctx, t.pid, patient.Limit, func() (*waiting.Look, error) {
			return t.process.Sample(ctx, waiting.Options{Stacks: true, Probability: t.probability})
		})
		switch {
		case errors.Is(err, reader.ErrProcessGone):
			t.gone = true
			continue
		case err != nil && !errors.Is(err, reader.ErrBusy) && ctx.Err() == nil && r.result.Looks == 1:
			return err
		case err != nil: // The next look covers this time too.
			r.result.Ended = false
			continue
		}
		r.result.Ended = false
		r.add(t, look, now.Sub(t.last))
		t.last = now
	}
	return nil
}

// add adds the time since the previous look.
func (r *Recorder) add(t *target, look *waiting.Look, elapsed time.Duration) {
	weighted := time.Duration(float64(elapsed) / t.probability)
	r.result.Torn, r.result.Lost = r.result.Torn+uint64(look.Torn), r.result.Lost+uint64(look.Lost)
	r.result.Missing = look.Missing
	r.result.Goroutines += uint64(len(look.Goroutines))
	r.result.Sampled = r.result.Sampled || t.probability < 1
	expected := float64(len(look.Goroutines)) / t.probability
	t.probability = min(1, maxGoroutines/max(expected, 1))
	met := map[*Row]bool{}
	exited := map[[8]byte]bool{}
	for i := range look.Goroutines {
		g := &look.Goroutines[i]
		if g.In < 0 {
			continue
		}
		s := &look.Spans[g.In]
		if g.State == reader.GoroutineGone {
			// Either the goroutine exited after the span was read and before the goroutine was, or it exited long
			// ago and has left the span, which another goroutine may own now.
			if exited[s.SpanID] = true; t.exited[s.SpanID] {
				continue
			}
		}
		known := t.stack(r, g)
		row := r.row(t.service, s.Endpoint, s.Name)
		row.add(g.State, known.kind, weighted)
		met[row] = true
		if known.kind != "" {
			r.function(t.service, known.function, known.kind).Time += weighted
		}
		if r.Part != nil {
			r.builder.AddTime(t.resource, known.locations, s.TraceID, s.SpanID, attributesOf(g, s, known), weighted)
		}
	}
	t.exited = exited
	for row := range met {
		row.Looks++
	}
}

// stack describes goroutines with equal stacks.
type stack struct {
	kind, function string
	// locations is the stack, in which a frame that names the wait replaces the runtime functions that
	// implement it.
	locations []*symbols.Location
}

// maxStacks bounds the cached stacks of a process.
const maxStacks = 1 << 14

// stack returns the description of a goroutine's stack, from the cache if possible.
func (t *target) stack(r *Recorder, g *waiting.Goroutine) *stack {
	t.key = append(append(t.key[:0], byte(g.State)), g.WaitReason...)
	for _, pc := range g.Stack {
		t.key = binary.NativeEndian.AppendUint64(t.key, pc)
	}
	known, ok := t.stacks[string(t.key)]
	if ok {
		return known
	}
	frames := t.process.Frames(g)
	known = &stack{kind: waiting.Kind(g, frames), function: "(unknown)"}
	if i := t.process.User(frames); i >= 0 {
		known.function = frames[i].Function
	}
	known.locations = r.locations(t.process, g, known.kind)
	if len(t.stacks) >= maxStacks {
		clear(t.stacks)
	}
	t.stacks[string(t.key)] = known
	return known
}

func (r *Recorder) locations(p *waiting.Process, g *waiting.Goroutine, kind string) []*symbols.Location {
	name := "[" + g.State.String() + "]"
	if g.State == reader.GoroutineWaiting {
		name = "[waiting: " + kind + "]"
	} else if kind != "" {
		name = "[" + kind + "]"
	}
	top, ok := r.tops[name]
	if !ok {
		top = &symbols.Location{Lines: []symbols.Line{{Function: name}}}
		r.tops[name] = top
	}
	stack := p.Locations(g)
	for len(stack) > 1 && len(stack[0].Lines) > 0 && inRuntime(stack[0].Lines) {
		stack = stack[1:]
	}
	return append([]*symbols.Location{top}, stack...)
}

// attributesOf returns the attributes of a goroutine's samples in a span.
func attributesOf(g *waiting.Goroutine, s *waiting.Span, known *stack) []*commonpb.KeyValue {
	attributes := []*commonpb.KeyValue{profile.StringAttribute("otelctx.goroutine.state", g.State.String())}
	for _, a := range [...]struct{ key, value string }{{"otelctx.wait.kind", known.kind}, {wire.NameKey, s.Name}, {wire.EndpointKey, s.Endpoint}} {
		if a.value != "" {
			attributes = append(attributes, profile.StringAttribute(a.key, a.value))
		}
	}
	return attributes
}

func inRuntime(lines []symbols.Line) bool {
	return !slices.ContainsFunc(lines, func(l symbols.Line) bool { return !strings.HasPrefix(l.Function, "runtime.") })
}

func (t *Times) add(state reader.GoroutineState, kind string, d time.Duration) {
	t.Total += d
	t.squares += d.Seconds() * d.Seconds()
	switch {
	case kind != "":
		if t.Waits == nil {
			t.Waits = map[string]time.Duration{}
		}
		t.Waits[kind] += d
	case state == reader.GoroutineRunning:
		t.Running += d
	case state == reader.GoroutineRunnable:
		t.Runnable += d
	default:
		t.Unknown += d
	}
}

func (r *Recorder) row(service, endpoint, name string) *Row {
	key := rowKey{service, endpoint, name}
	row, ok := r.rows[key]
	if !ok && len(r.rows) >= maxRows {
		key = rowKey{others, others, others}
		row, ok = r.rows[key]
	}
	if !ok {
		row = &Row{Service: key.service, Endpoint: key.a, Name: key.b}
		r.rows[key] = row
	}
	return row
}

func (r *Recorder) function(service, function, kind string) *FunctionTime {
	key := rowKey{service, function, kind}
	f, ok := r.functions[key]
	if !ok && len(r.functions) >= maxRows {
		key = rowKey{others, others, others}
		f, ok = r.functions[key]
	}
	if !ok {
		f = &FunctionTime{Service: key.service, Function: key.a, Kind: key.b}
		r.functions[key] = f
	}
	return f
}

func (r *Recorder) newPart() {
	r.begun = time.Now()
	r.builder = profile.New(profile.Options{Start: r.begun, Frequency: r.Frequency, Version: r.Version, Wall: true})
}

func (r *Recorder) endPart() {
	if r.Part != nil {
		r.Part(r.builder.Data(time.Now()))
	}
}

func (r *Recorder) finish() *Result {
	r.result.End = time.Now()
	if r.result.Looks > 0 {
		r.result.Late = r.late / time.Duration(r.result.Looks)
		r.result.Overloaded = r.result.Late > time.Second/time.Duration(10*r.Frequency)
	}
	for _, row := range r.rows {
		r.result.Rows = append(r.result.Rows, *row)
	}
	slices.SortFunc(r.result.Rows, func(a, b Row) int {
		return compare(a.Total, b.Total, a.Service+"\x00"+a.Endpoint+"\x00"+a.Name, b.Service+"\x00"+b.Endpoint+"\x00"+b.Name)
	})
	for _, f := range r.functions {
		r.result.Functions = append(r.result.Functions, *f)
	}
	slices.SortFunc(r.result.Functions, func(a, b FunctionTime) int {
		return compare(a.Time, b.Time, fmt.Sprint(a.Service, a.Function, a.Kind), fmt.Sprint(b.Service, b.Function, b.Kind))
	})
	return &r.result
}

// compare orders by time, the most first, and then by name.
func compare(a, b time.Duration, nameA, nameB string) int {
	if a != b {
		if a > b {
			return -1
		}
		return 1
	}
	return strings.Compare(nameA, nameB)
}
