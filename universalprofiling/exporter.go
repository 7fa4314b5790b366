// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/bubble"
)

const (
	// maxBatch is how many transactions are exported at a time.
	maxBatch = 512
	// exportTimeout bounds the export of what has waited, as the SDK's batch processor
	// does by default.
	exportTimeout = 30 * time.Second
)

// NewExporter returns an exporter that exports to next. Sampled transactions are exported
// when their delay has passed, with the stack trace ids that the profiler has told of.
// All other spans are exported at once. It works with the process's [Integration], which
// may come up before or after it, and with the span processors of a provider in any
// order.
//
// While there is no Integration, it exports everything at once. If neither [New] nor
// [WithIntegration] has been called when it exports its first span, that is reported once to
// [otel.Handle]. An exporter of this function is returned as it is. The exporter does not
// call next concurrently; its own methods may be. Shut it down, as its provider does.
//
// If next is nil so is what is returned, with which the SDK's batch processor exports nothing.
func NewExporter(next sdktrace.SpanExporter) sdktrace.SpanExporter {
	if next == nil {
		return nil
	}
	if e, ok := next.(*exporter); ok {
		return e
	}
	e := &exporter{next: next, turn: make(chan struct{}, 1), bubbled: bubble.In()}
	exporters.enter(e)
	return e
}

// NewExporter is the function of that name, except that it returns next if i is disabled.
func (i *Integration) NewExporter(next sdktrace.SpanExporter) sdktrace.SpanExporter {
	if i == nil || i.records == nil {
		return next
	}
	return NewExporter(next)
}

// exporters are those of the process that are not shut down.
var exporters exporterList

type exporterList struct {
	count atomic.Int64 // of all
	mu    sync.Mutex
	all   []*exporter
}

func (l *exporterList) enter(e *exporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
	l.count.Store(int64(len(l.all)))
}

func (l *exporterList) leave(e *exporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(other *exporter) bool { return other == e })
	l.count.Store(int64(len(l.all)))
}

// each returns the exporters of now.
func (l *exporterList) each() []*exporter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// toldAlone is whether it has been reported that there is an exporter and no Integration.
var toldAlone atomic.Bool

// exporter keeps transactions back.
type exporter struct {
	next sdktrace.SpanExporter
	// turn is held by the goroutine that calls next.
	turn chan struct{}
	// bubbled is whether it belongs to a test in testing/synctest, whose timers may be
	// touched only there.
	bubbled bool

	mu sync.Mutex
	// queue is first in, first out.
	queue  []deferred
	closed bool
	// timer goes off when the first one's delay has passed; nil if none waits.
	timer *time.Timer
}

// deferred is a transaction that waits, and the Integration that knows it.
type deferred struct {
	of      *Integration
	span    sdktrace.ReadOnlySpan
	endedAt uint64
}

// due returns when the transaction has waited long enough.
func (d *deferred) due() uint64 {
	if d.endedAt <= d.of.correlations.flushed.Load() {
		return 0
	}
	return d.endedAt + uint64(d.of.correlations.delay.Load())
}

var _ sdktrace.SpanExporter = (*exporter)(nil)

// ExportSpans exports spans, except for transactions that wait: what becomes of their
// export later goes to [otel.Handle].
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	i := latest.Load()
	if i == nil && !asked.Load() && !toldAlone.Swap(true) {
		otel.Handle(errors.New("universal profiling: there is an exporter and no integration: use WithIntegration"))
	}
	out, due := make([]sdktrace.ReadOnlySpan, 0, len(spans)), false
	for _, s := range spans {
		kept, transaction := e.keep(i, s) //nolint:contextcheck // what waits is exported when ctx is over
		due = due || transaction && !kept
		if !kept {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil
	}
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer e.unlock()
	if due {
		// What ctx leaves no time for is missing; the spans are not.
		_ = i.socket.Drain(ctx)
	}
	return e.export(ctx, out)
}

// isTransaction reports whether s is a local root.
func isTransaction(s sdktrace.ReadOnlySpan) bool {
	return !s.Parent().IsValid() || s.Parent().IsRemote()
}

// keep keeps a span back if it has to wait, and reports whether it does. It also reports
// whether the span is a transaction that the profiler may tell of.
func (e *exporter) keep(i *Integration, s sdktrace.ReadOnlySpan) (kept, transaction bool) {
	if i == nil || !i.correlations.registered.Load() || !s.SpanContext().IsSampled() || !isTransaction(s) {
		return false, false
	}
	c := &i.correlations
	endedAt, transaction := c.endOf(keyOf(s))
	if !transaction || now() >= endedAt+uint64(c.delay.Load()) {
		return false, transaction
	}
	kept, full := e.enqueue(deferred{i, s, endedAt})
	if full {
		c.counters.notDeferred.Add(1)
		i.warned.once("the queue of %d transactions is full: their profiling data may be incomplete", i.settings.bufferSize)
	}
	return kept, true
}

// enqueue keeps d, unless the queue is full, closed, or flushed since d ended.
func (e *exporter) enqueue(d deferred) (kept, full bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// A goroutine that flushes says so first, and then empties the queue: none may come after that.
	if e.closed || d.endedAt <= d.of.correlations.flushed.Load() {
		return false, false
	}
	if len(e.queue) >= d.of.settings.bufferSize {
		return false, true
	}
	e.queue = append(e.queue, d)
	e.arm()
	return true, false
}

// arm has the timer go off when the first transaction's delay has passed. mu is held.
func (e *exporter) arm() {
	if e.timer != nil || len(e.queue) == 0 || e.closed {
		return
	}
	wait := int64(e.queue[0].due()) - int64(now())
	e.timer = time.AfterFunc(time.Duration(max(wait, 0)), func() {
		e.mu.Lock()
		e.timer = nil
		e.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
		defer cancel()
		if err := e.release(ctx, false); err != nil {
			otel.Handle(err)
		}
	})
}

// disarm undoes arm. mu is held.
func (e *exporter) disarm() {
	if e.timer != nil && e.timer.Stop() {
		e.timer = nil
	}
}

// rearm has the timer go by the delay as it is now.
func (e *exporter) rearm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disarm()
	e.arm()
}

// release exports those that have waited long enough, or all. What ctx leaves no time
// for goes on waiting.
func (e *exporter) release(ctx context.Context, all bool) error {
	if err := e.lock(ctx); err != nil {
		e.rearm() //nolint:contextcheck // as above
		return err
	}
	defer e.unlock()
	defer e.rearm() //nolint:contextcheck // as above
	// The profiler has until now: what it has sent by now is in the socket at least.
	until := now()
	var errs []error
	if i := latest.Load(); i != nil {
		errs = append(errs, i.socket.Drain(ctx))
	}
	for ctx.Err() == nil {
		spans := e.due(all, until)
		if len(spans) == 0 {
			return errors.Join(errs...)
		}
		errs = append(errs, e.export(ctx, spans))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// due takes a batch of those that have waited long enough until a time, or of all.
func (e *exporter) due(all bool, until uint64) (spans []sdktrace.ReadOnlySpan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for n < min(len(e.queue), maxBatch) && (all || e.queue[n].due() <= until) {
		spans = append(spans, e.queue[n].span)
		n++
	}
	// Deleting from the front of a slice would keep the spans alive.
	clear(e.queue[:n])
	if e.queue = e.queue[n:]; len(e.queue) == 0 {
		e.queue = nil
	}
	return spans
}

// export exports spans as they are to be. The caller has the turn.
func (e *exporter) export(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if i := latest.Load(); i != nil {
		for n, s := range spans {
			spans[n] = i.finish(s)
		}
	}
	return e.next.ExportSpans(ctx, spans)
}

func (e *exporter) lock(ctx context.Context) error {
	select {
	case e.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *exporter) unlock() { <-e.turn }

// Shutdown exports what waits, and shuts next down. It gives up when ctx is done.
func (e *exporter) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.disarm()
	e.mu.Unlock()
	if closed {
		return nil
	}
	err := e.release(ctx, true)
	exporters.leave(e)
	e.mu.Lock()
	if n := len(e.queue); n > 0 {
		err = errors.Join(err, fmt.Errorf("universal profiling: %d transactions are not exported", n))
		e.queue = nil
	}
	e.mu.Unlock()
	// An export that the timer has begun is over by then, or has no time left either.
	if lockErr := e.lock(ctx); lockErr == nil {
		defer e.unlock()
	}
	return errors.Join(err, e.next.Shutdown(ctx))
}

// MarshalLog is what the SDK logs of the exporter.
func (e *exporter) MarshalLog() any {
	return struct{ Type, Next string }{"universalprofiling", fmt.Sprintf("%T", e.next)}
}

// finish returns s as it is exported.
func (i *Integration) finish(s sdktrace.ReadOnlySpan) sdktrace.ReadOnlySpan {
	if _, ok := s.(*finished); ok {
		return s // by another exporter in front of this one
	}
	var ids []string
	if s.SpanContext().IsSampled() && isTransaction(s) {
		ids = i.correlations.collect(keyOf(s))
	}
	own := s.Resource()
	r := i.complete(own)
	if len(ids) == 0 && r == own {
		return s
	}
	return &finished{s, ids, r}
}

// finished is a span with what the profiler has told.
type finished struct {
	sdktrace.ReadOnlySpan

	ids      []string
	resource *resource.Resource
}

// Attributes returns those of the span and its stack traces.
func (f *finished) Attributes() []attribute.KeyValue {
	attributes := f.ReadOnlySpan.Attributes()
	if len(f.ids) == 0 {
		return attributes
	}
	return append(slices.Clip(attributes), stackTraceIDsKey.StringSlice(f.ids))
}

// Resource returns that of the span, with a host id.
func (f *finished) Resource() *resource.Resource { return f.resource }
