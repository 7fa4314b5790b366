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

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	// defaultDelay is how long transactions wait before a registration says.
	defaultDelay = time.Second
	// maxSamples is how many stack trace ids a transaction may have. maxAllSamples is
	// how many those transactions may have together that have more than fewSamples. So
	// one that is flooded leaves room for others.
	maxSamples    = 1 << 16
	maxAllSamples = 1 << 20
	fewSamples    = 1 << 6
)

// stackTraceIDsKey is the attribute of transactions.
const stackTraceIDsKey = attribute.Key("elastic.profiler_stack_trace_ids")

const hostIDKey = attribute.Key("host.id")

// began is when the package began. Times are counted from there, in nanoseconds.
var began = time.Now()

func now() uint64 { return uint64(time.Since(began)) + 1 }

// Stats counts what became of a profiler's messages. A message is counted when what it says
// holds.
type Stats struct {
	// Registrations and Correlations are the messages that were of use.
	Registrations, Correlations uint64
	// Malformed are messages that were cut off or otherwise not what they should be,
	// and UnknownTypes those of types that are not known.
	Malformed, UnknownTypes uint64
	// UnknownTransactions are correlations of transactions that do not exist, or not
	// any more. Early are those that came before a registration in the mode Auto, or
	// with no exporter that they could be for.
	UnknownTransactions, Early uint64
	// Dropped are samples beyond what a transaction, or all of them, may have.
	Dropped uint64
	// NotDeferred are transactions that found the queue full.
	NotDeferred uint64
	// Evicted are spans that were not shown any more because too many were live.
	Evicted uint64
}

// counters are Stats as they are counted.
type counters struct {
	registrations, correlations, malformed, unknownTypes      atomic.Uint64
	unknownTransactions, early, dropped, notDeferred, evicted atomic.Uint64
}

// Stats returns what has become of messages so far.
func (i *Integration) Stats() Stats {
	if i == nil {
		return Stats{}
	}
	c := &i.correlations.counters
	return Stats{
		Registrations: c.registrations.Load(), Correlations: c.correlations.Load(),
		Malformed: c.malformed.Load(), UnknownTypes: c.unknownTypes.Load(),
		UnknownTransactions: c.unknownTransactions.Load(), Early: c.early.Load(),
		Dropped: c.dropped.Load(), NotDeferred: c.notDeferred.Load(), Evicted: c.evicted.Load(),
	}
}

// correlations are what is known of transactions from a profiler.
type correlations struct {
	counters counters
	table    *cells.Table
	// registered says that a profiler is known to be there, or taken for that.
	registered atomic.Bool
	// delay is how long transactions wait, in nanoseconds.
	delay atomic.Int64
	// flushed is a time: what ended before does not wait.
	flushed atomic.Uint64
	// hostID is the profiler's, or nil.
	hostID atomic.Pointer[string]
	// completed is the last resource that the host id was added to.
	completed atomic.Pointer[completedResource]
	ended     *ended

	mu sync.Mutex
	// samples has the transactions that have any, and all is how many those have in
	// all.
	samples map[sdkspan.Key]*samples
	all     int
	// sweepAt is how many transactions there may be before those that are forgotten
	// are looked for.
	sweepAt int
}

// samples are those of a transaction: how often each stack trace was seen.
type samples struct {
	counts map[[16]byte]int
	total  int
}

type completedResource struct{ from, to *resource.Resource }

const firstSweep = 1 << 10

func (c *correlations) start(t *cells.Table, s settings) {
	c.table = t
	c.registered.Store(s.mode == Enabled)
	c.delay.Store(int64(min(defaultDelay, s.maxDelay)))
	c.samples, c.sweepAt = map[sdkspan.Key]*samples{}, firstSweep
	// Those that wait for the delay, and as many on their way to the exporter.
	c.ended = newEnded(2 * max(DefaultBufferSize, s.bufferSize))
}

// on reports whether transactions are correlated.
func (c *correlations) on() bool { return c.registered.Load() && exporters.count.Load() > 0 }

// receive takes messages until the socket is stopped.
func (i *Integration) receive() {
	defer close(i.received)
	if err := i.socket.Serve(wire.MaxProfilingMessage, i.take); err != nil {
		i.warned.once("the profiler is not heard any more: %w", err)
	}
}

// take takes a message.
func (i *Integration) take(b []byte, whole bool) {
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

// register takes a registration.
func (i *Integration) register(m wire.ProfilingRegistration) {
	c := &i.correlations
	delay := time.Duration(m.SamplesDelayMS) * time.Millisecond
	if limit := i.settings.maxDelay; delay > limit {
		i.warned.once("the profiler asks to wait for %v: transactions wait for %v", delay, limit)
		delay = limit
	}
	c.delay.Store(int64(delay))
	if m.HostID != "" {
		// The first one stays: resources do not change, and hosts do not either.
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

func (i *Integration) warnHostID(profiler, other string) {
	i.warned.once("the profiler reports with %s %q, and spans with %q: some correlations will not work", hostIDKey, profiler, other)
}

// correlate takes a correlation.
func (i *Integration) correlate(m wire.ProfilingCorrelation) {
	c := &i.correlations
	if !c.on() {
		c.counters.early.Add(1)
		if c.registered.Load() {
			i.warned.once("the profiler sends stack traces and no exporter takes them: use NewExporter")
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
		// Without the lock: who is told may trace that, and export it at once.
		i.warned.once("more samples than there is room for: transactions will not have all of them")
	}
	c.counters.correlations.Add(1)
}

// addIfKnown adds so many samples of a stack trace to a transaction, if it is known and
// there is room for them.
func (c *correlations) addIfKnown(k sdkspan.Key, stackTrace [16]byte, count int) (known, added bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known(k) {
		return false, false
	}
	return true, c.add(k, stackTrace, count)
}

// end has a transaction wait for the exporters that there are.
func (c *correlations) end(k sdkspan.Key) {
	if n := exporters.count.Load(); n > 0 {
		c.ended.add(k, endedTransaction{now(), n})
	}
}

// endOf returns when a transaction has ended, if it is known. The exporter's processor may
// come before the Integration: then a transaction that is live here ends now.
func (c *correlations) endOf(k sdkspan.Key) (at uint64, known bool) {
	t, known := c.ended.find(k, false)
	if !known {
		if c.isLive(k) {
			return now(), true
		}
		t, known = c.ended.find(k, false) // it may have ended here meanwhile
	}
	return t.at, known
}

// known reports whether there is a sampled transaction that is live or waits for
// exporters.
func (c *correlations) known(k sdkspan.Key) bool {
	_, ok := c.ended.find(k, false)
	return ok || c.isLive(k)
}

// isLive reports whether there is a sampled transaction that is live.
func (c *correlations) isLive(k sdkspan.Key) bool {
	var n cells.Span
	return c.table.Load(c.table.Find(k), &n) && n.LocalRootSpanID == k.SpanID && n.TraceFlags&sampled != 0
}

// add adds them, all or none. mu is held.
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
	if s.total+count > maxSamples || s.total+count > fewSamples && c.all+count > maxAllSamples {
		return false
	}
	c.samples[k] = s
	s.counts[stackTrace] += count
	s.total += count
	c.all += count
	return true
}

// sweep forgets the samples of transactions that were evicted, or never exported.
func (c *correlations) sweep() {
	for k := range c.samples {
		if !c.known(k) {
			c.forget(k)
		}
	}
	c.sweepAt = max(firstSweep, 2*len(c.samples))
}

func (c *correlations) forget(k sdkspan.Key) {
	if s := c.samples[k]; s != nil {
		c.all -= s.total
		delete(c.samples, k)
	}
}

func keyOf(s sdktrace.ReadOnlySpan) sdkspan.Key {
	k, _, _ := sdkspan.Ended(s)
	return k
}

// collect returns the stack trace ids of a transaction that an exporter exports. Behind
// the last exporter it is forgotten.
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
		slices.Sort(ids) // in any order, but always the same
	}
	if t.exports <= 0 && !c.isLive(k) {
		c.forget(k)
	}
	return ids
}

// complete returns the resource that spans with this one are exported with: with the
// profiler's host.id if it has none.
func (i *Integration) complete(r *resource.Resource) *resource.Resource {
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
		// Resources of one schema merge; this one has none.
		to, _ = resource.Merge(r, resource.NewSchemaless(hostIDKey.String(*id)))
	} else if own.String() != *id {
		i.warnHostID(*id, own.String())
	}
	c.completed.Store(&completedResource{r, to})
	return to
}

// wake has exporters look again at what waits. Those in a bubble do so when the delay from before is
// over, since the caller is outside.
func (c *correlations) wake() {
	for _, e := range exporters.each() {
		if !e.bubbled {
			e.rearm()
		}
	}
}

// release has all exporters export what waits.
func (c *correlations) release(ctx context.Context) error {
	var errs []error
	for _, e := range exporters.each() {
		errs = append(errs, e.release(ctx, true))
	}
	return errors.Join(errs...)
}
