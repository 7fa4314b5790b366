// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"encoding/hex"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

// TestStackTraceIDs checks that every exporter gets the stack traces that a profiler sends through
// the socket. The messages are the example of the specification.
func TestStackTraceIDs(t *testing.T) {
	s := newService(t)
	second, _ := s.second()
	send := sender(t, s.socket.Path())
	transaction := s.start("transaction")
	for _, m := range []struct {
		id    string
		count uint16
	}{
		{"60b420bb3851d9d47acb933dbe70399b", 2},
		{"4c9326bb9805fa8f85882c12eae724ce", 1},
		{"60b420bb3851d9d47acb933dbe70399b", 1},
	} {
		c := correlation(transaction, 0, m.count)
		_, err := hex.Decode(c.StackTraceID[:], []byte(m.id))
		require.NoError(t, err)
		require.NoError(t, send(c.Encode()))
	}
	require.Eventually(t, func() bool { return s.processor.Stats() == Stats{Correlations: 3} }, testenv.Patience, time.Millisecond)
	transaction.SetAttributes(attribute.String("kept", "yes"))
	transaction.End()
	require.NoError(t, s.provider.ForceFlush(t.Context()))
	span := s.wait(1)[0]
	assert.ElementsMatch(t, []string{
		"YLQguzhR2dR6y5M9vnA5mw", "YLQguzhR2dR6y5M9vnA5mw", "TJMmu5gF-o-FiCwS6uckzg", "YLQguzhR2dR6y5M9vnA5mw",
	}, stackTraceIDs(span))
	assert.Contains(t, span.Attributes, attribute.String("kept", "yes"))
	require.Len(t, second.GetSpans(), 1)
	assert.Equal(t, stackTraceIDs(span), stackTraceIDs(second.GetSpans()[0]))
	transactions, samples := s.remembered()
	assert.Zero(t, transactions+samples, "state of an exported transaction must be removed")
}

// TestCorrelationsAfterTheEnd checks that a correlation adds its stack traces to its own
// transaction only, even if several transactions are waiting.
func TestCorrelationsAfterTheEnd(t *testing.T) {
	s := newService(t)
	s.hold()
	ctx, one := s.tracer.Start(t.Context(), "one")
	other := s.start("other")
	_, child := s.tracer.Start(ctx, "child")
	child.End()
	one.End()
	other.End()
	s.send(correlation(one, 1, 1))
	s.send(correlation(child, 2, 1)) // not a transaction
	require.Equal(t, []string{"child"}, s.exported.names(), "only the child is exported at once")
	s.send(registration(0)) // With this delay, all waiting transactions are due.
	for _, span := range s.wait(3) {
		assert.Len(t, stackTraceIDs(span), map[string]int{"one": 1}[span.Name], span.Name)
	}
	assert.EqualValues(t, 1, s.processor.Stats().UnknownTransactions)
	s.send(correlation(one, 1, 1)) // after the export
	assert.EqualValues(t, 2, s.processor.Stats().UnknownTransactions)
}

// TestDelay checks that the last registration determines the delay of transactions, even of those
// that are already waiting. The delay is one second without a registration, and never exceeds the
// limit.
func TestDelay(t *testing.T) {
	t.Run("default", func(t *testing.T) { testDelay(t, 30*time.Second) })
	t.Run("option", func(t *testing.T) { testDelay(t, 90*time.Second, WithMaxDelay(90*time.Second)) })
}

func testDelay(t *testing.T, limit time.Duration, opts ...Option) {
	t.Helper()
	handled := oteltest.HandledErrors(t)
	s := newService(t, opts...)
	// Create the Integration outside the bubble: its goroutines block in system calls, which would
	// stop the bubble's clock.
	synctest.Test(t, func(t *testing.T) {
		var from time.Time
		end := func() {
			s.exported.Reset()
			s.start("transaction").End()
			from = time.Now()
		}
		exportedAfter := func(want time.Duration) {
			t.Helper()
			time.Sleep(want - time.Since(from) - 1)
			synctest.Wait()
			require.Empty(t, s.exported.GetSpans(), "before %v", want)
			time.Sleep(2 * time.Nanosecond)
			synctest.Wait()
			require.Len(t, s.exported.GetSpans(), 1, "after %v", want)
		}
		end()
		exportedAfter(time.Second)
		s.send(registration(limit))
		end()
		time.Sleep(50 * time.Millisecond)
		s.send(registration(200 * time.Millisecond))
		exportedAfter(200 * time.Millisecond)
		end()
		time.Sleep(50 * time.Millisecond)
		s.start("longer delay").End()
		exportedAfter(200 * time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		require.Len(t, s.exported.GetSpans(), 2)
		for range 2 {
			s.send(wire.ProfilingRegistration{SamplesDelayMS: 1<<32 - 1})
		}
		end()
		exportedAfter(limit)
		s.send(registration(0))
		end()
		require.Len(t, s.exported.GetSpans(), 1, "at once")
	})
	requireReported(t, handled, "asks for a delay")
}

func TestOnlySampledLocalRootsWait(t *testing.T) {
	s := newServiceWith(t, []sdktrace.TracerProviderOption{sdktrace.WithSampler(byName{})})
	s.hold()
	remote := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
	ctx, root := s.tracer.Start(t.Context(), "root")
	_, child := s.tracer.Start(ctx, "child")
	_, newRoot := s.tracer.Start(ctx, "new root", trace.WithNewRoot())
	_, remoteChild := s.tracer.Start(remote, "child of a remote span")
	unsampled := s.start("record only")
	for _, span := range []trace.Span{child, newRoot, remoteChild, unsampled, root} {
		span.End()
	}
	assert.Equal(t, []string{"child"}, s.exported.names(), "local roots wait, others do not")
	s.send(correlation(unsampled, 1, 1))
	assert.EqualValues(t, 1, s.processor.Stats().UnknownTransactions, "it is not exported")
	require.NoError(t, s.provider.ForceFlush(t.Context()))
	assert.ElementsMatch(t, []string{"child", "new root", "child of a remote span", "root"}, s.exported.names())
}

// byName is a sampler that decides by the name of the span.
type byName struct{}

func (byName) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	if strings.HasPrefix(p.Name, "record only") {
		r.Decision = sdktrace.RecordOnly
	}
	return r
}

func (byName) Description() string { return "by name" }

func TestAFullQueueExportsAtOnce(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t, WithBufferSize(3))
	s.hold()
	for n := range byte(6) {
		span := s.start(strconv.FormatUint(uint64(n), 10))
		s.send(correlation(span, n, 1))
		span.End()
	}
	assert.Equal(t, []string{"3", "4", "5"}, s.exported.names())
	assert.Len(t, stackTraceIDs(s.exported.GetSpans()[0]), 1, "stack traces received so far")
	assert.EqualValues(t, 3, s.processor.Stats().NotDeferred)
	requireReported(t, handled, "the queue of 3 transactions is full")
	require.NoError(t, s.processor.ForceFlush(t.Context()))
	assert.Equal(t, []string{"3", "4", "5", "0", "1", "2"}, s.exported.names(), "all are exported, in first-in, first-out order")
}

func TestAutoWaitsForARegistration(t *testing.T) {
	s := newService(t, WithMode(ModeAuto))
	run := func(name string) {
		span := s.start(name)
		s.send(correlation(span, 1, 1))
		span.End()
	}
	run("before")
	require.Equal(t, []string{"before"}, s.exported.names(), "not deferred")
	assert.Empty(t, stackTraceIDs(s.exported.GetSpans()[0]), "nor correlated")
	assert.EqualValues(t, 1, s.processor.Stats().Early)

	s.hold()
	run("after")
	assert.Equal(t, []string{"before"}, s.exported.names())
	require.NoError(t, s.provider.ForceFlush(t.Context()))
	require.Equal(t, []string{"before", "after"}, s.exported.names())
	assert.Len(t, stackTraceIDs(s.exported.GetSpans()[1]), 1)
}

func TestDisabledDoesNothing(t *testing.T) {
	s := newService(t, WithMode(ModeDisabled))
	s.start("span").End()
	assert.Equal(t, []string{"span"}, s.exported.names())
	assert.Nil(t, current.Load())
	require.NoError(t, s.processor.ForceFlush(t.Context()))
}

// TestHostID checks that the profiler's host id is added to all spans whose resource has none, and
// that a mismatch is reported once.
func TestHostID(t *testing.T) {
	hostIDs := func(s *service) (ids []string) {
		for _, span := range s.exported.GetSpans() {
			ids = append(ids, value(span.Resource.Attributes(), "host.id").AsString())
		}
		return ids
	}
	for name, tt := range map[string]struct {
		own      []attribute.KeyValue
		profiler []string // the host ids in the registrations, in order
		want     string
		told     []string
	}{
		"is added when there is none":          {nil, []string{"host-1"}, "host-1", nil},
		"first host id stays":                  {nil, []string{"host-1", "host-2"}, "host-1", []string{`"host-1"`, `"host-2"`}},
		"is not overwritten, with one warning": {[]attribute.KeyValue{attribute.String("host.id", "mine")}, []string{"host-1"}, "mine", []string{`"mine"`, `"host-1"`}},
		"is the same":                          {[]attribute.KeyValue{attribute.String("host.id", "host-1")}, []string{"host-1"}, "host-1", nil},
		"is empty":                             {nil, []string{""}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			handled := oteltest.HandledErrors(t)
			s := newServiceWith(t, withResource(tt.own...))
			for _, id := range tt.profiler {
				s.send(wire.ProfilingRegistration{HostID: id})
			}
			ctx, parent := s.tracer.Start(t.Context(), "parent")
			_, child := s.tracer.Start(ctx, "child")
			child.End()
			parent.End()
			s.wait(2)
			assert.Equal(t, []string{tt.want, tt.want}, hostIDs(s))
			assert.Equal(t, "shop", value(s.exported.GetSpans()[0].Resource.Attributes(), "service.name").AsString())
			requireReported(t, handled, tt.told...)
		})
	}
	t.Run("added from the registration on", func(t *testing.T) {
		s := newServiceWith(t, withResource())
		s.correlations.delay.Store(0)
		s.start("before").End()
		s.send(registration(0))
		s.start("after").End()
		assert.Equal(t, []string{"", "host-1"}, hostIDs(s))
	})
	t.Run("mismatch is reported at the registration", func(t *testing.T) {
		handled := oteltest.HandledErrors(t)
		s := newService(t, WithResource(serviceResource(attribute.String("host.id", "mine"))))
		s.send(registration(0))
		requireReported(t, handled, `"mine"`)
	})
}

func TestMessagesThatAreOfNoUse(t *testing.T) {
	s := newService(t)
	ctx, transaction := s.tracer.Start(t.Context(), "transaction")
	_, child := s.tracer.Start(ctx, "child")
	defer transaction.End()
	defer child.End()
	valid := correlation(transaction, 0, 1)
	send := sender(t, s.socket.Path())
	for _, m := range [][]byte{
		{}, valid.Encode()[:20], append(valid.Encode(), 1), make([]byte, 10_000), // the last one is longer than any valid message
	} {
		require.NoError(t, send(m))
	}
	require.Eventually(t, func() bool { return s.processor.Stats().Malformed == 4 }, testenv.Patience, time.Millisecond)
	s.handleMessage([]byte{9, 0, 1, 0}, true)
	s.send(correlation(child, 1, 1))
	other, none := valid, valid
	other.TraceID[0]++
	s.send(other)
	s.send(wire.ProfilingCorrelation{Count: 1})
	want := Stats{Malformed: 4, UnknownTypes: 1, UnknownTransactions: 3}
	assert.Equal(t, want, s.processor.Stats())
	none.Count = 0
	s.send(none)
	newer := append(valid.Encode(), "more"...)
	newer[2] = 2
	s.handleMessage(newer, true)
	want.Correlations = 2
	assert.Equal(t, want, s.processor.Stats())
}

// TestAHostileSender checks that a malicious sender that knows one transaction can neither exhaust
// the memory nor use up the limits of other transactions.
func TestAHostileSender(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t)
	s.hold()
	victim, other := s.start("victim"), s.start("other")
	// flood sends more samples than a transaction may have, and malformed messages.
	flood := func(span trace.Span) {
		c := correlation(span, 0, 0)
		for n := range 400 {
			c.Count, c.StackTraceID[0], c.StackTraceID[1] = uint16(n), byte(n), byte(n>>8)
			s.send(c)
			s.handleMessage(c.Encode()[:n%46], true)
		}
	}
	flood(victim)
	_, samples := s.remembered()
	assert.LessOrEqual(t, samples, maxSamples)
	assert.Greater(t, samples, maxSamples/2)
	const more = 20
	for range more {
		span := s.start("more")
		flood(span)
		defer span.End()
	}
	size, samples := s.remembered()
	assert.LessOrEqual(t, samples, maxAllSamples+(1+more)*fewSamples)
	assert.Greater(t, samples, maxAllSamples/2)
	assert.Positive(t, s.processor.Stats().Dropped)
	requireReported(t, handled, "too many samples")

	// Correlations of unknown transactions must not use memory.
	for n := range byte(200) {
		s.send(wire.ProfilingCorrelation{TraceID: [16]byte{n, 1}, Count: 1})
	}
	after, _ := s.remembered()
	assert.Equal(t, size, after)

	s.send(correlation(other, 7, 3))
	victim.End()
	other.End()
	require.NoError(t, s.processor.ForceFlush(t.Context()))
	spans := s.wait(2)
	assert.LessOrEqual(t, len(stackTraceIDs(spans[0])), maxSamples)
	assert.Equal(t, []string{"BwAAAAAAAAAAAAAAAAAAAA", "BwAAAAAAAAAAAAAAAAAAAA", "BwAAAAAAAAAAAAAAAAAAAA"}, stackTraceIDs(spans[1]))
}

// TestWarningsAreReportedWithoutLocks checks that an error handler may start a span and export it
// at once.
func TestWarningsAreReportedWithoutLocks(t *testing.T) {
	s := newService(t)
	s.send(registration(0))
	oteltest.HandledErrors(t) // restores the handler at the end
	var told atomic.Bool
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {
		s.start("what is wrong").End()
		told.Store(true)
	}))
	span := s.start("transaction")
	defer span.End()
	go func() { // would deadlock if the error handler were called while a lock is held
		for n := range byte(2) {
			s.send(correlation(span, n, maxSamples-1))
		}
	}()
	require.Eventually(t, told.Load, testenv.Patience, time.Millisecond)
	assert.Equal(t, []string{"what is wrong"}, s.exported.names())
}

// TestSamplesOfTransactionsThatAreNeverExported checks that these samples are removed once there
// are many of them.
func TestSamplesOfTransactionsThatAreNeverExported(t *testing.T) {
	s := newService(t)
	c := &s.correlations
	for n := range 3 * firstSweep {
		k := sdkspan.Key{TraceIDHigh: 1, TraceIDLow: 2, SpanID: uint64(n) + 1}
		c.mu.Lock()
		require.True(t, c.add(k, [16]byte{1}, 1))
		c.mu.Unlock()
	}
	transactions, samples := s.remembered()
	assert.LessOrEqual(t, transactions, firstSweep+1)
	assert.Equal(t, transactions, samples)
}

// TestEndedTransactionsThatAreNeverExported checks that the oldest of these transactions are
// evicted first.
func TestEndedTransactionsThatAreNeverExported(t *testing.T) {
	const room = 100
	// Use a single shard. With several, a shard that gets few transactions evicts late.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	e := newEndedTransactions(room)
	key := func(n int) sdkspan.Key { return sdkspan.Key{TraceIDHigh: 1, SpanID: uint64(n) + 1} }
	const all = 100*room + room/2
	known := 0
	for n := range all {
		e.add(key(n), endedTransaction{uint64(n), 1})
	}
	for n := range all {
		got, ok := e.find(key(n), false)
		if ok {
			known++
			assert.EqualValues(t, n, got.endedAt)
		}
		assert.True(t, ok || n < all-room, n)
	}
	assert.LessOrEqual(t, known, 2*room)
	_, ok := e.find(key(0), true)
	assert.False(t, ok)
}
