// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"context"
	"errors"
	"sync"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/zap"

	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

const (
	// refresh is how often a sampled process's context is checked for changes, besides the check
	// for each report. A check takes one system call.
	refresh = time.Second
	// The delay until a process without a context is read again starts at firstRetry or twice that,
	// and doubles with each failed read, up to lastRetry. Each attempt reads all mappings of the
	// process.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Minute
	// expiry is how long the receiver remembers a process that has no samples.
	expiry = 5 * time.Minute
	// maxProcesses is the maximum number of tracked processes.
	maxProcesses = 16384
	// maxReads is the maximum number of concurrent reads.
	maxReads = 16
	// settleTime is the maximum time that a report waits for contexts that are still being read.
	settleTime = 2 * time.Second
)

// contexts tracks the process contexts of sampled processes. It reads them in the background, so
// reporting a sample never blocks. The number of concurrent reads and the time for each are
// limited.
type contexts struct {
	telemetry *telemetry
	logger    *zap.Logger
	open      func(pid int) (source, error)
	now       func() time.Time

	ctx    context.Context //nolint:containedctx // ends reads when the receiver ends
	cancel context.CancelFunc
	reads  sync.WaitGroup
	slots  chan struct{}

	mu        sync.Mutex
	processes map[int]*process
}

// source is a process whose context can be read: a [reader.Process], or a fake one in tests.
type source interface {
	ProcessContext(ctx context.Context) (*reader.ProcessContext, error)
	Changed(publishedAtNS uint64) (bool, error)
	Close() error
}

// process is the state of a tracked process. The mutex contexts.mu guards the fields up to done.
// The field reading is a mutex that guards the fields below it.
type process struct {
	attributes []*commonpb.KeyValue // from the current context; nil if there is none
	seen       time.Time            // when the last sample was taken
	due        time.Time            // when the next read is due
	wait       time.Duration        // the delay between the last read and due
	done       chan struct{}        // closed when the running read ends; nil if none is running

	reading   sync.Mutex
	source    source               // nil if the process has no context
	published uint64               // timestamp of the last context read from source
	last      []*commonpb.KeyValue // attributes in the last context read from source
	closed    bool                 // set by release
}

func newContexts(t *telemetry, logger *zap.Logger) *contexts {
	ctx, cancel := context.WithCancel(context.Background())
	return &contexts{
		telemetry: t, logger: logger, now: time.Now, ctx: ctx, cancel: cancel,
		open:  func(pid int) (source, error) { return reader.Open(pid) },
		slots: make(chan struct{}, maxReads), processes: map[int]*process{},
	}
}

// close cancels running reads and releases all processes. It does nothing if c is nil, and may be
// called more than once.
func (c *contexts) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.cancel()
	released := c.processes
	c.processes = map[int]*process{}
	c.mu.Unlock()
	c.reads.Wait()
	for _, p := range released {
		p.release()
	}
}

// sampled notes that a sample of the process was taken, and starts to read the process's context if
// that is due. It does nothing if c is nil, and ignores new processes while maxProcesses are
// tracked.
func (c *contexts) sampled(pid int) {
	// The idle task of every CPU has process id 0.
	if c == nil || pid == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	p := c.processes[pid]
	if p == nil {
		if len(c.processes) >= maxProcesses {
			return
		}
		p = &process{wait: firstRetry}
		c.processes[pid] = p
	}
	p.seen = now
	if !now.Before(p.due) {
		c.start(pid, p)
	}
}

// start starts to read a process's context in the background, unless a read is already running. The
// caller holds c.mu.
func (c *contexts) start(pid int, p *process) {
	if p.done != nil || c.ctx.Err() != nil {
		return
	}
	done := make(chan struct{})
	p.done = done
	c.reads.Go(func() {
		defer close(done)
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-c.ctx.Done():
			return
		}
		attributes, err := timelimit.Call(c.ctx, pid, timelimit.Limit, func() ([]*commonpb.KeyValue, error) {
			return p.read(c.ctx, c.open, pid, c.telemetry)
		})
		c.finish(pid, p, attributes, err)
	})
}

// finish stores the result of a read and schedules the next one.
func (c *contexts) finish(pid int, p *process, attributes []*commonpb.KeyValue, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.done = nil
	if kind := errorKind(err); kind != "" && c.ctx.Err() == nil {
		c.telemetry.contextError(kind)
		c.logger.Debug("cannot read a process context", zap.Int("pid", pid), zap.Error(err))
	}
	switch {
	case err == nil:
		p.attributes, p.wait = attributes, refresh
	case errors.Is(err, reader.ErrProcessGone), errors.Is(err, reader.ErrBusy):
		// The last context still applies to samples that have already been taken.
		p.wait = min(max(2*p.wait, firstRetry), lastRetry)
	default:
		if p.attributes != nil {
			p.attributes, p.wait = nil, firstRetry
		} else {
			p.wait = min(2*p.wait, lastRetry)
		}
	}
	p.due = c.now().Add(p.wait)
}

// errorKind returns the kind of an error for telemetry. It returns "" for nil and for expected
// errors: most processes have no context, and every process ends.
func errorKind(err error) string {
	switch {
	case err == nil, errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone):
		return ""
	case errors.Is(err, reader.ErrInvalid):
		return "invalid"
	case errors.Is(err, reader.ErrNotPermitted):
		return "not_permitted"
	case errors.Is(err, reader.ErrBusy):
		return "busy"
	case errors.Is(err, timelimit.ErrNoAnswer), errors.Is(err, timelimit.ErrTooMany):
		return "no_answer"
	default:
		return "other"
	}
}

// read returns the resource attributes in the process's current context. It reads the context only
// if it has changed since the last read.
func (p *process) read(ctx context.Context, open func(int) (source, error), pid int, t *telemetry) ([]*commonpb.KeyValue, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.source != nil {
		changed, err := p.source.Changed(p.published)
		if err == nil && !changed {
			return p.last, nil
		}
		if errors.Is(err, reader.ErrProcessGone) {
			p.drop() // the pid may have been reused
		}
	}
	if p.closed {
		return nil, context.Canceled
	}
	if p.source == nil {
		s, err := open(pid)
		if err != nil {
			return nil, err
		}
		p.source = s
	}
	pc, err := p.source.ProcessContext(ctx)
	if err != nil {
		// Close the descriptor. Most processes have no context, so the receiver would keep too many
		// open.
		p.drop()
		return nil, err
	}
	p.published, p.last = pc.PublishedAtNS, pc.Resource.GetAttributes()
	t.contextsRead.Add(ctx, 1)
	return p.last, nil
}

// drop closes the source. The caller holds p.reading.
func (p *process) drop() {
	if p.source != nil {
		_ = p.source.Close()
	}
	p.source, p.last = nil, nil
}

// release closes the source and prevents read from opening another. If a read is running, release
// returns at once, and closes the source when the read ends.
func (p *process) release() {
	closeIt := func() {
		defer p.reading.Unlock()
		p.closed = true
		p.drop()
	}
	if p.reading.TryLock() {
		closeIt()
		return
	}
	go func() {
		p.reading.Lock()
		closeIt()
	}()
}

// current returns the current attributes of the processes with the given ids, in the same order.
// Before that, it checks their contexts for changes, and waits up to settleTime for running reads.
// It also forgets processes without recent samples.
func (c *contexts) current(ctx context.Context, pids []int) [][]*commonpb.KeyValue {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for _, done := range c.check(pids) { //nolint:contextcheck // reads go on after this call
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([][]*commonpb.KeyValue, len(pids))
	for i, pid := range pids {
		if p := c.processes[pid]; p != nil {
			out[i] = p.attributes
		}
	}
	return out
}

// check starts to check the contexts of the given processes for changes, and forgets processes
// without recent samples. It returns a channel for each running read of the given processes, which
// is closed when the read ends.
func (c *contexts) check(pids []int) (reads []<-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pid := range pids {
		p := c.processes[pid]
		if p == nil {
			continue
		}
		if p.attributes != nil {
			c.start(pid, p)
		}
		if p.done != nil {
			reads = append(reads, p.done)
		}
	}
	for pid, p := range c.processes {
		if p.done == nil && c.now().Sub(p.seen) > expiry {
			delete(c.processes, pid)
			p.release()
		}
	}
	return reads
}
