// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/patient"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/symbols"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// targets are the processes that are recorded. One goroutine at a time changes them,
// while another one may use them.
type targets struct {
	config  *Config
	sampler *sampler.Sampler

	// mu guards all, and what targets have but for their readers.
	mu  sync.Mutex
	all map[int]*target

	// warned is what has been warned of, by the process.
	warned map[int]string
	// notPermitted is how many processes could not be examined at the last look.
	notPermitted int
}

// target is a process that is recorded.
type target struct {
	pid     int
	reader  *reader.Process
	symbols *symbols.Process
	exit    exit
	*published
	// names is the last layout that was looked at for the names of attributes; nil for
	// that of published. There is no look for names before namesAgain.
	names      *reader.ThreadLayout
	namesAgain time.Time

	// goneFor is for how many looks it has been known that the process has ended.
	// What is waiting of its samples may still be read.
	goneFor int
}

// namesLimit is how long a sample, and those behind it, may wait for the names of its
// attributes.
const namesLimit = time.Second

// keepGone is for how many looks processes are kept that have ended.
const keepGone = 3

// openTargets opens the sampler and begins with the processes that there are.
func openTargets(ctx context.Context, c *Config) (_ *targets, err error) {
	ts := &targets{config: c, all: make(map[int]*target), warned: make(map[int]string)}
	var only *reader.Process
	if c.PID != 0 {
		// What is not there needs no permission.
		if only, err = reader.Open(c.PID); err != nil {
			return nil, err
		}
	}
	if ts.sampler, err = sampler.Open(c.Sampler); err != nil {
		if only != nil {
			_ = only.Close()
		}
		return nil, err
	}
	if only == nil {
		ts.poll(ctx)
		return ts, nil
	}
	if err := ts.add(ctx, only); err != nil {
		ts.close()
		return nil, err
	}
	return ts, nil
}

// close releases everything.
func (ts *targets) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.all {
		t.close()
	}
	if err := ts.sampler.Close(); err != nil {
		ts.config.warn(err)
	}
}

func (t *target) close() {
	_ = t.reader.Close()
	_ = t.symbols.Close()
	t.exit.close()
}

// attributes returns the attributes of a sample's span. Processes publish a name before
// they use it: for one that is not known it looks at once whether they have published
// since, and does not wait for the next poll.
func (t *target) attributes(ctx context.Context, s *sampler.Span) []reader.ThreadAttribute {
	if s == nil || t.layout == nil || len(s.Attributes) == 0 {
		return nil
	}
	by := t.layout
	if t.names != nil {
		by = t.names
	}
	shown, all := by.Attributes(s.Attributes)
	if all || by.Context == nil || time.Now().Before(t.namesAgain) {
		return shown
	}
	now, err := patient.Call(ctx, t.pid, namesLimit, func() (*reader.ThreadLayout, error) {
		return t.layoutSince(ctx, by.Context.PublishedAtNS)
	})
	if err != nil {
		// Not for each sample: to find that out may take a while.
		t.namesAgain = time.Now().Add(pollInterval)
		return shown
	}
	if now == nil {
		return shown
	}
	t.names = now
	shown, _ = now.Attributes(s.Attributes)
	return shown
}

// layoutSince returns where the process shows its spans by now, nil if it has published
// nothing since. The thread that publishes may have to wait for a processor meanwhile.
func (t *target) layoutSince(ctx context.Context, publishedAtNS uint64) (*reader.ThreadLayout, error) {
	for until := time.Now().Add(namesLimit); ; {
		if changed, err := t.reader.Changed(publishedAtNS); err != nil || !changed {
			return nil, err
		}
		layout, err := t.reader.ThreadLayout(ctx)
		if !errors.Is(err, reader.ErrBusy) || time.Now().After(until) {
			return layout, err
		}
	}
}

// use calls f with the process with an id, if that is recorded. f keeps others from
// changing it.
func (ts *targets) use(pid int, f func(*target)) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t, ok := ts.all[pid]; ok {
		f(t)
	}
}

// add begins to record a process, or closes it.
func (ts *targets) add(ctx context.Context, p *reader.Process) error {
	t, err := ts.open(ctx, p)
	if err != nil {
		_ = p.Close()
		return err
	}
	ts.mu.Lock()
	if old := ts.all[t.pid]; old != nil {
		old.close()
	}
	ts.all[t.pid] = t
	ts.mu.Unlock()
	return ts.sampler.Watch(t.pid, t.layout)
}

// open finds out all about a process. After an error nothing is open but p.
func (ts *targets) open(ctx context.Context, p *reader.Process) (_ *target, err error) {
	t := &target{pid: p.PID(), reader: p}
	if t.exit, err = watchExit(t.pid); err != nil {
		return nil, err
	}
	if t.published, err = ts.look(ctx, p); err == nil {
		t.symbols, err = openSymbols(t.pid)
	}
	if err != nil {
		t.exit.close()
		return nil, err
	}
	return t, nil
}

// openSymbols is [symbols.Open] with the errors of package reader.
func openSymbols(pid int) (*symbols.Process, error) {
	p, err := symbols.Open(pid)
	switch {
	case errors.Is(err, procfs.ErrProcessGone):
		err = fmt.Errorf("pid %d: %w: %w", pid, reader.ErrProcessGone, err)
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("pid %d: %w: %w", pid, reader.ErrNotPermitted, err)
	}
	return p, err
}

// look looks at what a process publishes. What cannot be understood is warned of, and as
// good as nothing.
func (ts *targets) look(ctx context.Context, p *reader.Process) (*published, error) {
	layout, err := patient.Call(ctx, p.PID(), patient.Limit, func() (*reader.ThreadLayout, error) { return p.ThreadLayout(ctx) })
	switch {
	case errors.Is(err, reader.ErrInvalid), errors.Is(err, reader.ErrBusy),
		errors.Is(err, patient.ErrNoAnswer), errors.Is(err, patient.ErrTooMany):
		ts.warn(p.PID(), err)
	case err != nil:
		return nil, err
	}
	return newPublished(p.PID(), layout)
}

// warn warns, unless it has of the same.
func (ts *targets) warn(pid int, err error) {
	if ts.warned[pid] != err.Error() {
		ts.warned[pid] = err.Error()
		ts.config.warn(err)
	}
}

// poll looks what has changed.
func (ts *targets) poll(ctx context.Context) {
	for _, t := range ts.all {
		ts.refresh(ctx, t)
	}
	if ts.config.PID == 0 {
		ts.find(ctx)
	}
}

// find finds processes that publish and are not recorded yet.
func (ts *targets) find(ctx context.Context) {
	notPermitted := 0
	defer func() {
		if ctx.Err() != nil {
			// It has not got to all of them.
			notPermitted = max(notPermitted, ts.notPermitted)
		}
		ts.notPermitted = notPermitted
	}()
	for pid, err := range procfs.NewFS("/proc").PIDs() {
		if err != nil {
			ts.warn(0, fmt.Errorf("list processes: %w", err))
			return
		}
		if ctx.Err() != nil {
			return
		}
		if t := ts.all[pid]; t != nil && t.goneFor == 0 {
			continue
		}
		p, err := openPublisher(ctx, pid)
		if err == nil {
			err = ts.add(ctx, p)
		}
		switch {
		case err == nil, errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone), ctx.Err() != nil:
		case errors.Is(err, reader.ErrNotPermitted):
			notPermitted++
		case errors.Is(err, patient.ErrTooMany):
			ts.warn(0, err)
			return
		default:
			ts.warn(pid, err)
		}
	}
}

// openPublisher is [reader.Open] for a process that publishes a context: one that is
// being updated counts too.
func openPublisher(ctx context.Context, pid int) (*reader.Process, error) {
	return patient.Call(ctx, pid, patient.Limit, func() (*reader.Process, error) {
		p, err := reader.Open(pid)
		if err != nil {
			return nil, err
		}
		if _, err := p.ProcessContext(ctx); err != nil && !errors.Is(err, reader.ErrBusy) {
			_ = p.Close()
			return nil, err
		}
		return p, nil
	})
}

// refresh looks what has changed with a process.
func (ts *targets) refresh(ctx context.Context, t *target) {
	if t.goneFor > 0 {
		ts.forget(t)
		return
	}
	if t.exit.happened() {
		t.goneFor = 1
		if err := ts.sampler.Unwatch(t.pid); err != nil {
			ts.warn(t.pid, err)
		}
		return
	}
	if was := t.layout; was != nil && was.Context != nil {
		changed, err := patient.Call(ctx, t.pid, patient.Limit, func() (bool, error) {
			return t.reader.Changed(was.Context.PublishedAtNS)
		})
		if err == nil && !changed {
			return
		}
	}
	now, err := ts.look(ctx, t.reader)
	switch {
	case errors.Is(err, reader.ErrProcessGone):
		return // The next look will find the same.
	case err == nil && now.layout == nil:
		return // It may be about to change.
	case err == nil:
		ts.mu.Lock()
		t.published, t.names = now, nil
		ts.mu.Unlock()
		err = ts.sampler.Watch(t.pid, now.layout)
	}
	if err != nil && ctx.Err() == nil {
		ts.warn(t.pid, err)
	}
}

// forget releases a process that ended a while ago, but for the only one.
func (ts *targets) forget(t *target) {
	if t.goneFor++; t.goneFor <= keepGone || ts.config.PID != 0 {
		return
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.all, t.pid)
	delete(ts.warned, t.pid)
	t.close()
}

// ended reports whether the only process to record has ended.
func (ts *targets) ended() bool {
	if ts.config.PID == 0 {
		return false
	}
	t := ts.all[ts.config.PID]
	return t.goneFor > 0 || t.exit.happened()
}
