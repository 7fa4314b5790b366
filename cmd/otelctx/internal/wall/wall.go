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
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/timelimit"
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
	// Profile, if not nil, is called with profiles of about ten seconds each that have samples. Calls do not overlap.
	Profile func(*profilespb.ProfilesData)
}

const (
	// maxGoroutines is the approximate limit on the goroutines that are read for a snapshot of a process. If the
	// previous snapshot found more, a random part is read.
	maxGoroutines = 512
	// maxExamined is the number of goroutines that are examined for a snapshot to find those that have inherited a
	// span. If there are more, a random part is examined.
	maxExamined = 4096
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
)

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
	requests    requests.Process
}

// Recorder records processes. Its methods must not be called concurrently.
type Recorder struct {
	Config

	targets  []*target // the processes of PIDs
	requests requests.Counter

	start time.Time // of the recording

	mu      sync.Mutex // guards the rest
	builder *profile.Builder
	begun   time.Time // start of the current part
	// delivered is closed when Profile has returned for the part before the current one.
	delivered chan struct{}

	recorded map[int]bool // the processes that are being recorded
	admitted int          // the number of processes recorded so far
	ended    int
	// goroutines counts the goroutines in all snapshots of all periods.
	goroutines uint64
	period     *period // the current one
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
			return nil, processerror.New(pid, err)
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

// EndPeriod passes the profile of the time since the last call to Profile, and returns the result for that time. The
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
	r.period = newPeriod(&r.Config, start, len(r.recorded))
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
	p.CountRequests(&t.requests, nil, t.program.service)
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
		r.period.miss(errTooManyProcesses)
		return false
	}
	r.recorded[t.pid] = true
	r.period.result.Recorded++
	r.admitted++
	t.last = time.Now()
	return true
}

var errTooManyProcesses = fmt.Errorf("further processes: %d are being recorded", maxProcesses)

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
			r.period.miss(m)
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
		snapshot, err := timelimit.Call(ctx, t.pid, timelimit.Limit, func() (*described, error) { return t.snapshot(ctx, &r.requests) })
		switch {
		case errors.Is(err, reader.ErrProcessGone) && gone.IsZero():
			gone = now
		case errors.Is(err, reader.ErrProcessGone) && now.Sub(gone) < processerror.MaxExec:
		case errors.Is(err, reader.ErrProcessGone):
			t.requests.End(&r.requests, t.program.service)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ended++
			return nil
		case err == nil && snapshot.program != t.program && r.Select != nil && !r.Select(t.pid, snapshot.program.service):
			t.requests.End(&r.requests, t.program.service)
			return nil // The process now runs a program that is not selected.
		case err == nil:
			r.add(t, snapshot, now, max(now.Sub(due), 0))
			t.process.Recycle(snapshot.Snapshot)
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
	r.period.result.Skipped += snapshots
}

// described is a snapshot with the descriptions of its goroutines' stacks.
type described struct {
	*waiting.Snapshot

	program *program
	stacks  []*stack
}

// snapshot takes a snapshot of the process, and counts its requests. The process may block it.
func (t *target) snapshot(ctx context.Context, c *requests.Counter) (*described, error) {
	snapshot, err := t.process.Sample(ctx, waiting.Options{Stacks: true, Probability: t.probability, Examined: maxExamined})
	if err != nil {
		return nil, err
	}
	d := &described{snapshot, t.program, make([]*stack, len(snapshot.Goroutines))}
	if snapshot.Program != t.program.Program {
		d.program = newProgram(snapshot.Program)
	}
	t.process.CountRequests(&t.requests, c, d.program.service)
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
	p := r.period
	p.result.Snapshots++
	p.late += late
	p.result.Latest = max(p.result.Latest, late)
	p.result.Torn, p.result.Lost = p.result.Torn+uint64(snapshot.Torn), p.result.Lost+uint64(snapshot.Lost)
	p.result.Goroutines += uint64(len(snapshot.Goroutines))
	r.goroutines += uint64(len(snapshot.Goroutines))
	var expected float64
	for i := range snapshot.Goroutines {
		weight := snapshot.Goroutines[i].Weight
		expected += weight
		p.result.Sampled = p.result.Sampled || weight > 1
	}
	t.probability = min(1, maxGoroutines/max(expected, 1))
	if replaced {
		return // It is unknown how long the process has been running this program.
	}
	for i := range snapshot.Goroutines {
		g := &snapshot.Goroutines[i]
		if g.In < 0 || g.State == reader.GoroutineGone && !g.Elsewhere {
			continue // It is in no span, or has exited without ending the live span that it started.
		}
		d := float64(elapsed) * g.Weight
		p.observe(t, &snapshot.Spans[g.In], snapshot.stacks[i], time.Duration(d), time.Duration(d*t.threads.queued(g)))
		if p.full() {
			r.addUp()
		}
	}
	if r.Progress != nil {
		r.Progress(time.Since(r.start), r.goroutines)
	}
}

// addUp adds what was observed to the period's rows and to the current part. The caller must hold r.mu.
func (r *Recorder) addUp() {
	builder := r.builder
	if r.Profile == nil {
		builder = nil
	}
	r.period.addUp(builder)
}

func (r *Recorder) newPart() {
	r.begun = time.Now()
	r.builder = profile.New(profile.Options{Start: r.begun, Frequency: r.Frequency, Version: r.Version, Wall: true})
}

// endPart begins a new part, and passes the previous one to Profile without waiting. The caller must hold r.mu.
func (r *Recorder) endPart() {
	r.addUp()
	builder := r.builder
	r.newPart()
	if r.Profile == nil || builder.Empty() {
		return
	}
	data, previous, delivered := builder.Data(r.begun), r.delivered, make(chan struct{})
	r.delivered = delivered
	go func() {
		<-previous
		r.Profile(data)
		close(delivered)
	}()
}

// endPeriod ends the current part, and returns the result of the period. The caller must hold r.mu.
func (r *Recorder) endPeriod() *Result {
	r.endPart()
	result := r.period.end()
	if served := r.requests.EndPeriod(); len(r.Filters) == 0 { // Otherwise the times are not those of all requests.
		requests.Set(served, result.Endpoints)
	}
	return result
}
