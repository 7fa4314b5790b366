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

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
)

// Config is the configuration of a recording.
type Config struct {
	Selection

	// Ready, if not nil, is called once all processes of PIDs are being sampled. If it returns an error,
	// Record returns the same error.
	Ready func() error
	// Duration limits the recording; 0 records until the context is done or, without Children, the processes
	// of PIDs end.
	Duration time.Duration
	// Period, if not 0, is the interval at which Report is called with the result for the time since the
	// previous call. The recording continues meanwhile, and no sample is lost between two results. Report is
	// called after Profile, by the same goroutine.
	Period  time.Duration
	Report  func(*Result)
	Sampler sampler.Config
	// Filters lists the conditions that each sample must meet. Samples that fail one of them are dropped.
	Filters filter.Filters
	// Unnamed disables symbolization: profiles contain addresses and build ids, and no symbols are read.
	Unnamed bool
	// IDAttributes also adds the ids of the span, the trace and the local root to each sample as
	// attributes.
	IDAttributes bool
	// Attributes enables Result.Attributes, the number of samples by span attribute.
	Attributes bool
	// Version is the version of the recording program.
	Version string
	// Progress, if not nil, is called about four times a second by one goroutine, with the elapsed time and
	// the number of samples so far.
	Progress func(elapsed time.Duration, samples uint64)
	// Warn, if not nil, is called with errors that do not end the recording, at most once for each process
	// and reason. Calls do not overlap.
	Warn func(error)
	// Profile, if not nil, is called with consecutive profiles of about half a minute each, one for each kind of sample. At
	// the end of each period, a profile of the memory in use follows if Sampler.Live is set. Calls do not overlap. If a call
	// takes so long that the memory for the following batch is full, further samples are lost.
	Profile func(*profilespb.ProfilesData)
}

// Result holds what was measured in a recording or in one of its periods.
type Result struct {
	// Start and End bound the time in which samples could be taken.
	Start, End time.Time
	// Samples counts the samples of CPU time, and Attributed those with a span.
	Samples, Attributed uint64
	// The following counts are of samples of CPU time and of allocations. Unproven counts samples whose span may be wrong.
	Unproven uint64
	// Lost counts samples that were taken, but were not read in time, had no room in memory or belong to
	// programs that are no longer known.
	Lost uint64
	// Replaced counts samples that were not taken because the process already ran another program that had
	// not been scanned yet.
	Replaced uint64
	// Cut counts samples reduced to the innermost frame, without attributes, because their process had too
	// many different samples.
	Cut uint64
	// Truncated counts samples that lack the outermost frames of their stack, including those counted by
	// Cut.
	Truncated uint64
	// Dropped counts attributes that profiles cannot represent.
	Dropped uint64
	// Unnamed counts samples that lack names because symbolization took too much time or memory, or because
	// the kernel's records of the process's mappings were lost.
	Unnamed uint64
	// Hidden counts samples with functions whose names are unknown because their program hides its table of Go
	// functions.
	Hidden uint64
	// Filtered counts samples that did not pass Config.Filters. Lost and Replaced are counted before filtering.
	// All other counts leave these samples out.
	Filtered uint64
	// Work counts the samples of CPU time by kind of work, in the order of the constants.
	Work []WorkUse
	// Rows add up the samples of CPU time. Attributes is nil without Config.Attributes.
	tally.Rows[tally.Count]
	// Allocated is nil unless Config.Sampler samples allocations. Live is nil unless it follows their objects.
	Allocated *Allocated
	Live      *Live

	// Recorded counts the processes that were recorded, whether or not they used the CPU.
	Recorded int
	// Unread holds an error for each process that might have been selected but could not be read, unless the
	// error was passed to Warn.
	Unread []error
	// FilteredAttributes maps the attribute keys of dropped samples to their values, if no sample passed
	// Config.Filters. It has values only for keys that occur in the filters. The numbers of keys and values
	// are bounded.
	FilteredAttributes filter.Dropped
	// NotExamined counts processes that might have been selected, but were not scanned before the recording
	// ended, because there were too many processes.
	NotExamined int
	// Ended reports whether all processes of Config.PIDs have ended or can no longer be recorded. It is
	// always false with Children.
	Ended bool
}

// All returns the number of samples of CPU time and of allocations.
func (r *Result) All() uint64 {
	if r.Allocated == nil {
		return r.Samples
	}
	return r.Samples + r.Allocated.Total.Samples
}

// Intervals of the recording.
const (
	// pollInterval is the interval at which new processes and new publications are detected.
	pollInterval = time.Second
	// tickInterval is the interval at which progress is reported and the end of the processes of
	// Config.PIDs is detected.
	tickInterval = 250 * time.Millisecond
	// firstPollInterval is the first polling interval of a recording with Children, because a program that
	// has just started may soon start others. The interval doubles up to tickInterval.
	firstPollInterval = 20 * time.Millisecond
)

// Record records until the duration has passed, ctx is done or, without Children, the processes of PIDs have
// ended; none of these is an error.
//
// The error wraps [sampler.ErrNotPermitted] if the caller may not sample. If one of Config.PIDs cannot be
// read, the error wraps that of [reader.Open] or [reader.Process.ThreadLayout]; processes without a context
// can be recorded.
func Record(ctx context.Context, c Config) (*Result, error) {
	r := &recording{config: &c, clock: time.Now(), batches: make(chan *batch), stopped: make(chan time.Time, 1), lastRequests: make(chan *requests.Period, 1), warnings: newWarnings(c.Warn)}
	if c.Sampler.Live {
		r.live = newLiveObjects(maxLiveBytes)
	}
	if c.Sampler.KernelStacks {
		what := "names of the kernel's functions"
		if c.Unnamed {
			what = "where the kernel's code is"
		}
		var err error
		if r.kernel, err = symbols.OpenKernel(!c.Unnamed); err != nil {
			// Samples must not disclose kernel addresses to a user who may not read them.
			c.Sampler.KernelStacks = !errors.Is(err, fs.ErrPermission)
			r.warnings.warn(0, fmt.Errorf("%s: %w", what, err))
		}
	}
	var err error
	if r.search, err = newSearch(&c, r.warnings); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

type recording struct {
	config   *Config
	search   *search
	warnings *warnings
	kernel   *symbols.Kernel
	// clock is the time at the start of the recording. The method now adds the time elapsed since then.
	clock time.Time
	// stopped receives the time at which sampling stopped, and lastRequests the requests in the last period.
	stopped      chan time.Time
	lastRequests chan *requests.Period
	// ending is held while a period ends. It guards stopping, which is true once the last period has ended: no other ends
	// after that.
	ending   sync.Mutex
	stopping bool
	samples  atomic.Uint64
	// batches passes finished batches to the goroutine that names them.
	batches chan *batch
	batch   *batch
	// live is nil unless Config.Sampler.Live is set.
	live *liveObjects
	// periodEnd is the end of the current period. Later samples belong to the next period.
	periodEnd time.Time
	// unknown counts samples of programs that are no longer recorded.
	unknown atomic.Uint64
	// reported is the end of the last reported period. lastCounts holds the sampler's counts at that time.
	reported   time.Time
	lastCounts sampler.Counts
}

// run records the existing processes and the processes that start later.
func (r *recording) run(ctx context.Context) (*Result, error) {
	// Scanning has its own context, which ends with ctx but not at the deadline that is set below.
	scanning, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer r.search.close()
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	wait := firstScanWait
	if r.config.Duration > 0 {
		wait = min(wait, r.config.Duration)
	}
	if err := r.search.start(scanning, wait); err != nil && ctx.Err() == nil {
		return nil, err
	}
	began := r.now()
	if first := r.search.began.Load(); first != nil && r.config.Ready == nil {
		began = r.clock.Add(first.Sub(r.clock)) // Convert to the recording's clock, because the wall clock may have been set.
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
	n := &symbolizer{config: r.config, kernel: r.kernel, checkImage: r.search.checkImage, counts: newCounts(r.config)}
	var working sync.WaitGroup
	ended := false
	working.Go(func() { ended = r.supervise(ctx, scanning, began) })
	working.Go(func() { r.search.followChanges(scanning) })
	working.Go(func() {
		for p := range r.batches {
			n.symbolize(context.WithoutCancel(ctx), p)
			if p.closes {
				r.config.Report(r.result(n, p.end, <-p.requests))
			}
		}
	})
	// Read samples until supervise has stopped the sampler.
	err := r.read() //nolint:contextcheck // Reading names has its own limit.
	cancel()
	// The batch ends when sampling stopped. On a busy machine, reading may end much later.
	r.batch.extend(<-r.stopped)
	end := r.batch.end
	r.batch.closes = false // run itself returns the result of the last period.
	if r.live != nil {
		r.batch.live = make(chan *snapshot, 1)
		r.batch.live <- r.live.snapshot(r.search.targets.isRetired)
		r.live.close()
	}
	r.batches <- r.batch
	close(r.batches)
	working.Wait()
	if err != nil {
		return nil, err
	}
	notExamined := r.search.notExamined()
	result := r.result(n, end, <-r.lastRequests)
	result.Ended, result.NotExamined = ended, notExamined
	return result, nil
}

// now returns the time. Like the times of samples, it is not affected when the wall clock is set.
func (r *recording) now() time.Time { return r.clock.Add(time.Since(r.clock)) }

// result returns the counts since its last call, and resets them. served are the requests in this time.
func (r *recording) result(n *symbolizer, end time.Time, served *requests.Period) *Result {
	counts := r.search.sampler.Counts()
	counts.Lost += r.unknown.Load()
	result := &Result{
		Start: r.reported, End: end, Recorded: r.search.targets.recorded(), Unread: r.search.targets.unread(),
		Lost: counts.Lost + counts.Crowded - r.lastCounts.Lost - r.lastCounts.Crowded, Replaced: counts.Replaced - r.lastCounts.Replaced,
	}
	n.counts.report(result)
	if len(r.config.Filters) == 0 { // Otherwise the samples are not those of all requests.
		requests.Set(served, result.Endpoints)
		if result.Allocated != nil {
			requests.Set(served, result.Allocated.Endpoints)
		}
	}
	if reason := r.search.unsampled.Load(); reason != nil && result.Allocated != nil {
		result.Allocated.Reason = *reason
	}
	if result.Live != nil {
		result.Live.LostFrees = counts.FreesLost - r.lastCounts.FreesLost
	}
	n.counts = newCounts(r.config)
	r.reported, r.lastCounts = end, counts
	return result
}

// read reads samples until the sampler is stopped and drained. It waits for nothing except samples.
func (r *recording) read() error {
	var s sampler.Sample
	for {
		asked := r.now()
		switch err := r.search.sampler.Read(&s); {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, sampler.ErrNoSample):
			r.rotate(asked)
		case err != nil:
			return err
		default:
			r.rotate(s.Time)
			t, sample := r.search.targets.find(s.Image), s.Event == sampler.CPUTime || s.Event == sampler.Allocation
			if t != nil && r.live != nil {
				r.live.add(t, &s)
			}
			switch {
			case !sample:
			case t != nil:
				r.add(t, &s)
			default:
				r.unknown.Add(1)
			}
		}
	}
}

// startPeriod begins the first batch and the first period.
func (r *recording) startPeriod(now time.Time) {
	r.batch = newBatch(now, r.config.IDAttributes)
	r.periodEnd = now.Add(r.config.Period)
	r.reported = now
}

// rotate ends the current batch if it is full or its period has ended, hands it to the goroutine that names
// it, and begins the next batch. If the previous batch is still being named, the current batch continues.
// Almost all samples from before the given time have been read; other CPUs may still be handing over a few.
func (r *recording) rotate(now time.Time) {
	p := r.batch
	// The last period ends with the recording: its requests are counted before its last samples are read.
	p.closes = r.config.Period > 0 && !now.Before(r.periodEnd)
	if p.closes {
		r.ending.Lock()
		defer r.ending.Unlock()
		p.closes = !r.stopping
	}
	if !p.closes && !p.full(now) {
		return
	}
	p.extend(now)
	p.live = nil
	if p.closes && r.live != nil {
		p.live = make(chan *snapshot, 1)
	}
	select {
	case r.batches <- p:
		if p.closes {
			r.search.endRequestPeriod(p.requests)
		}
		if p.live != nil {
			p.live <- r.live.snapshot(r.search.targets.isRetired)
		}
		r.batch = newBatch(p.end, r.config.IDAttributes)
		r.batch.earliest = p.end
		if p.closes {
			// The next end after now, without a loop: periods may be short and now late.
			late := now.Sub(r.periodEnd)
			r.periodEnd = now.Add(r.config.Period - late%r.config.Period)
		}
	default: // The previous batch is still being named, so this one continues.
	}
}

func (r *recording) add(t *target, s *sampler.Sample) {
	t.seen.Store(true)
	if names := t.published.Load().spanNames; !names.knows(&s.Span) {
		names.request(&r.search.working, t, func() error { return r.search.checkImage(t.image) })
	}
	if stack, first := r.batch.add(t, s); first {
		// Open the files now, because the process may end at any time.
		for i := range stack.user {
			if f := stack.frame(i); f.region != nil {
				r.search.attacher.request(f.region)
			}
		}
	}
	r.samples.Add(1)
}

// supervise polls the processes and stops the sampling when the duration, the context or the processes end.
// It reports whether the processes have ended.
func (r *recording) supervise(ctx, scanning context.Context, began time.Time) (ended bool) {
	defer func() { //nolint:contextcheck // Reading the counters has its own limit.
		r.ending.Lock()
		r.stopping = true
		r.search.endRequestPeriod(r.lastRequests)
		r.ending.Unlock()
		r.stopped <- r.now()
		if err := r.search.sampler.Stop(); err != nil {
			r.warnings.warn(0, err)
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
		tick.Stop() // Ticks are not needed, and each one would wake threads.
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-scanning.Done():
			return false
		case <-r.search.exits:
			if r.search.hasEnded() {
				return true
			}
		case <-poll.C:
			r.search.poll(scanning)
			if interval < tickInterval {
				interval = min(2*interval, tickInterval)
				poll.Reset(interval)
			}
		case <-tick.C:
			if r.config.Progress != nil {
				r.config.Progress(r.now().Sub(began), r.samples.Load())
			}
			if r.search.hasEnded() {
				return true
			}
		}
	}
}
