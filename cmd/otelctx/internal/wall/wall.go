// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wall records the wall-clock time of spans. It repeatedly takes a snapshot of the goroutines of a
// process and attributes the time since the previous snapshot to the current state of each goroutine.
//
// Each goroutine counts once, for the span that it is in. Recording only needs the permission
// to read the processes, and runs nothing in them. Each process has its own schedule of snapshots, because
// a process can block its readers.
package wall

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/process"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// Config is the configuration of a recording.
type Config struct {
	PIDs []int
	// Select, if not nil, selects further processes by their ids and service names. Processes that publish their
	// live spans and can be read are recorded, at most 64 at a time. Processes that start during the recording
	// are found after about five seconds at most. Select must be safe for concurrent use.
	Select func(pid int, service string) bool
	// Frequency is the average number of snapshots per second and process. The intervals are random, so
	// that the snapshots do not run in step with periodic work of the process.
	Frequency int
	// Duration limits the recording; 0 records until the context is done or, without Select, until the
	// processes end.
	Duration time.Duration
	// Filters lists the conditions that each goroutine in a span must meet in a snapshot. Goroutines that fail one of
	// them are left out.
	Filters filter.Filters
	// Attributes enables the rows of span attributes.
	Attributes bool
	// Version is the version of the recording program.
	Version string
	// Progress, if not nil, is called with the elapsed time and the number of goroutines read so far.
	Progress func(elapsed time.Duration, goroutines uint64)
	// Part, if not nil, is called with profiles of about ten seconds each. Calls do not overlap.
	Part func(*profilespb.ProfilesData)
}

// Result holds what was measured in a recording or in one of its periods.
type Result struct {
	Start, End time.Time
	// Recorded is the number of processes that were recorded, whether or not they had spans.
	Recorded int
	// Snapshots counts the snapshots, and Goroutines the goroutines read in all of them.
	Snapshots, Goroutines uint64
	// Torn counts reads that were repeated because the goroutine changed meanwhile.
	Torn uint64
	// Lost counts goroutines that changed during every attempt.
	Lost uint64
	// Sampled reports whether there were so many goroutines that some snapshots contain only a random part of
	// them.
	Sampled bool
	// Late is the average delay of the snapshots, and Latest the largest.
	Late, Latest time.Duration
	// Skipped counts the snapshots that were not taken, because the previous one took too long or the process
	// could not be read. The next snapshot counts for their time too.
	Skipped uint64
	// Overloaded reports whether snapshots were late by more than a tenth of their interval on average. The times
	// are then less exact than their standard errors suggest.
	Overloaded bool
	// Rows add up the time. Functions is nil: see Waits.
	tally.Rows[Times]
	// Waits holds the time of waits by kind and by the function of the user's code that waits, in descending
	// order.
	Waits []FunctionTime
	// Filtered counts the goroutines that Config.Filters left out.
	Filtered uint64
	// FilteredAttributes holds the attributes of these goroutines if none passed Config.Filters.
	FilteredAttributes filter.Dropped
	// Missing holds the reasons why some of the data could not be read.
	Missing []error
	// Ended reports whether the recording ended because all processes had ended.
	Ended bool
}

// Times is wall-clock time by goroutine state. Waits breaks down the time of waits and system calls by kind.
type Times struct {
	// Queued is the part of Running in which the goroutine's thread waited for a processor.
	Total, Running, Queued, Runnable, Unknown time.Duration
	Waits                                     map[string]time.Duration
	// Seen counts how often goroutines were found in these spans, and Snapshots the snapshots that found some. Snapshots
	// is set only for span names.
	Seen, Snapshots uint64
	// squares is the sum of the squared increments, in seconds squared.
	squares float64
	// kind is the kind of wait of a single goroutine, to which Total belongs.
	kind string
}

// newTimes returns the time of a goroutine in a state. queued is the part of a running goroutine's time in which its
// thread waited for a processor.
func newTimes(state reader.GoroutineState, kind string, d time.Duration, queued float64) Times {
	t := Times{Total: d, Seen: 1, squares: d.Seconds() * d.Seconds(), kind: kind}
	switch {
	case kind != "":
	case state == reader.GoroutineRunning:
		t.Running, t.Queued = d, time.Duration(queued*float64(d))
	case state == reader.GoroutineRunnable:
		t.Runnable = d
	default:
		t.Unknown = d
	}
	return t
}

// Add implements [tally.Amount].
func (t Times) Add(o Times) Times {
	if t.Waits == nil && (o.kind != "" || len(o.Waits) > 0) {
		t.Waits = map[string]time.Duration{}
	}
	if o.kind != "" {
		t.Waits[o.kind] += o.Total
	}
	for kind, d := range o.Waits {
		t.Waits[kind] += d
	}
	t.Total, t.Running, t.Queued = t.Total+o.Total, t.Running+o.Running, t.Queued+o.Queued
	t.Runnable, t.Unknown = t.Runnable+o.Runnable, t.Unknown+o.Unknown
	t.Seen, t.squares = t.Seen+o.Seen, t.squares+o.squares
	return t
}

// Weight implements [tally.Amount].
func (t Times) Weight() uint64 { return uint64(max(t.Total, 0)) }

// Waiting returns the total time of waits and system calls.
func (t Times) Waiting() time.Duration { return t.Total - t.Running - t.Runnable - t.Unknown }

// Error returns the standard error of the total. It assumes that in each snapshot every goroutine is in a
// different span and all spans are independent. For spans longer than the interval between snapshots the
// real error is smaller. The effect of late snapshots is not included.
func (t Times) Error() time.Duration {
	return time.Duration(math.Sqrt(t.squares) * float64(time.Second))
}

// FunctionTime is the time of waits of one kind in a function.
type FunctionTime struct {
	Service, Function, Kind string
	Time                    time.Duration
}

const (
	// maxGoroutines is the approximate limit on the goroutines that are read for a snapshot of a process. If the
	// previous snapshot found more, a random part is read.
	maxGoroutines = 512
	// maxExamined is the number of goroutines that are examined for a snapshot to find those that have inherited a
	// span. If there are more, a random part is examined.
	maxExamined = 4096
	// maxWaits bounds the waits by function, and the span names whose snapshots are counted. Beyond it, waits are
	// counted under the name others.
	maxWaits = 1 << 14
	others   = "(others)"
	// partTime is the length of a part of a profile. It is exceeded if writing the previous part takes longer, as to a
	// pipe. After maxPartTime, which bounds the memory, even the snapshots wait for that.
	partTime    = 10 * time.Second
	maxPartTime = time.Minute
	// findInterval is the time between two searches for processes. maxProcesses bounds the processes found
	// by Config.Select that are recorded at the same time.
	findInterval = 5 * time.Second
	maxProcesses = 64
	// maxOpening bounds the processes that are opened at the same time. One user cannot block that many.
	maxOpening = 128
	// maxMissing bounds Result.Missing.
	maxMissing = 8
)

type waitKey struct{ service, function, kind string }

// nameKey identifies the spans with one name in the requests to one endpoint.
type nameKey struct{ service, endpoint, name string }

// target is a recorded process.
type target struct {
	pid       int
	process   *waiting.Process
	program   *program  // of the last snapshot
	last      time.Time // the last snapshot
	snapshots int       // the number of snapshots
	// probability is the probability of reading each goroutine.
	probability float64
	missing     []error // from the last snapshot
	threads     threads
}

// program is a program that a target runs.
type program struct {
	*waiting.Program

	resource profile.Resource
	// attributes are those of resource, for the filters.
	attributes []*commonpb.KeyValue
	service    string
	// described, tops and key are used only by the method snapshot.
	described map[string]*stack
	tops      map[string]*symbols.Location
	key       []byte // scratch space
}

func newProgram(p *waiting.Program) *program {
	n := &program{Program: p, service: p.Service(), described: map[string]*stack{}, tops: map[string]*symbols.Location{}}
	attributes := p.Attributes
	if n.service == "" {
		n.service = "unknown_service"
		attributes = append(slices.Clip(attributes), profile.StringAttribute(string(semconv.ServiceNameKey), n.service))
	}
	n.attributes = attributes
	n.resource, _ = profile.NewResource(attributes, p.SchemaURL)
	return n
}

// Recorder records processes. Its methods must not be called concurrently.
type Recorder struct {
	Config

	targets []*target // the processes of PIDs

	start time.Time // of the recording

	mu      sync.Mutex // guards the rest
	builder *profile.Builder
	begun   time.Time // start of the current part
	// delivered is closed when Part has returned for the part before the current one.
	delivered chan struct{}

	recorded map[int]bool // the processes that are being recorded
	admitted int          // the number of processes recorded so far
	ended    int
	// goroutines counts the goroutines in all snapshots of all periods.
	goroutines uint64
	// The fields below belong to the current period.
	result Result
	tally  *tally.Tally[Times]
	waits  map[waitKey]*FunctionTime
	met    map[nameKey]uint64 // snapshots by span name
	late   time.Duration
}

// Open prepares a recording: it opens the processes of PIDs and reads their symbols. Record or Close releases
// them. The error is about a process that cannot be read: see [waiting.Open] and [waiting.Process.Snapshot].
func Open(ctx context.Context, c Config) (*Recorder, error) {
	raisePriority()
	r := &Recorder{Config: c, recorded: map[int]bool{}, delivered: make(chan struct{})}
	close(r.delivered)
	r.newPeriod(time.Now())
	r.newPart()
	for _, pid := range c.PIDs {
		t, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (*target, error) { return open(ctx, pid, nil) })
		if err != nil {
			r.Close(ctx)
			return nil, process.NewError(pid, err)
		}
		r.targets = append(r.targets, t)
	}
	return r, nil
}

// Close releases the processes, if Record has not done so.
func (r *Recorder) Close(ctx context.Context) {
	for _, t := range r.targets {
		t.close(ctx)
	}
	r.targets = nil
}

func (t *target) close(ctx context.Context) {
	_, _ = timelimit.Call(context.WithoutCancel(ctx), t.pid, timelimit.Limit, func() (struct{}, error) { return struct{}{}, t.process.Close() })
}

// Record records until the duration has passed, ctx is done or, without Select, all processes have ended; none
// of these is an error. The error is about a process of PIDs that cannot be read for the first snapshot.
func (r *Recorder) Record(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.start = time.Now()
	r.newPeriod(r.start)
	r.newPart()
	var recording sync.WaitGroup
	for _, t := range r.targets {
		r.admit(t)
	}
	for _, t := range r.targets {
		recording.Go(func() {
			if err := r.record(ctx, t); err != nil {
				cancel(&failure{err})
			}
		})
	}
	r.targets = nil
	if r.Select != nil {
		recording.Go(func() { r.find(ctx, &recording) })
	}
	recording.Wait()
	failed, ok := errors.AsType[*failure](context.Cause(ctx))
	r.mu.Lock()
	var result *Result
	if !ok {
		result = r.endPeriod()
		result.Ended = r.Select == nil && r.ended == r.admitted
	}
	delivered := r.delivered
	r.mu.Unlock()
	<-delivered
	if ok {
		return nil, failed.error
	}
	return result, nil
}

// EndPeriod passes the profile of the time since the last call to Part, and returns the result for that time. The
// recording continues. Record must have been called, and returns the result since the last call.
func (r *Recorder) EndPeriod() *Result {
	r.mu.Lock()
	result := r.endPeriod()
	r.newPeriod(result.End)
	delivered := r.delivered
	r.mu.Unlock()
	<-delivered
	return result
}

func (r *Recorder) newPeriod(start time.Time) {
	r.result = Result{Start: start, Recorded: len(r.recorded), FilteredAttributes: filter.Dropped{}}
	r.tally, r.late = tally.New[Times](r.Attributes), 0
	r.waits, r.met = map[waitKey]*FunctionTime{}, map[nameKey]uint64{}
}

// failure is an error that ends the recording.
type failure struct{ error }

// open opens a process and takes a first snapshot, which is not counted, to load the symbols. It returns
// nil if selected is not nil and does not select the process.
func open(ctx context.Context, pid int, selected func(pid int, service string) bool) (*target, error) {
	p, err := waiting.Open(pid)
	if err != nil {
		return nil, err
	}
	running, err := p.Program(ctx)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if selected != nil && !selected(pid, running.Service()) {
		return nil, p.Close()
	}
	t := &target{pid: pid, process: p, program: newProgram(running), probability: 1, threads: threads{pid, map[int]*thread{}}}
	if _, err = p.Snapshot(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return t, nil
}

// find searches for processes that Select selects, and records them, until the recording ends.
func (r *Recorder) find(ctx context.Context, recording *sync.WaitGroup) {
	if r.Duration > 0 {
		var cancel func()
		ctx, cancel = context.WithDeadline(ctx, r.start.Add(r.Duration))
		defer cancel()
	}
	search := time.NewTicker(findInterval)
	defer search.Stop()
	for {
		var opening sync.WaitGroup
		slots := make(chan struct{}, maxOpening)
		for pid, err := range procfs.Host().PIDs() {
			if err != nil || ctx.Err() != nil {
				break
			}
			r.mu.Lock()
			known := r.recorded[pid]
			r.mu.Unlock()
			if known {
				continue
			}
			slots <- struct{}{}
			opening.Go(func() {
				defer func() { <-slots }()
				t, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (*target, error) { return open(ctx, pid, r.Select) })
				switch {
				case err != nil || t == nil:
				case r.admit(t):
					recording.Go(func() { _ = r.record(ctx, t) })
				default:
					t.close(ctx)
				}
			})
		}
		opening.Wait()
		select {
		case <-ctx.Done():
			return
		case <-search.C:
		}
	}
}

// admit registers a process as recorded, and returns true. It returns false if too many processes are being
// recorded.
func (r *Recorder) admit(t *target) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.recorded) >= len(r.PIDs)+maxProcesses {
		r.miss(errTooManyProcesses)
		return false
	}
	r.recorded[t.pid] = true
	r.result.Recorded++
	r.admitted++
	t.last = time.Now()
	return true
}

var errTooManyProcesses = fmt.Errorf("further processes: %d are being recorded", maxProcesses)

// miss adds a reason why data is missing. The caller must hold r.mu.
func (r *Recorder) miss(err error) {
	known := slices.ContainsFunc(r.result.Missing, func(m error) bool { return m.Error() == err.Error() })
	if !known && len(r.result.Missing) < maxMissing {
		r.result.Missing = append(r.result.Missing, err)
	}
}

// record takes snapshots of a process until the recording or the process ends. The last snapshot covers the
// rest of the time. An error is returned only if the first snapshot fails.
func (r *Recorder) record(ctx context.Context, t *target) error {
	defer func() {
		if ctx.Err() == nil { // Otherwise t.snapshot may still be running, and this program is about to end.
			t.close(ctx)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.recorded, t.pid)
		for _, m := range t.missing {
			r.miss(m)
		}
	}()
	period := time.Second / time.Duration(r.Frequency)
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	var gone time.Time // when the process was first found to be gone
	for {
		due = due.Add(time.Duration(float64(period) * (0.5 + rand.Float64()))) //nolint:gosec // G404: chance, not secrecy
		end := r.start.Add(r.Duration)
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
		now := time.Now()
		snapshot, err := timelimit.Call(ctx, t.pid, timelimit.Limit, func() (*described, error) { return t.snapshot(ctx) })
		switch {
		case errors.Is(err, reader.ErrProcessGone) && gone.IsZero():
			gone = now
		case errors.Is(err, reader.ErrProcessGone) && now.Sub(gone) < process.MaxExec:
		case errors.Is(err, reader.ErrProcessGone):
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ended++
			return nil
		case err == nil && snapshot.program != t.program && r.Select != nil && !r.Select(t.pid, snapshot.program.service):
			return nil // The process now runs a program that is not selected.
		case err == nil:
			r.add(t, snapshot, now, max(now.Sub(due), 0))
		case t.snapshots == 0 && !errors.Is(err, reader.ErrBusy) && !errors.Is(err, reader.ErrNoThreadContext) && ctx.Err() == nil:
			return err
		default: // The next snapshot counts for this time, too. A program that was executed may not have published yet.
			r.skip(1)
		}
		if last {
			return nil
		}
		if !errors.Is(err, reader.ErrProcessGone) {
			gone = time.Time{}
		}
		if now := time.Now(); now.After(due.Add(period)) {
			r.skip(uint64(now.Sub(due) / period))
			due = now
		}
	}
}

// skip counts snapshots that are not taken.
func (r *Recorder) skip(snapshots uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Skipped += snapshots
}

// described is a snapshot with the descriptions of its goroutines' stacks.
type described struct {
	*waiting.Snapshot

	program *program
	stacks  []*stack
}

// snapshot takes a snapshot of the process. The process may block it.
func (t *target) snapshot(ctx context.Context) (*described, error) {
	snapshot, err := t.process.Sample(ctx, waiting.Options{Stacks: true, Probability: t.probability, Examined: maxExamined})
	if err != nil {
		return nil, err
	}
	d := &described{snapshot, t.program, make([]*stack, len(snapshot.Goroutines))}
	if snapshot.Program != t.program.Program {
		d.program = newProgram(snapshot.Program)
	}
	t.threads.update(snapshot)
	for i := range snapshot.Goroutines {
		switch g := &snapshot.Goroutines[i]; {
		case g.Elsewhere: // The state and the stack are those of later work.
			d.stacks[i] = d.program.describe(&waiting.Goroutine{In: g.In})
		case g.In >= 0:
			d.stacks[i] = d.program.describe(g)
		}
	}
	return d, nil
}

// add attributes the time since the previous snapshot to the spans and states of the goroutines in this one. late
// is the delay of the snapshot.
func (r *Recorder) add(t *target, snapshot *described, now time.Time, late time.Duration) {
	elapsed := now.Sub(t.last)
	replaced := snapshot.program != t.program
	t.program, t.last, t.missing = snapshot.program, now, snapshot.Missing
	t.snapshots++
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Snapshots++
	r.late += late
	r.result.Latest = max(r.result.Latest, late)
	if length := now.Sub(r.begun); length > partTime {
		if length > maxPartTime {
			<-r.delivered
		}
		select {
		case <-r.delivered:
			r.endPart()
		default: // The previous part is still being written, so this one continues.
		}
	}
	r.result.Torn, r.result.Lost = r.result.Torn+uint64(snapshot.Torn), r.result.Lost+uint64(snapshot.Lost)
	r.result.Goroutines += uint64(len(snapshot.Goroutines))
	r.goroutines += uint64(len(snapshot.Goroutines))
	var expected float64
	for i := range snapshot.Goroutines {
		weight := snapshot.Goroutines[i].Weight
		expected += weight
		r.result.Sampled = r.result.Sampled || weight > 1
	}
	t.probability = min(1, maxGoroutines/max(expected, 1))
	if replaced {
		return // It is unknown how long the process has been running this program.
	}
	met := map[nameKey]bool{}
	for i := range snapshot.Goroutines {
		g := &snapshot.Goroutines[i]
		if g.In < 0 {
			continue
		}
		s := &snapshot.Spans[g.In]
		if g.State == reader.GoroutineGone && !g.Elsewhere {
			continue // The span is live, but the goroutine that started it is not in it.
		}
		known := snapshot.stacks[i]
		var attributes []*commonpb.KeyValue
		if r.Part != nil || len(r.Filters) > 0 {
			attributes = attributesOf(g, s, known)
		}
		if ids := (filter.IDs{TraceID: s.TraceID, SpanID: s.SpanID}); !r.Filters.Pass(ids, attributes, t.program.attributes) {
			if r.result.Filtered++; r.tally.Total.Seen == 0 {
				r.result.FilteredAttributes.Add(r.Filters, ids, attributes, t.program.attributes)
			}
			continue
		}
		weighted := time.Duration(float64(elapsed) * g.Weight)
		r.tally.Add(sampleOf(t, g, s), newTimes(known.state, known.kind, weighted, t.threads.queued(g)))
		if name := (nameKey{t.program.service, s.Endpoint, s.Name}); len(r.met) < maxWaits {
			met[name] = true
		}
		if known.kind != "" {
			r.wait(waitKey{t.program.service, known.function, known.kind}).Time += weighted
		}
		if r.Part != nil {
			r.builder.AddTime(t.program.resource, known.locations, s.TraceID, s.SpanID, attributes, weighted)
		}
	}
	for name := range met {
		r.met[name]++
	}
	if r.Progress != nil {
		r.Progress(time.Since(r.start), r.goroutines)
	}
}

// stack describes goroutines with equal stacks.
type stack struct {
	state          reader.GoroutineState
	kind, function string
	// locations is the symbolized stack. A single frame with the state or the kind of wait replaces the
	// innermost runtime functions.
	locations []*symbols.Location
}

// maxStacks bounds the cached stacks of a process.
const maxStacks = 1 << 14

// describe returns the description of a goroutine's stack, from the cache if possible.
func (p *program) describe(g *waiting.Goroutine) *stack {
	p.key = append(append(p.key[:0], byte(g.State)), g.WaitReason...)
	for _, pc := range g.Stack {
		p.key = binary.NativeEndian.AppendUint64(p.key, pc)
	}
	known, ok := p.described[string(p.key)]
	if ok {
		return known
	}
	frames := p.Frames(g)
	known = &stack{state: g.State, kind: waiting.Kind(g, frames), function: "(unknown)"}
	if i := p.User(frames); i >= 0 {
		known.function = frames[i].Function
	}
	known.locations = p.locations(g, known.kind)
	if len(p.described) >= maxStacks {
		clear(p.described)
	}
	p.described[string(p.key)] = known
	return known
}

func (p *program) locations(g *waiting.Goroutine, kind string) []*symbols.Location {
	name := "[" + g.State.String() + "]"
	if g.State == reader.GoroutineWaiting {
		name = "[waiting: " + kind + "]"
	} else if kind != "" {
		name = "[" + kind + "]"
	}
	top, ok := p.tops[name]
	if !ok {
		top = &symbols.Location{Lines: []symbols.Line{{Function: name}}}
		p.tops[name] = top
	}
	stack := p.Locations(g)
	for len(stack) > 1 && len(stack[0].Lines) > 0 && inRuntime(stack[0].Lines) {
		stack = stack[1:]
	}
	return append([]*symbols.Location{top}, stack...)
}

// sampleOf describes a goroutine in a span for the tally.
func sampleOf(t *target, g *waiting.Goroutine, s *waiting.Span) *tally.Sample {
	attributes := g.Attributes
	for _, a := range [...]reader.Attribute{{Key: wire.NameKey, Value: s.Name}, {Key: wire.EndpointKey, Value: s.Endpoint}} {
		if a.Value != "" {
			attributes = append(slices.Clip(attributes), a)
		}
	}
	return &tally.Sample{
		PID: t.pid, Service: t.program.service, Attributes: attributes,
		Span: &tally.Span{TraceID: s.TraceID, SpanID: s.SpanID, LocalRootSpanID: s.LocalRootSpanID, Proven: true},
	}
}

// attributesOf returns the attributes of a goroutine's samples in a span: those published with the span, and what is
// known of the goroutine.
func attributesOf(g *waiting.Goroutine, s *waiting.Span, known *stack) []*commonpb.KeyValue {
	var attributes []*commonpb.KeyValue
	for _, a := range g.Attributes {
		attributes = append(attributes, profile.StringAttribute(a.Key, a.Value))
	}
	attributes = append(attributes, profile.StringAttribute("otelctx.goroutine.state", known.state.String()))
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

// wait returns the entry of a wait. Beyond maxWaits, it is the entry named others.
func (r *Recorder) wait(key waitKey) *FunctionTime {
	known := r.waits[key]
	if known == nil && len(r.waits) >= maxWaits {
		key = waitKey{others, others, others}
		known = r.waits[key]
	}
	if known == nil {
		known = &FunctionTime{Service: key.service, Function: key.function, Kind: key.kind}
		r.waits[key] = known
	}
	return known
}

func (r *Recorder) newPart() {
	r.begun = time.Now()
	r.builder = profile.New(profile.Options{Start: r.begun, Frequency: r.Frequency, Version: r.Version, Wall: true})
}

// endPart begins a new part, and passes the previous one to Part without waiting. The caller must hold r.mu.
func (r *Recorder) endPart() {
	builder := r.builder
	r.newPart()
	if r.Part == nil {
		return
	}
	data, previous, delivered := builder.Data(r.begun), r.delivered, make(chan struct{})
	r.delivered = delivered
	go func() {
		<-previous
		r.Part(data)
		close(delivered)
	}()
}

// endPeriod ends the current part, and returns the result of the period. The caller must hold r.mu.
func (r *Recorder) endPeriod() *Result {
	r.endPart()
	result := r.result
	result.End = time.Now()
	if result.Snapshots > 0 {
		result.Late = r.late / time.Duration(result.Snapshots)
		result.Overloaded = result.Late > time.Second/time.Duration(10*r.Frequency)
	}
	result.Rows = r.tally.Rows()
	for i := range result.SpanNames {
		n := &result.SpanNames[i]
		n.Amount.Snapshots = r.met[nameKey{n.Service, n.Endpoint, n.Name}]
	}
	for _, f := range r.waits {
		result.Waits = append(result.Waits, *f)
	}
	slices.SortFunc(result.Waits, func(a, b FunctionTime) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), strings.Compare(a.Service+a.Function+a.Kind, b.Service+b.Function+b.Kind))
	})
	return &result
}
