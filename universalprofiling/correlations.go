// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	// defaultDelay is the delay of transactions until a registration sets it.
	defaultDelay = time.Second
	// maxSamples limits the number of samples of one transaction, and maxAllSamples the number of
	// samples of all transactions. Even if maxAllSamples is reached, every transaction may have
	// fewSamples, so that a flood of samples for some transactions leaves room for others.
	maxSamples    = 1 << 16
	maxAllSamples = 1 << 20
	fewSamples    = 1 << 6
)

// stackTraceIDsKey is the attribute for the stack trace ids of a transaction.
const stackTraceIDsKey = attribute.Key("elastic.profiler_stack_trace_ids")

const hostIDKey = attribute.Key("host.id")

// startTime is when the package was initialized.
var startTime = time.Now()

// now returns the time since startTime in nanoseconds, plus 1 so that it is never 0.
func now() uint64 { return uint64(time.Since(startTime)) + 1 }

// Stats counts messages from the profiler, and losses. A message is counted after it has been
// handled.
type Stats struct {
	// Registrations counts registrations, and Correlations counts correlations of known transactions.
	Registrations, Correlations uint64
	// Malformed counts messages that were truncated or otherwise invalid, and UnknownTypes counts
	// messages of unknown types.
	Malformed, UnknownTypes uint64
	// UnknownTransactions counts correlations whose transaction is unknown or has already been
	// exported. Early counts correlations that arrived while there was no exporter or, in
	// [ModeAuto], before a registration.
	UnknownTransactions, Early uint64
	// Dropped counts samples that were discarded because of the limits for one transaction or for
	// all.
	Dropped uint64
	// NotDeferred counts transactions that were exported at once because the queue was full.
	NotDeferred uint64
	// Evicted counts live spans that are no longer published because there were too many.
	Evicted uint64
}

type counters struct {
	registrations, correlations, malformed, unknownTypes atomic.Uint64
	unknownTransactions, early, dropped, notDeferred     atomic.Uint64
}

func (i *integration) stats() Stats {
	if i == nil {
		return Stats{}
	}
	c := &i.correlations.counters
	return Stats{
		Registrations: c.registrations.Load(), Correlations: c.correlations.Load(),
		Malformed: c.malformed.Load(), UnknownTypes: c.unknownTypes.Load(),
		UnknownTransactions: c.unknownTransactions.Load(), Early: c.early.Load(),
		Dropped: c.dropped.Load(), NotDeferred: c.notDeferred.Load(), Evicted: i.path.Evicted(),
	}
}

// correlations holds the data received from a profiler: its registration, and the samples of
// transactions.
type correlations struct {
	counters counters
	table    *spantable.Table
	// registered is true once a profiler has registered. In mode Enabled it is true from the start.
	registered atomic.Bool
	// delay is how long transactions wait, in nanoseconds.
	delay atomic.Int64
	// flushed is the time of the last flush. Transactions that ended before it are exported without
	// a delay.
	flushed atomic.Uint64
	// hostID is the host.id of the profiler, or nil.
	hostID atomic.Pointer[string]
	// completed caches the last resource that was completed with the host id.
	completed atomic.Pointer[completedResource]
	ended     *endedTransactions

	mu sync.Mutex
	// samples holds the samples of each transaction that has any. totalSamples is the total number
	// of samples.
	samples      map[sdkspan.Key]*samples
	totalSamples int
	// sweepAt is the size of samples at which sweep is called.
	sweepAt int
}

// samples counts the samples of one transaction by stack trace.
type samples struct {
	counts map[[16]byte]int
	total  int
}

type completedResource struct{ from, to *resource.Resource }

const firstSweep = 1 << 10

func (c *correlations) start(t *spantable.Table, s settings) {
	c.table = t
	c.registered.Store(s.mode == ModeEnabled)
	c.delay.Store(int64(min(defaultDelay, s.maxDelay)))
	c.samples, c.sweepAt = map[sdkspan.Key]*samples{}, firstSweep
	// Use twice the size of the queue, because as many transactions again may be on their way to
	// the exporter.
	c.ended = newEndedTransactions(2 * max(defaultBufferSize, s.bufferSize))
}

// enabled reports whether transactions are correlated.
func (c *correlations) enabled() bool { return c.registered.Load() && exporters.count.Load() > 0 }

// receive handles messages until the socket is stopped.
func (i *integration) receive() {
	defer close(i.received)
	if err := i.socket.Serve(wire.MaxProfilingMessage, i.handleMessage); err != nil {
		i.warned.once("messages from the profiler are no longer received: %w", err)
	}
}

// handleMessage parses a message and acts on it. If whole is false, the message was truncated.
func (i *integration) handleMessage(b []byte, whole bool) {
	c := &i.correlations
	if !whole {
		c.counters.malformed.Add(1)
		return
	}
	message, err := wire.ParseProfilingMessage(b)
	switch {
	case errors.Is(err, wire.ErrProfilingMessageType):
		c.counters.unknownTypes.Add(1)
	case err != nil:
		c.counters.malformed.Add(1)
	}
	switch m := message.(type) {
	case wire.ProfilingRegistration:
		i.register(m)
		c.counters.registrations.Add(1)
	case wire.ProfilingCorrelation:
		i.correlate(m)
	}
}

func (i *integration) register(m wire.ProfilingRegistration) {
	c := &i.correlations
	delay := time.Duration(m.SamplesDelayMS) * time.Millisecond
	if limit := i.settings.maxDelay; delay > limit {
		i.warned.once("the profiler asks for a delay of %v, which is limited to %v: use WithMaxDelay", delay, limit)
		delay = limit
	}
	c.delay.Store(int64(delay))
	if m.HostID != "" {
		// Keep the first host id, because resources are immutable.
		if !c.hostID.CompareAndSwap(nil, &m.HostID) && *c.hostID.Load() != m.HostID {
			i.warnHostID(m.HostID, *c.hostID.Load())
		}
		if r := i.service.Load(); r != nil {
			i.complete(r)
		}
	}
	c.registered.Store(true)
	c.wake()
}

func (i *integration) warnHostID(profiler, other string) {
	i.warned.once("the profiler reports with %s %q, and spans with %q: some correlations will not work", hostIDKey, profiler, other)
}

func (i *integration) correlate(m wire.ProfilingCorrelation) {
	c := &i.correlations
	if !c.enabled() {
		c.counters.early.Add(1)
		if c.registered.Load() {
			i.warned.once("the profiler sends stack traces, but there is no exporter for them: use NewExporter")
		}
		return
	}
	k := sdkspan.Key{
		TraceIDHigh: binary.BigEndian.Uint64(m.TraceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(m.TraceID[8:]),
		SpanID:      binary.BigEndian.Uint64(m.TransactionID[:]),
	}
	known, added := c.addIfKnown(k, m.StackTraceID, int(m.Count))
	if !known {
		c.counters.unknownTransactions.Add(1)
		return
	}
	if !added {
		c.counters.dropped.Add(uint64(m.Count))
		// Report this only after the lock has been released: the error handler may start and export
		// a span.
		i.warned.once("too many samples: some are missing from transactions")
	}
	c.counters.correlations.Add(1)
}

// addIfKnown adds count samples of a stack trace to a transaction if the transaction is known and
// the limits allow it.
func (c *correlations) addIfKnown(k sdkspan.Key, stackTrace [16]byte, count int) (known, added bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isKnown(k) {
		return false, false
	}
	return true, c.add(k, stackTrace, count)
}

// end records that a transaction has ended, if there are exporters to export it.
func (c *correlations) end(k sdkspan.Key) {
	if n := exporters.count.Load(); n > 0 {
		c.ended.add(k, endedTransaction{now(), n})
	}
}

// endOf returns the time at which a transaction ended. known is true if the transaction is known.
// If the exporter's processor is registered before the Integration, the transaction may still be
// live, and endOf returns the current time.
func (c *correlations) endOf(k sdkspan.Key) (endedAt uint64, known bool) {
	t, known := c.ended.find(k, false)
	if !known {
		if c.isLive(k) {
			return now(), true
		}
		t, known = c.ended.find(k, false) // the transaction may have ended since the first lookup
	}
	return t.endedAt, known
}

// isKnown reports whether k is a sampled transaction that is live, or that some exporter has yet to
// export.
func (c *correlations) isKnown(k sdkspan.Key) bool {
	_, ok := c.ended.find(k, false)
	return ok || c.isLive(k)
}

// isLive reports whether k is a live sampled transaction.
func (c *correlations) isLive(k sdkspan.Key) bool {
	var n spantable.Span
	return c.table.Load(c.table.Find(k), &n) && n.LocalRootSpanID == k.SpanID && n.TraceFlags&sampled != 0
}

// add adds all count samples, or none if that would exceed a limit. It reports whether it added
// them. The caller holds mu.
func (c *correlations) add(k sdkspan.Key, stackTrace [16]byte, count int) bool {
	if count == 0 {
		return true
	}
	s := c.samples[k]
	if s == nil {
		if len(c.samples) >= c.sweepAt {
			c.sweep()
		}
		s = &samples{counts: map[[16]byte]int{}}
	}
	if s.total+count > maxSamples || s.total+count > fewSamples && c.totalSamples+count > maxAllSamples {
		return false
	}
	c.samples[k] = s
	s.counts[stackTrace] += count
	s.total += count
	c.totalSamples += count
	return true
}

// sweep removes the samples of transactions that were evicted or never exported.
func (c *correlations) sweep() {
	for k := range c.samples {
		if !c.isKnown(k) {
			c.forget(k)
		}
	}
	c.sweepAt = max(firstSweep, 2*len(c.samples))
}

func (c *correlations) forget(k sdkspan.Key) {
	if s := c.samples[k]; s != nil {
		c.totalSamples -= s.total
		delete(c.samples, k)
	}
}

func keyOf(s sdktrace.ReadOnlySpan) sdkspan.Key {
	k, _, _ := sdkspan.Ended(s)
	return k
}

// collect returns the stack trace ids of a transaction to an exporter. The last exporter's call
// removes the samples.
func (c *correlations) collect(k sdkspan.Key) (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, _ := c.ended.find(k, true)
	if s := c.samples[k]; s != nil {
		ids = make([]string, 0, s.total)
		for stackTrace, count := range s.counts {
			id := base64.RawURLEncoding.EncodeToString(stackTrace[:])
			for range count {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids) // all exporters get the same order
	}
	if t.exports <= 0 && !c.isLive(k) {
		c.forget(k)
	}
	return ids
}

// complete returns the resource to export instead of r: r with the profiler's host.id added. If r
// already has a host.id, or the profiler's is unknown, it returns r.
func (i *integration) complete(r *resource.Resource) *resource.Resource {
	c := &i.correlations
	id := c.hostID.Load()
	if id == nil {
		return r
	}
	if last := c.completed.Load(); last != nil && last.from == r {
		return last.to
	}
	to := r
	if own, ok := r.Set().Value(hostIDKey); !ok {
		// A resource without a schema URL can be merged with any other.
		to, _ = resource.Merge(r, resource.NewSchemaless(hostIDKey.String(*id)))
	} else if own.String() != *id {
		i.warnHostID(*id, own.String())
	}
	c.completed.Store(&completedResource{r, to})
	return to
}

// wake rearms the exporters' timers after the delay has changed. It skips exporters in a synctest
// bubble, which wait for the old delay, because the caller is outside the bubble.
func (c *correlations) wake() {
	for _, e := range exporters.each() {
		if !e.bubbled {
			e.rearm()
		}
	}
}

// release makes all exporters export their waiting transactions.
func (c *correlations) release(ctx context.Context) error {
	var errs []error
	for _, e := range exporters.each() {
		errs = append(errs, e.release(ctx, true))
	}
	return errors.Join(errs...)
}
