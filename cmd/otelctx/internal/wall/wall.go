// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wall records where the wall-clock time of spans goes. It looks at the goroutines of
// processes again and again: what a goroutine does at a look is taken for what it has done since the
// look before.
//
// Each goroutine counts once, for the live span that it started last. It needs only the right to read
// the processes, and does nothing in them.
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

// Config says what to record.
type Config struct {
	PIDs []int
	// Frequency is how many looks there are in a second, on average: the time between two of them is
	// random, so that they are not in step with what goes on in a process.
	Frequency int
	// Duration is how long to record, 0 until the processes, or the context, end.
	Duration time.Duration
	// Version is that of who records.
	Version string
	// Progress, if not nil, is called with how long the recording has gone on, and how many goroutines
	// have been looked at.
	Progress func(elapsed time.Duration, goroutines uint64)
	// Part, if not nil, is called with profiles of about ten seconds each.
	Part func(*profilespb.ProfilesData)
}

// Result is a recording.
type Result struct {
	Start, End time.Time
	// Looks is how many looks there were at all processes, Goroutines how many goroutines were looked
	// at in all. Torn and Lost count readings and goroutines that changed meanwhile. Sampled says that
	// there were so many goroutines that only some of them, by chance, were read at each look.
	Looks, Goroutines uint64
	Torn, Lost        uint64
	Sampled           bool
	// Late is by how much looks came too late on average, and Latest at most.
	Late, Latest time.Duration
	// Overloaded says that looks were late by more than a tenth of the time between them on average, so
	// that times are less exact than their errors say.
	Overloaded bool
	// Rows has the time of spans by their names, that with the most first.
	Rows []Row
	// Functions has the time of waits by the user's function that waits, that with the most first.
	Functions []FunctionTime
	// Missing says what could not be found out, and why.
	Missing []error
	// Ended says that all processes have ended.
	Ended bool
}

// Times is wall-clock time by what goroutines did. Waits has the time of waits and system calls by
// their kind.
type Times struct {
	Total, Running, Runnable, Unknown time.Duration
	Waits                             map[string]time.Duration
	// Looks is how many looks have met this.
	Looks uint64
	// squares is the sum of the squares of what was added each time, in seconds.
	squares float64
}

// Waiting returns the time of all waits.
func (t *Times) Waiting() time.Duration { return t.Total - t.Running - t.Runnable - t.Unknown }

// Error returns the standard error of the total, as if each goroutine were in another span at each look
// and all were independent. It is less for spans that last longer than the time between two looks, and
// leaves out what looks that are late add to it.
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
	// maxGoroutines is how many goroutines of a process are read at a look. Of more, some are chosen by
	// chance.
	maxGoroutines = 4096
	// maxRows bounds rows and functions. The time of what there is no room for is under the name others.
	maxRows = 1 << 14
	others  = "(others)"
	// partTime is how long a part of a profile is.
	partTime = 10 * time.Second
)

// rowKey is the identity of a row, or of a function's wait.
type rowKey struct{ service, a, b string }

// target is a process that is recorded.
type target struct {
	pid      int
	process  *waiting.Process
	resource profile.Resource
	service  string
	last     time.Time // the last look
	// probability is with which each goroutine is read.
	probability float64
	// exited are the spans whose goroutine had exited at the last look.
	exited map[[8]byte]bool
	stacks map[string]*stack
	key    []byte // scratch space
	gone   bool
}

// recorder is a recording.
type recorder struct {
	Config

	targets   []*target
	result    Result
	rows      map[rowKey]*Row
	functions map[rowKey]*FunctionTime
	builder   *profile.Builder
	tops      map[string]*symbols.Location
	begun     time.Time // the part
	late      time.Duration
}

// Record records until the duration is over, ctx is done, or all processes have ended, which are no
// errors. The error is about a process that cannot be read from the start: see [waiting.Open] and
// [waiting.Process.Look].
func Record(ctx context.Context, c Config) (*Result, error) {
	raisePriority()
	r := &recorder{Config: c, rows: map[rowKey]*Row{}, functions: map[rowKey]*FunctionTime{}, tops: map[string]*symbols.Location{}}
	r.result.Start = time.Now()
	defer func() {
		for _, t := range r.targets {
			_, _ = patient.Call(context.Background(), t.pid, patient.Limit, func() (struct{}, error) { return struct{}{}, t.process.Close() })
		}
	}()
	for _, pid := range c.PIDs {
		t, err := patient.Call(ctx, pid, patient.Limit, func() (*target, error) { return open(ctx, pid) })
		if err != nil {
			return nil, err
		}
		r.targets = append(r.targets, t)
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
	// Symbols are read by the first look, whose time does not count.
	if _, err = p.Look(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	t.last = time.Now()
	return t, nil
}

// run looks until there is a reason to stop. The last look takes what is left of the time.
func (r *recorder) run(ctx context.Context) error {
	period := time.Second / time.Duration(r.Frequency)
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	for {
		due = due.Add(time.Duration(float64(period) * (0.5 + rand.Float64())))
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
			due = now // What was missed is not made up for.
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

// look looks at all processes.
func (r *recorder) look(ctx context.Context) error {
	r.result.Looks++
	r.result.Ended = true
	for _, t := range r.targets {
		if t.gone {
			continue
		}
		now := time.Now()
		look, err := patient.Call(ctx, t.pid, patient.Limit, func() (*waiting.Look, error) { return t.process.Sample(ctx, t.probability) })
		switch {
		case errors.Is(err, reader.ErrProcessGone):
			t.gone = true
			continue
		case err != nil && !errors.Is(err, reader.ErrBusy) && ctx.Err() == nil && r.result.Looks == 1:
			return err
		case err != nil: // The next look stands for this time too.
			r.result.Ended = false
			continue
		}
		r.result.Ended = false
		r.add(t, look, now.Sub(t.last))
		t.last = now
	}
	return nil
}

// add adds the time since the look before.
func (r *recorder) add(t *target, look *waiting.Look, elapsed time.Duration) {
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
		s := &look.Spans[g.Spans[len(g.Spans)-1]]
		if g.State == reader.GoroutineGone {
			// It was in the span when that was read, and exited before it was read itself; or it exited
			// long ago, and is in no span, whoever has the span now.
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
			r.builder.AddTime(t.resource, sample(g, s, known), weighted)
		}
	}
	t.exited = exited
	for row := range met {
		row.Looks++
	}
}

// stack is what is known of goroutines with equal stacks.
type stack struct {
	kind, function string
	// locations are the stack without the functions of the runtime that do the waiting, in whose place a
	// frame says what it waits for.
	locations []*symbols.Location
}

// maxStacks bounds the stacks of a process that are remembered.
const maxStacks = 1 << 14

// stack returns what is known of a goroutine's stack.
func (t *target) stack(r *recorder, g *waiting.Goroutine) *stack {
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

func (r *recorder) locations(p *waiting.Process, g *waiting.Goroutine, kind string) []*symbols.Location {
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

// sample returns what a profile has of a goroutine in a span.
func sample(g *waiting.Goroutine, s *waiting.Span, known *stack) profile.Sample {
	attributes := []*commonpb.KeyValue{profile.StringAttribute("otelctx.goroutine.state", g.State.String())}
	for _, a := range [...]struct{ key, value string }{{"otelctx.wait.kind", known.kind}, {wire.NameKey, s.Name}, {wire.EndpointKey, s.Endpoint}} {
		if a.value != "" {
			attributes = append(attributes, profile.StringAttribute(a.key, a.value))
		}
	}
	return profile.Sample{Stack: known.locations, Link: &profile.Link{TraceID: s.TraceID, SpanID: s.SpanID}, Attributes: attributes}
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

func (r *recorder) row(service, endpoint, name string) *Row {
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

func (r *recorder) function(service, function, kind string) *FunctionTime {
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

func (r *recorder) newPart() {
	r.begun = time.Now()
	r.builder = profile.New(profile.Options{Start: r.begun, Frequency: r.Frequency, Version: r.Version, Wall: true})
}

func (r *recorder) endPart() {
	if r.Part != nil {
		r.Part(r.builder.Data(time.Now()))
	}
}

func (r *recorder) finish() *Result {
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
