// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/symbols"
)

// Config says what to record.
type Config struct {
	// PID is the process to record, 0 for every one that publishes a process context,
	// from when it does.
	PID int
	// Duration is how long to record, 0 until the process or the context ends.
	Duration time.Duration
	Sampler  sampler.Config
	// Version is that of who records.
	Version string
	// Progress, if not nil, is called about ten times in a second by one goroutine
	// with how long the recording has gone on and how many samples there are.
	Progress func(elapsed time.Duration, samples uint64)
	// Warn, if not nil, is called with what could not be done without an end to the
	// recording, by one goroutine at a time, not for the same process and reason
	// again.
	Warn func(error)
}

// Result is a recording.
type Result struct {
	// Data are the profiles.
	Data       *profilespb.ProfilesData
	Start, End time.Time
	// Samples is how many there are. In Attributed of them a span is known, which in
	// Unproven of those may be another one. Lost is how many there would be more if
	// they had been read in time.
	Samples, Attributed, Unproven, Lost uint64
	// Processes, Spans and Traces are what was sampled, what used the processor most
	// first.
	Processes []ProcessUse
	Spans     []SpanUse
	Traces    []TraceUse
	// NotPermitted is how many processes could not be examined for lack of permission.
	NotPermitted int
	// Ended says that the process has ended, for Config.PID.
	Ended bool
}

// Intervals of the recording.
const (
	// pollInterval is how long it takes until it is noticed that processes come, and
	// publish anew.
	pollInterval = time.Second
	tickInterval = 100 * time.Millisecond
)

// Record records until the duration is over, ctx is done or the process has ended, which
// are no errors.
//
// The error wraps [sampler.ErrNotPermitted], or for Config.PID one of those of
// [reader.Open] and [reader.Process.ThreadLayout] other than that there is no context,
// or is what failed.
func Record(ctx context.Context, c Config) (*Result, error) {
	r := &recording{config: &c, tally: newTally()}
	if c.Sampler.KernelStacks {
		var err error
		if r.kernel, err = symbols.OpenKernel(); err != nil {
			c.warn(fmt.Errorf("names of the kernel's functions: %w", err))
		}
	}
	var err error
	// An end before the beginning is a recording of nothing.
	if r.targets, err = openTargets(context.WithoutCancel(ctx), &c); err != nil {
		return nil, err
	}
	defer r.targets.close()
	return r.run(ctx)
}

func (c *Config) warn(err error) {
	if c.Warn != nil {
		c.Warn(err)
	}
}

type recording struct {
	config  *Config
	targets *targets
	kernel  *symbols.Kernel
	builder *profile.Builder
	tally   *tally
	start   time.Time
	samples atomic.Uint64
	// ended is set by who supervises, and read when that is over.
	ended bool
}

// run records the processes that there are and will be.
func (r *recording) run(ctx context.Context) (*Result, error) {
	r.start = time.Now()
	r.builder = profile.New(profile.Options{
		Start: r.start, Frequency: r.config.Sampler.Frequency, Version: r.config.Version,
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var supervising sync.WaitGroup
	supervising.Go(func() { r.supervise(ctx) })
	// What was sampled before the end is read after it.
	err := r.read(context.WithoutCancel(ctx))
	cancel()
	supervising.Wait()
	if err != nil {
		return nil, err
	}
	// Of the monotonic clock, as the times of samples are.
	end := r.start.Add(time.Since(r.start))
	result := &Result{
		Data: r.builder.Data(end), Start: r.start, End: end,
		Lost: r.targets.sampler.Lost(), Ended: r.ended,
	}
	r.tally.report(result)
	result.NotPermitted = r.targets.notPermitted
	return result, nil
}

// read reads samples until there are no more.
func (r *recording) read(ctx context.Context) error {
	var s sampler.Sample
	for {
		err := r.targets.sampler.Read(&s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.targets.use(s.PID, func(t *target) { r.add(ctx, t, &s) })
	}
}

// add adds a sample to the profiles.
func (r *recording) add(ctx context.Context, t *target, s *sampler.Sample) {
	stack := make([]*symbols.Location, 0, len(s.Kernel)+len(s.User))
	for i, address := range s.Kernel {
		if i > 0 {
			address-- // of the call, not of where it returns to
		}
		stack = append(stack, r.kernel.Locate(address))
	}
	for i, address := range s.User {
		// Behind the kernel's frames there is the instruction that has called it, or
		// at which it took over.
		stack = append(stack, t.symbols.Locate(address, i == 0))
	}
	shown := t.attributes(ctx, s.Span)
	sample := profile.Sample{Time: s.Time, Stack: stack, Attributes: sampleAttributes(s, shown)}
	if s.Span != nil {
		sample.Link = &profile.Link{TraceID: s.Span.TraceID, SpanID: s.Span.SpanID}
	}
	r.builder.Add(t.resource, sample)
	r.tally.add(t.pid, t.service, s, shown)
	r.samples.Add(1)
}

// supervise looks after the processes, and ends the sampling when there is a reason to.
func (r *recording) supervise(ctx context.Context) {
	defer func() {
		if err := r.targets.sampler.Stop(); err != nil {
			r.config.warn(err)
		}
	}()
	if r.config.Duration > 0 {
		// It ends a look at the processes too.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.config.Duration)
		defer cancel()
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			r.targets.poll(ctx)
		case <-tick.C:
			if r.config.Progress != nil {
				r.config.Progress(time.Since(r.start), r.samples.Load())
			}
			if r.targets.ended() {
				r.ended = true
				return
			}
		}
	}
}
