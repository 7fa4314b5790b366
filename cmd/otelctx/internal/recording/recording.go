// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// Config says what to record.
type Config struct {
	Selection

	// Ready, if not nil, is called when the processes of PIDs are recorded: what they do from
	// now on is sampled. An error ends the recording.
	Ready func() error
	// Duration is how long to record, 0 until the processes of PIDs, or the context, end.
	Duration time.Duration
	// Period, if not 0, is after how long Report is called with what was recorded since the
	// last time. The recording goes on meanwhile, and no sample is missing in between. Report
	// is called behind Part, by the same goroutine.
	Period  time.Duration
	Report  func(*Result)
	Sampler sampler.Config
	// Filters leave out the samples that do not pass all of them.
	Filters []Filter
	// Unnamed leaves functions without names: profiles have addresses and build ids, and no
	// symbols are read.
	Unnamed bool
	// IDAttributes has samples have the ids of their spans, traces and local roots as
	// attributes too.
	IDAttributes bool
	// Attributes has the attributes of spans counted.
	Attributes bool
	// Version is that of who records.
	Version string
	// Progress, if not nil, is called about four times in a second by one goroutine. It
	// gets how long the recording has gone on and how many samples there are.
	Progress func(elapsed time.Duration, samples uint64)
	// Warn, if not nil, is called with what could not be done and does not end the
	// recording. One goroutine at a time calls it, and not for the same process and
	// reason again.
	Warn func(error)
	// Part, if not nil, is called with the profiles of about half a minute each, one part
	// behind the other. One goroutine at a time calls it. What it takes too long for is
	// lost.
	Part func(*profilespb.ProfilesData)
}

// Result is a recording.
type Result struct {
	// Start and End are when the first and the last samples could be taken.
	Start, End time.Time
	// Samples is how many there are. In Attributed of them a span is known, which in
	// Unproven of those may be another one. Lost is how many were taken and not read in
	// time. Replaced is how many were not taken because their process already ran another
	// program, which was not looked at yet.
	Samples, Attributed, Unproven, Lost, Replaced uint64
	// Cut is how many samples have only the innermost frame of their stack, and no attributes:
	// their process had too many different ones. SpansLeftOut is how many spans are missing in Spans,
	// at most: those with the fewest samples are left out where there are too many. Dropped is how
	// many attributes were left out, since profiles cannot have them.
	Cut, SpansLeftOut, Dropped uint64
	// Truncated is how many samples lack the outermost frames of their stack, those of Cut
	// included.
	Truncated uint64
	// Unnamed is how many samples lack names because looking them up took too much time or memory, or
	// because the kernel's records of what their process mapped were lost.
	Unnamed uint64
	// Filtered is how many samples did not pass Config.Filters. They are counted nowhere else,
	// unless they are Lost or Cut.
	Filtered uint64
	// Work says what the samples were taken of, in the order of the constants.
	Work []WorkUse
	// The rest is what was sampled, what used the processor most first; of functions what
	// used most itself. Names and Endpoints are nil if there is not a single name.
	// Attributes is nil without Config.Attributes.
	Processes  []ProcessUse
	Functions  []FunctionUse
	Endpoints  []NameUse
	Names      []NameUse
	Spans      []SpanUse
	Traces     []TraceUse
	Attributes []AttributeUse
	// Recorded is how many processes were recorded, whether or not they used the CPU.
	Recorded int
	// Unread says why processes that may be selected could not be read. Errors that Warn was called
	// with are not among them.
	Unread []error
	// FilteredAttributes are attributes of the samples that Config.Filters left out, as long as
	// no sample passed: all keys, with values only for the keys of the filters. Both are bounded.
	FilteredAttributes map[string][]string
	// NotExamined is how many processes, which may be selected, nobody has looked at before the recording
	// ended: there were too many.
	NotExamined int
	// Ended says that all processes of Config.PIDs have ended, unless there are Children.
	Ended bool
}

// Intervals of the recording.
const (
	// pollInterval is how long it takes until it is noticed that processes come, and
	// publish anew.
	pollInterval = time.Second
	// tickInterval is how long it takes until the end of the only process is noticed, and
	// how often progress is shown.
	tickInterval = 250 * time.Millisecond
	// firstPollInterval is when a program is looked at again that has just started, and its
	// children with it. Further looks follow in twice the time each, up to tickInterval.
	firstPollInterval = 20 * time.Millisecond
)

// Record records until the duration is over, ctx is done or the processes of PIDs have ended,
// which are no errors.
//
// The error wraps [sampler.ErrNotPermitted], or for Config.PIDs one of those of
// [reader.Open] and [reader.Process.ThreadLayout] other than that there is no context,
// or is what failed.
func Record(ctx context.Context, c Config) (*Result, error) {
	r := &recording{config: &c, clock: time.Now(), parts: make(chan *part), stopped: make(chan time.Time, 1), warnings: newWarnings(c.Warn)}
	if c.Sampler.KernelStacks {
		open, what := symbols.OpenKernel, "names of the kernel's functions"
		if c.Unnamed {
			open, what = symbols.OpenUnnamedKernel, "where the kernel's code is"
		}
		var err error
		if r.kernel, err = open(); err != nil {
			// Samples must not show addresses of the kernel to a user who may not know
			// them.
			c.Sampler.KernelStacks = !errors.Is(err, fs.ErrPermission)
			r.warnings.say(0, fmt.Errorf("%s: %w", what, err))
		}
	}
	var err error
	if r.watcher, err = newWatcher(&c, r.warnings); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

type recording struct {
	config   *Config
	watcher  *watcher
	warnings *warnings
	kernel   *symbols.Kernel
	// clock is a moment by which now counts.
	clock time.Time
	// stopped gets when the last samples were taken.
	stopped chan time.Time
	samples atomic.Uint64
	// parts has those that are to be named.
	parts chan *part
	part  *part
	// period is when the period ends; what is sampled from then on is of the next one.
	period time.Time
	// unknown counts samples of programs that are recorded no longer.
	unknown atomic.Uint64
	// reported is when the last period that was reported has ended, and missing which samples were
	// missing by then.
	reported time.Time
	missing  sampler.Counts
}

// run records the processes that there are and will be.
func (r *recording) run(ctx context.Context) (*Result, error) {
	// If ctx ends before the first sample, the recording is empty, which is no error. So
	// looking at processes has a context of its own.
	looking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer r.watcher.close()
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	wait := firstLooks
	if r.config.Duration > 0 {
		wait = min(wait, r.config.Duration)
	}
	if err := r.watcher.start(looking, wait); err != nil && ctx.Err() == nil {
		return nil, err
	}
	began := r.now()
	if first := r.watcher.began.Load(); first != nil && r.config.Ready == nil {
		began = r.clock.Add(first.Sub(r.clock)) // on the same clock, also if that was set meanwhile
	}
	if r.config.Ready != nil {
		if err := r.config.Ready(); err != nil {
			return nil, err
		}
		began = r.now()
	}
	r.startPeriod(began)
	if r.config.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, began.Add(r.config.Duration))
		defer cancel()
	}
	n := &nameResolver{config: r.config, kernel: r.kernel, tally: newTally(r.config.Attributes)}
	var working sync.WaitGroup
	ended := false
	working.Go(func() { ended = r.supervise(ctx, looking, began) })
	working.Go(func() { r.watcher.notice(looking) })
	working.Go(func() {
		for p := range r.parts {
			n.name(context.WithoutCancel(ctx), p)
			if p.closes {
				r.config.Report(r.result(n, p.end))
			}
		}
	})
	// What was sampled before the end is read after it.
	err := r.read() //nolint:contextcheck // Reading names ends by itself.
	cancel()
	// Reading may end long after sampling, on a busy machine.
	r.part.until(<-r.stopped)
	end := r.part.end
	r.parts <- r.part
	close(r.parts)
	working.Wait()
	if err != nil {
		return nil, err
	}
	notExamined := r.watcher.notExamined()
	result := r.result(n, end)
	result.Ended, result.NotExamined = ended, notExamined
	return result, nil
}

// now returns the time. As the times of samples do, it goes on evenly when the wall clock is set.
func (r *recording) now() time.Time { return r.clock.Add(time.Since(r.clock)) }

// result returns what has been counted since the last one, and begins to count anew.
func (r *recording) result(n *nameResolver, end time.Time) *Result {
	counts := r.watcher.sampler.Counts()
	counts.Lost += r.unknown.Load()
	result := &Result{
		Start: r.reported, End: end, Recorded: r.watcher.registry.recorded(), Unread: r.watcher.registry.unread(),
		Lost: counts.Lost - r.missing.Lost, Replaced: counts.Replaced - r.missing.Replaced,
	}
	n.tally.report(result)
	n.tally = newTally(r.config.Attributes)
	r.reported, r.missing = end, counts
	return result
}

// read reads samples until there are no more. It waits for nothing else.
func (r *recording) read() error {
	var s sampler.Sample
	for {
		asked := r.now()
		switch err := r.watcher.sampler.Read(&s); {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, sampler.ErrNoSample):
			r.rotate(asked)
		case err != nil:
			return err
		default:
			r.rotate(s.Time)
			if t := r.watcher.registry.find(s.Image); t != nil {
				r.add(t, &s)
			} else {
				r.unknown.Add(1)
			}
		}
	}
}

// startPeriod begins the first part, and the first period.
func (r *recording) startPeriod(now time.Time) {
	r.part = newPart(now, r.config.IDAttributes)
	r.period = now.Add(r.config.Period)
	r.reported = now
}

// rotate has the part named if it is to end, and begins the next one. Samples from before now
// have been read, but for those that other processors are just handing over.
func (r *recording) rotate(now time.Time) {
	p := r.part
	p.closes = r.config.Period > 0 && !now.Before(r.period)
	if !p.closes && !p.full(now) {
		return
	}
	p.until(now)
	select {
	case r.parts <- p:
		r.part = newPart(p.end, r.config.IDAttributes)
		r.part.earliest = p.end
		for p.closes && !now.Before(r.period) {
			r.period = r.period.Add(r.config.Period)
		}
	default: // The one before is still being named, so that this one goes on.
	}
}

// add adds a sample to the part that is being recorded.
func (r *recording) add(t *target, s *sampler.Sample) {
	t.seen.Store(true)
	if names := t.published.Load().spanNames; !names.knows(&s.Span) {
		names.want(&r.watcher.working, t)
	}
	if stack, first := r.part.add(t, s); first {
		// Files are opened while the process is there to say which.
		for i := range stack.user {
			if f := stack.frame(i); f.region != nil {
				r.watcher.attacher.want(f.region)
			}
		}
	}
	r.samples.Add(1)
}

// supervise looks after the processes, and ends the sampling when there is a reason to. It
// reports whether that was the process's end.
func (r *recording) supervise(ctx, looking context.Context, began time.Time) (ended bool) {
	defer func() {
		r.stopped <- r.now()
		if err := r.watcher.sampler.Stop(); err != nil {
			r.warnings.say(0, err)
		}
	}()
	interval := pollInterval
	if r.config.Children {
		interval = firstPollInterval
	}
	poll := time.NewTicker(interval)
	defer poll.Stop()
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	if !r.config.exact() && r.config.Progress == nil {
		tick.Stop() // Each tick would wake threads for nothing.
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-looking.Done():
			return false
		case <-r.watcher.exits:
			if r.watcher.hasEnded() {
				return true
			}
		case <-poll.C:
			r.watcher.poll(looking)
			if interval < tickInterval {
				interval = min(2*interval, tickInterval)
				poll.Reset(interval)
			}
		case <-tick.C:
			if r.config.Progress != nil {
				r.config.Progress(r.now().Sub(began), r.samples.Load())
			}
			if r.watcher.hasEnded() {
				return true
			}
		}
	}
}
