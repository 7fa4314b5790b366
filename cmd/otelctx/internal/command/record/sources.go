// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/version"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// results holds the results of the sources. The result of a source that is not in the plan is nil. sampled is the result of
// the sampler: CPU time, allocations, or both.
type results struct {
	sampled *recording.Result
	wall    *wall.Result
}

// measure runs the sources of the plan until ctx is done or the recording ends.
func (s *session) measure(ctx context.Context, out *outputs, selection recording.Selection, ready func() error) (*results, error) {
	if s.wall == nil {
		sampled, err := s.sample(ctx, out, selection, nil, ready)
		return &results{sampled: sampled}, err
	}
	const less = 400 // Snapshots leave much garbage. Collecting it less often costs little memory.
	debug.SetGCPercent(less)
	recorder, err := s.openWall(ctx, out, selection)
	if err != nil {
		return nil, err
	}
	if s.cpu == nil {
		return s.recordWall(ctx, out, recorder)
	}
	return s.measureBoth(ctx, out, selection, recorder)
}

// untilEnd returns the duration of the whole recording, or 0 if it is unknown.
func (s *session) untilEnd() time.Duration {
	if s.repeat {
		return 0
	}
	return s.duration
}

// sampler returns how to sample, and whether functions stay without names.
func (p *plan) sampler() (config sampler.Config, unnamed bool) {
	if p.alloc != nil {
		config.Allocations, config.Live = true, p.alloc.live
		config.Carrier, unnamed = p.alloc.carrier, p.alloc.unnamed
	}
	if p.cpu != nil {
		config.Frequency, config.KernelStacks = p.cpu.frequency, p.cpu.kernel
		config.Carrier, unnamed = p.cpu.carrier, p.cpu.unnamed
	}
	return config, unnamed
}

// sample samples CPU time, allocations or both. It calls ready, if it is not nil, once sampling has started. At the end of each period it
// also ends that of recorder, if there is one.
func (s *session) sample(
	ctx context.Context, out *outputs, selection recording.Selection, recorder *wall.Recorder, ready func() error,
) (*recording.Result, error) {
	how, unnamed := s.sampler()
	config := recording.Config{
		Selection: selection, Ready: ready,
		Profile:  out.add,
		Duration: s.untilEnd(), Version: version.Module(),
		Filters: s.filters,
		Unnamed: unnamed, IDAttributes: s.profile.ids,
		Attributes: s.report.Group.Kind == report.GroupAttribute,
		Sampler:    how,
		Warn: func(err error) {
			s.progress.clear()
			s.streams.Complainf("%v", err)
		},
	}
	if s.repeat {
		config.Period = s.duration
		config.Report = func(r *recording.Result) {
			both := &results{sampled: r}
			if recorder != nil {
				both.wall = recorder.EndPeriod()
			}
			s.endPeriod(out, both, r.End)
		}
	}
	if s.progress != nil {
		config.Progress = s.progress.show
	}
	return recording.Record(ctx, config)
}

// endPeriod writes the file and prints the results of a period.
func (s *session) endPeriod(out *outputs, r *results, end time.Time) {
	s.count(r)
	written := out.roll(end)
	s.progress.clear()
	d := out.delivery()
	out.complain(d)
	if err := s.show(r, d); err != nil {
		s.streams.Complainf("%v", err)
	}
	s.showWritten(written)
}

// count adds the results of a period to those of the session.
func (s *session) count(r *results) {
	if r.sampled != nil {
		s.samples += r.sampled.All()
		if live := r.sampled.Live; live != nil {
			s.collections = max(s.collections, live.Collections)
		}
	}
	if r.wall != nil {
		s.processes = max(s.processes, r.wall.Recorded)
		s.seen += len(r.wall.SpanNames)
	}
}

// recordWall records wall-clock time alone.
func (s *session) recordWall(ctx context.Context, out *outputs, recorder *wall.Recorder) (*results, error) {
	stop := make(chan struct{})
	var reporting sync.WaitGroup
	if s.repeat {
		reporting.Go(func() {
			period := time.NewTicker(s.duration)
			defer period.Stop()
			for {
				select {
				case <-stop:
					return
				case <-period.C:
					r := recorder.EndPeriod()
					s.endPeriod(out, &results{wall: r}, r.End)
				}
			}
		})
	}
	result, err := recorder.Record(ctx)
	close(stop)
	reporting.Wait()
	return &results{wall: result}, err
}

// openWall prepares a recording of wall-clock time.
func (s *session) openWall(ctx context.Context, out *outputs, selection recording.Selection) (*wall.Recorder, error) {
	config := wall.Config{
		PIDs: s.targets.pids, Frequency: s.wall.frequency, Duration: s.untilEnd(), Version: version.Module(),
		Filters: s.filters, Attributes: s.report.Group.Kind == report.GroupAttribute,
	}
	if len(s.targets.pids) == 0 {
		config.Select = selection.SelectsPublisher
	}
	if s.profile.path != "" || s.profile.endpoint != nil {
		config.Profile = out.add
	}
	if s.progress != nil && s.cpu == nil {
		config.Progress = s.progress.show
	}
	return wall.Open(ctx, config)
}

// measureBoth samples CPU time, and records wall-clock time with recorder. Both recordings begin when the sampler is
// ready. measureBoth closes the recorder.
func (s *session) measureBoth(ctx context.Context, out *outputs, selection recording.Selection, recorder *wall.Recorder) (*results, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		r        results
		failed   error
		wallDone sync.WaitGroup
		err      error
	)
	r.sampled, err = s.sample(ctx, out, selection, recorder, func() error {
		wallDone.Go(func() {
			if r.wall, failed = recorder.Record(ctx); failed != nil {
				cancel()
			}
		})
		return nil
	})
	if err != nil {
		cancel()
	}
	wallDone.Wait()
	recorder.Close(ctx) // Needed if the sampler failed to start, because Record was not called.
	if errors.Is(err, sampler.ErrNotPermitted) {
		err = fmt.Errorf("%w; without --cpu, --wall needs only permission to read the processes", err)
	}
	return &r, errors.Join(err, failed)
}
