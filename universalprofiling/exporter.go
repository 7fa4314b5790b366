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

	"github.com/otelctx/otelctx/internal/synctestbubble"
)

const (
	// maxBatch is the maximum number of waiting transactions per export.
	maxBatch = 512
	// exportTimeout limits the time to export waiting transactions. It equals the default of the
	// SDK's batch processor.
	exportTimeout = 30 * time.Second
)

// NewExporter returns an exporter that wraps next. It delays sampled transactions, and exports them
// with the stack trace ids that the profiler has sent. All other spans are exported at once. It
// works with the process's [Integration], which may be created before or after it. The span
// processors of a provider may be registered in any order.
//
// While there is no Integration, the exporter exports everything at once. If it exports spans
// before [New], [ForProvider] or [WithIntegration] has been called, that is reported once to
// [otel.Handle]. The exporter does not call next concurrently, except that Shutdown shuts next down
// during a running export if the context of Shutdown ends first. The exporter's own methods may be
// called concurrently. It must be shut down, which its provider does.
//
// If next was returned by NewExporter, NewExporter returns it unchanged. If next is nil,
// NewExporter returns nil, with which the SDK's batch processor exports nothing.
func NewExporter(next sdktrace.SpanExporter) sdktrace.SpanExporter {
	if next == nil {
		return nil
	}
	if e, ok := next.(*exporter); ok {
		return e
	}
	e := &exporter{next: next, sem: make(chan struct{}, 1), bubbled: synctestbubble.In()}
	exporters.add(e)
	return e
}

// exporters lists the exporters of the process that have not been shut down.
var exporters exporterList

type exporterList struct {
	count atomic.Int64 // len(all), for reads without the lock
	mu    sync.Mutex
	all   []*exporter
}

func (l *exporterList) add(e *exporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
	l.count.Store(int64(len(l.all)))
}

func (l *exporterList) remove(e *exporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(other *exporter) bool { return other == e })
	l.count.Store(int64(len(l.all)))
}

// each returns a copy of the list.
func (l *exporterList) each() []*exporter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// reportedMissing is true once it has been reported that there is an exporter but no Integration.
var reportedMissing atomic.Bool

// exporter delays transactions.
type exporter struct {
	next sdktrace.SpanExporter
	// sem is held by the goroutine that calls next.
	sem chan struct{}
	// bubbled is true if the exporter was created in a testing/synctest bubble. Its timer must not
	// be used outside the bubble.
	bubbled bool

	mu sync.Mutex
	// queue holds the waiting transactions, first in, first out.
	queue  []deferred
	closed bool
	// timer fires when the delay of the first transaction in the queue has passed. It is nil if
	// the queue is empty.
	timer *time.Timer
}

// deferred is a waiting transaction with the Integration that published it.
type deferred struct {
	integration *integration
	span        sdktrace.ReadOnlySpan
	endedAt     uint64
}

// due returns the time from which the transaction may be exported.
func (d *deferred) due() uint64 {
	if d.endedAt <= d.integration.correlations.flushed.Load() {
		return 0
	}
	return d.endedAt + uint64(d.integration.correlations.delay.Load())
}

var _ sdktrace.SpanExporter = (*exporter)(nil)

// ExportSpans exports spans, except for transactions that have to wait. If they cannot be exported
// later, the error goes to [otel.Handle], or to the caller of the ForceFlush or Shutdown that
// exports them.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	i := latest.Load()
	if i == nil && !requested.Load() && !reportedMissing.Swap(true) {
		otel.Handle(errors.New("universal profiling: there is an exporter but no integration: use WithIntegration"))
	}
	out, due := make([]sdktrace.ReadOnlySpan, 0, len(spans)), false
	for _, s := range spans {
		delayed, transaction := e.delay(i, s) //nolint:contextcheck // waiting transactions outlive ctx
		due = due || transaction && !delayed
		if !delayed {
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
		// If ctx ends first, export the spans anyway. Stack traces may be missing.
		_ = i.socket.Drain(ctx)
	}
	return e.export(ctx, out)
}

// isTransaction reports whether s is a local root.
func isTransaction(s sdktrace.ReadOnlySpan) bool {
	return !s.Parent().IsValid() || s.Parent().IsRemote()
}

// delay queues s if it has to wait. delayed is true if s was queued, and transaction is true if s
// is a transaction for which the profiler may send stack traces.
func (e *exporter) delay(i *integration, s sdktrace.ReadOnlySpan) (delayed, transaction bool) {
	if i == nil || !i.correlations.registered.Load() || !s.SpanContext().IsSampled() || !isTransaction(s) {
		return false, false
	}
	c := &i.correlations
	endedAt, transaction := c.endOf(keyOf(s))
	if !transaction || now() >= endedAt+uint64(c.delay.Load()) {
		return false, transaction
	}
	delayed, full := e.enqueue(deferred{i, s, endedAt})
	if full {
		c.counters.notDeferred.Add(1)
		i.warned.once("the queue of %d transactions is full: their profiling data may be incomplete", i.settings.bufferSize)
	}
	return delayed, true
}

// enqueue adds d to the queue unless the queue is full or closed, or was flushed after d ended.
func (e *exporter) enqueue(d deferred) (queued, full bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// A flush sets the time before it empties the queue, so a transaction that ended before that
	// time must not be added.
	if e.closed || d.endedAt <= d.integration.correlations.flushed.Load() {
		return false, false
	}
	if len(e.queue) >= d.integration.settings.bufferSize {
		return false, true
	}
	e.queue = append(e.queue, d)
	e.arm()
	return true, false
}

// arm starts the timer for the first transaction in the queue. The caller holds mu.
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

// disarm stops the timer. The caller holds mu.
func (e *exporter) disarm() {
	if e.timer != nil && e.timer.Stop() {
		e.timer = nil
	}
}

// rearm restarts the timer with the current delay.
func (e *exporter) rearm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disarm()
	e.arm()
}

// release exports all transactions, or if all is false, only transactions that are due. If ctx ends
// first, the rest stays in the queue.
func (e *exporter) release(ctx context.Context, all bool) error {
	if err := e.lock(ctx); err != nil {
		e.rearm() //nolint:contextcheck // as above
		return err
	}
	defer e.unlock()
	defer e.rearm() //nolint:contextcheck // as above
	// Unless all is true, export only transactions that are due now. The messages that the profiler
	// has sent for them are already in the socket, so Drain reads all of them.
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

// due removes a batch of transactions from the queue and returns it. If all is false, the batch
// contains only transactions that are due at the time until.
func (e *exporter) due(all bool, until uint64) (spans []sdktrace.ReadOnlySpan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for n < min(len(e.queue), maxBatch) && (all || e.queue[n].due() <= until) {
		spans = append(spans, e.queue[n].span)
		n++
	}
	// Clear the elements, so that the array does not keep the spans alive.
	clear(e.queue[:n])
	if e.queue = e.queue[n:]; len(e.queue) == 0 {
		e.queue = nil
	}
	return spans
}

// export enriches spans, in place, and passes them to next. The caller holds the semaphore.
func (e *exporter) export(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if i := latest.Load(); i != nil {
		for n, s := range spans {
			spans[n] = i.enrich(s)
		}
	}
	return e.next.ExportSpans(ctx, spans)
}

func (e *exporter) lock(ctx context.Context) error {
	select {
	case e.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *exporter) unlock() { <-e.sem }

// Shutdown exports all waiting transactions, and shuts next down. It stops waiting when ctx is
// done.
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
	exporters.remove(e)
	e.mu.Lock()
	if n := len(e.queue); n > 0 {
		err = errors.Join(err, fmt.Errorf("universal profiling: %d transactions are not exported", n))
		e.queue = nil
	}
	e.mu.Unlock()
	// Wait for an export that the timer has started, unless ctx ends first.
	if lockErr := e.lock(ctx); lockErr == nil {
		defer e.unlock()
	}
	return errors.Join(err, e.next.Shutdown(ctx))
}

// MarshalLog returns the description that the SDK logs.
func (e *exporter) MarshalLog() any {
	return struct{ Type, Next string }{"universalprofiling", fmt.Sprintf("%T", e.next)}
}

// enrich returns s with the profiler's stack trace ids and host id.
func (i *integration) enrich(s sdktrace.ReadOnlySpan) sdktrace.ReadOnlySpan {
	if _, ok := s.(*enrichedSpan); ok {
		return s // enriched by an exporter that wraps this one
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
	return &enrichedSpan{s, ids, r}
}

// enrichedSpan is a span with stack trace ids and a completed resource.
type enrichedSpan struct {
	sdktrace.ReadOnlySpan

	ids      []string
	resource *resource.Resource
}

// Attributes returns the attributes of the span and the stack trace ids.
func (f *enrichedSpan) Attributes() []attribute.KeyValue {
	attributes := f.ReadOnlySpan.Attributes()
	if len(f.ids) == 0 {
		return attributes
	}
	return append(slices.Clip(attributes), stackTraceIDsKey.StringSlice(f.ids))
}

// Resource returns the resource of the span, completed with the host id.
func (f *enrichedSpan) Resource() *resource.Resource { return f.resource }
