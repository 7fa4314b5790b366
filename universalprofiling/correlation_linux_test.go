// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/wire"
)

// registration is one with a delay.
func registration(delay time.Duration) wire.ProfilingRegistration {
	return wire.ProfilingRegistration{SamplesDelayMS: uint32(delay / time.Millisecond), HostID: "host-1"}
}

// The example of the specification.
func TestStackTraceIDs(t *testing.T) {
	s := newService(t)
	_, transaction := s.tracer.Start(t.Context(), "transaction")
	sc := transaction.SpanContext()
	for _, m := range []struct {
		id    string
		count uint16
	}{
		{"60b420bb3851d9d47acb933dbe70399b", 2},
		{"4c9326bb9805fa8f85882c12eae724ce", 1},
		{"60b420bb3851d9d47acb933dbe70399b", 1},
	} {
		c := wire.ProfilingCorrelation{TraceID: sc.TraceID(), TransactionID: sc.SpanID(), Count: m.count}
		_, err := hex.Decode(c.StackTraceID[:], []byte(m.id))
		require.NoError(t, err)
		s.send(c)
	}
	transaction.SetAttributes(attribute.String("kept", "yes"))
	transaction.End()
	require.NoError(t, s.provider.ForceFlush(t.Context()))
	span := s.wait(1)[0]
	assert.ElementsMatch(t, []string{
		"YLQguzhR2dR6y5M9vnA5mw", "YLQguzhR2dR6y5M9vnA5mw", "TJMmu5gF-o-FiCwS6uckzg", "YLQguzhR2dR6y5M9vnA5mw",
	}, stackTraceIDs(span))
	assert.Contains(t, span.Attributes, attribute.String("kept", "yes"))
	assert.Equal(t, Stats{Correlations: 3}, s.Stats())
	transactions, samples := s.remembered()
	assert.Zero(t, transactions+samples, "it is forgotten")
}

// What comes while the transaction waits counts, and it is the transaction's alone.
func TestCorrelationsAfterTheEnd(t *testing.T) {
	s := newService(t)
	s.send(registration(maxDelay))
	ctx, one := s.tracer.Start(t.Context(), "one")
	_, other := s.tracer.Start(t.Context(), "other")
	_, child := s.tracer.Start(ctx, "child")
	child.End()
	one.End()
	other.End()
	s.sample(one, 1, 1)
	s.sample(child, 2, 1) // no transaction
	require.Equal(t, []string{"child"}, names(s))
	s.send(registration(0)) // They have waited long enough.
	spans := s.wait(3)
	assert.Equal(t, "child", spans[0].Name, "it does not wait")
	for _, span := range spans {
		if span.Name == "one" {
			assert.Len(t, stackTraceIDs(span), 1)
		} else {
			assert.Empty(t, stackTraceIDs(span), span.Name)
		}
	}
	assert.EqualValues(t, 1, s.Stats().UnknownTransactions)
	s.sample(one, 1, 1) // too late
	assert.EqualValues(t, 2, s.Stats().UnknownTransactions)
}

func TestDefaultDelayIsOneSecond(t *testing.T) {
	s := newService(t)
	_, transaction := s.tracer.Start(t.Context(), "transaction")
	from := time.Now()
	transaction.End()
	s.wait(1)
	assert.GreaterOrEqual(t, time.Since(from), time.Second)
}

func TestDelayOfTheRegistration(t *testing.T) {
	s := newService(t)
	_, transaction := s.tracer.Start(t.Context(), "transaction")
	s.send(registration(maxDelay))
	from := time.Now()
	transaction.End()
	time.Sleep(50 * time.Millisecond)
	require.Empty(t, s.exported.GetSpans())
	// It holds for those that wait as well.
	s.send(registration(200 * time.Millisecond))
	s.wait(1)
	assert.GreaterOrEqual(t, time.Since(from), 200*time.Millisecond)
	assert.Less(t, time.Since(from), maxDelay)
	s.send(registration(0))
	_, transaction = s.tracer.Start(t.Context(), "transaction")
	transaction.End()
	s.wait(2)
}

func TestDelayIsBounded(t *testing.T) {
	handled := errorsHandled(t)
	s := newService(t)
	for range 2 {
		s.send(wire.ProfilingRegistration{SamplesDelayMS: 1<<32 - 1})
	}
	assert.EqualValues(t, 30*time.Second, s.correlations.delay.Load())
	told(t, handled)
	assert.ErrorContains(t, handled()[0], "asks to wait")
}

func TestOnlySampledLocalRootsWait(t *testing.T) {
	s := newServiceWith(t, []sdktrace.TracerProviderOption{sdktrace.WithSampler(byName{})})
	s.send(registration(30 * time.Second))
	remote := func(flags trace.TraceFlags) context.Context {
		return trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags, Remote: true,
		}))
	}
	ctx, root := s.tracer.Start(t.Context(), "root")
	_, child := s.tracer.Start(ctx, "child")
	_, newRoot := s.tracer.Start(ctx, "new root", trace.WithNewRoot())
	_, remoteChild := s.tracer.Start(remote(trace.FlagsSampled), "child of a remote span")
	_, unsampled := s.tracer.Start(t.Context(), "record only")
	for _, span := range []trace.Span{child, newRoot, remoteChild, unsampled, root} {
		span.End()
	}
	assert.Equal(t, []string{"child"}, names(s), "local roots wait, others do not")
	require.NoError(t, s.provider.ForceFlush(t.Context()))
	assert.ElementsMatch(t, []string{"child", "new root", "child of a remote span", "root"}, names(s))
}

// byName records spans without sampling them if their name says so.
type byName struct{}

func (byName) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	if strings.HasPrefix(p.Name, "record only") {
		r.Decision = sdktrace.RecordOnly
	}
	return r
}

func (byName) Description() string { return "by name" }

func names(s *service) (names []string) {
	for _, span := range s.exported.GetSpans() {
		names = append(names, span.Name)
	}
	return names
}

func TestAFullQueueExportsAtOnce(t *testing.T) {
	handled := errorsHandled(t)
	s := newService(t, WithBufferSize(3))
	s.send(registration(30 * time.Second))
	for n := range 6 {
		_, span := s.tracer.Start(t.Context(), strconv.Itoa(n))
		s.sample(span, byte(n), 1)
		span.End()
	}
	assert.Equal(t, []string{"3", "4", "5"}, names(s))
	assert.Len(t, stackTraceIDs(s.exported.GetSpans()[0]), 1, "with what there is")
	assert.EqualValues(t, 3, s.Stats().NotDeferred)
	told(t, handled)
	assert.ErrorContains(t, handled()[0], "the queue of 3 transactions is full")
	require.NoError(t, s.ForceFlush(t.Context()))
	assert.Equal(t, []string{"3", "4", "5", "0", "1", "2"}, names(s), "none is lost, first in, first out")
}

func TestAutoWaitsForARegistration(t *testing.T) {
	s := newService(t, WithEnabled(Auto))
	_, before := s.tracer.Start(t.Context(), "before")
	s.sample(before, 1, 1)
	before.End()
	assert.Equal(t, []string{"before"}, names(s), "not deferred")
	assert.Empty(t, stackTraceIDs(s.exported.GetSpans()[0]), "nor correlated")
	assert.EqualValues(t, 1, s.Stats().Early)

	s.send(registration(30 * time.Second))
	_, after := s.tracer.Start(t.Context(), "after")
	s.sample(after, 1, 1)
	after.End()
	assert.Equal(t, []string{"before"}, names(s))
	require.NoError(t, s.provider.ForceFlush(t.Context()))
	require.Equal(t, []string{"before", "after"}, names(s))
	assert.Len(t, stackTraceIDs(s.exported.GetSpans()[1]), 1)
}

func TestDisabledDoesNothing(t *testing.T) {
	s := newService(t, WithEnabled(Disabled))
	assert.Same(t, s.exported, s.NewExporter(s.exported), "no exporter of its own")
	_, span := s.tracer.Start(t.Context(), "span")
	span.End()
	assert.Equal(t, []string{"span"}, names(s))
	assert.Nil(t, active.Load())
	require.NoError(t, s.ForceFlush(t.Context()))
}

func TestHostID(t *testing.T) {
	export := func(t *testing.T, s *service, name string) (hostID any, ok bool) {
		_, span := s.tracer.Start(t.Context(), name)
		span.End()
		require.NoError(t, s.provider.ForceFlush(t.Context()))
		spans := s.exported.GetSpans()
		v, ok := spans[len(spans)-1].Resource.Set().Value("host.id")
		return v.String(), ok
	}
	t.Run("is added when there is none", func(t *testing.T) {
		handled := errorsHandled(t)
		s := newServiceWith(t, []sdktrace.TracerProviderOption{sdktrace.WithResource(serviceResource())})
		_, ok := export(t, s, "before")
		assert.False(t, ok)
		s.send(registration(0))
		got, _ := export(t, s, "after")
		assert.Equal(t, "host-1", got)
		name, _ := s.exported.GetSpans()[1].Resource.Set().Value("service.name")
		assert.Equal(t, "shop", name.AsString())
		ctx, parent := s.tracer.Start(t.Context(), "parent")
		_, child := s.tracer.Start(ctx, "child")
		child.End()
		parent.End()
		for _, span := range s.wait(4)[2:] {
			got, _ := span.Resource.Set().Value("host.id")
			assert.Equal(t, "host-1", got.AsString(), "on all spans: %s", span.Name)
		}
		assert.Empty(t, handled())
		s.send(wire.ProfilingRegistration{HostID: "host-2"})
		got, _ = export(t, s, "again")
		assert.Equal(t, "host-1", got, "the first one stays")
		told(t, handled)
	})
	t.Run("is not overwritten, with one warning", func(t *testing.T) {
		handled := errorsHandled(t)
		s := newServiceWith(t, []sdktrace.TracerProviderOption{
			sdktrace.WithResource(serviceResource(attribute.String("host.id", "mine"))),
		})
		s.send(registration(0))
		for range 3 {
			got, _ := export(t, s, "span")
			assert.Equal(t, "mine", got)
		}
		told(t, handled)
		assert.ErrorContains(t, handled()[0], `"mine"`)
		assert.ErrorContains(t, handled()[0], `"host-1"`)
	})
	t.Run("is the same", func(t *testing.T) {
		handled := errorsHandled(t)
		s := newServiceWith(t, []sdktrace.TracerProviderOption{
			sdktrace.WithResource(serviceResource(attribute.String("host.id", "host-1"))),
		})
		s.send(registration(0))
		got, _ := export(t, s, "span")
		assert.Equal(t, "host-1", got)
		assert.Empty(t, handled())
	})
	t.Run("mismatch is told at the registration", func(t *testing.T) {
		handled := errorsHandled(t)
		s := newService(t, WithResource(serviceResource(attribute.String("host.id", "mine"))))
		s.send(registration(0))
		told(t, handled)
	})
	t.Run("is empty", func(t *testing.T) {
		s := newServiceWith(t, []sdktrace.TracerProviderOption{sdktrace.WithResource(serviceResource())})
		s.send(wire.ProfilingRegistration{})
		_, ok := export(t, s, "span")
		assert.False(t, ok)
	})
}

func TestMessagesThatAreOfNoUse(t *testing.T) {
	s := newService(t)
	ctx, transaction := s.tracer.Start(t.Context(), "transaction")
	_, child := s.tracer.Start(ctx, "child")
	defer transaction.End()
	defer child.End()
	valid := wire.ProfilingCorrelation{
		TraceID: transaction.SpanContext().TraceID(), TransactionID: transaction.SpanContext().SpanID(), Count: 1,
	}
	b := valid.Encode()
	for name, m := range map[string][]byte{
		"empty": {}, "short": b[:20], "too long": append(valid.Encode(), 1), "larger than any": make([]byte, 10_000),
	} {
		before := s.Stats().Malformed
		s.deliver(m)
		assert.Equal(t, before+1, s.Stats().Malformed, name)
	}
	s.deliver([]byte{9, 0, 1, 0})
	assert.EqualValues(t, 1, s.Stats().UnknownTypes)
	s.sample(child, 1, 1)
	other := valid
	other.TraceID[0]++
	s.send(other)
	s.send(wire.ProfilingCorrelation{Count: 1})
	assert.EqualValues(t, 3, s.Stats().UnknownTransactions)
	none := valid
	none.Count = 0
	s.send(none)
	assert.EqualValues(t, 1, s.Stats().Correlations)
	newer := append(valid.Encode(), "more"...)
	newer[2] = 2
	s.deliver(newer)
	assert.EqualValues(t, 2, s.Stats().Correlations)
}

// A sender that knows a transaction cannot take the memory or the room of others.
func TestAHostileSender(t *testing.T) {
	handled := errorsHandled(t)
	s := newService(t)
	s.send(registration(30 * time.Second))
	_, victim := s.tracer.Start(t.Context(), "victim")
	_, other := s.tracer.Start(t.Context(), "other")
	flood := func(span trace.Span) {
		sc := span.SpanContext()
		for n := range 3_000 {
			c := wire.ProfilingCorrelation{TraceID: sc.TraceID(), TransactionID: sc.SpanID(), Count: uint16(n)}
			c.StackTraceID[0], c.StackTraceID[1], c.StackTraceID[2] = byte(n), byte(n>>8), byte(n>>16)
			s.take(c.Encode(), true)
			s.take(c.Encode()[:n%46], true)
		}
	}
	flood(victim)
	_, samples := s.remembered()
	assert.LessOrEqual(t, samples, maxSamples)
	for n := range 40 {
		_, span := s.tracer.Start(t.Context(), fmt.Sprint("more ", n))
		flood(span)
		defer span.End()
	}
	few := 41 * fewSamples
	size, samples := s.remembered()
	assert.LessOrEqual(t, samples, maxAllSamples+few)
	assert.Positive(t, s.Stats().Dropped)
	told(t, handled)

	// Transactions that there are not take nothing.
	for n := range 100_000 {
		s.take(wire.ProfilingCorrelation{TraceID: [16]byte{byte(n), byte(n >> 8), byte(n >> 16), 1}, Count: 1}.Encode(), true)
	}
	after, _ := s.remembered()
	assert.Equal(t, size, after)

	s.sample(other, 7, 3)
	victim.End()
	other.End()
	require.NoError(t, s.ForceFlush(t.Context()))
	spans := s.wait(2)
	assert.LessOrEqual(t, len(stackTraceIDs(spans[0])), maxSamples)
	assert.Equal(t, []string{"BwAAAAAAAAAAAAAAAAAAAA", "BwAAAAAAAAAAAAAAAAAAAA", "BwAAAAAAAAAAAAAAAAAAAA"}, stackTraceIDs(spans[1]))
}

// Who is told of an error may trace that, and export what it traces at once.
func TestWarningsAreGivenWithoutLocks(t *testing.T) {
	s := newService(t)
	s.send(registration(0))
	before := otel.GetErrorHandler()
	var told atomic.Bool
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {
		_, span := s.tracer.Start(context.Background(), "what is wrong")
		span.End()
		told.Store(true)
	}))
	t.Cleanup(func() { otel.SetErrorHandler(before) })
	_, span := s.tracer.Start(t.Context(), "transaction")
	defer span.End()
	sc := span.SpanContext()
	for n := range byte(2) {
		c := wire.ProfilingCorrelation{TraceID: sc.TraceID(), TransactionID: sc.SpanID(), StackTraceID: [16]byte{n}, Count: maxSamples - 1}
		require.NoError(t, s.sendRaw(c.Encode()))
	}
	require.Eventually(t, told.Load, patience, time.Millisecond)
	assert.Equal(t, []string{"what is wrong"}, names(s))
}

// Transactions that are never exported are forgotten when there are many.
func TestSamplesOfTransactionsThatAreNeverExported(t *testing.T) {
	s := newService(t)
	c := &s.correlations
	for n := range 3 * firstSweep {
		k := transactionKey{1, 2, uint64(n) + 1}
		c.mu.Lock()
		require.True(t, c.add(k, [16]byte{1}, 1))
		c.mu.Unlock()
	}
	transactions, samples := s.remembered()
	assert.LessOrEqual(t, transactions, firstSweep+1)
	assert.Equal(t, transactions, samples)
}

// Each exporter gets what there is.
func TestTwoExporters(t *testing.T) {
	supported(t)
	s := newService(t)
	second := newRecorder()
	s.provider.RegisterSpanProcessor(sdktrace.NewSimpleSpanProcessor(s.NewExporter(second)))
	_, span := s.tracer.Start(t.Context(), "span")
	s.sample(span, 1, 2)
	span.End()
	require.NoError(t, s.ForceFlush(t.Context()))
	assert.Len(t, stackTraceIDs(s.wait(1)[0]), 2)
	require.Len(t, second.spans(), 1)
	assert.Contains(t, second.spans()[0].Attributes(), stackTraceIDsKey.StringSlice(stackTraceIDs(s.wait(1)[0])))
	transactions, _ := s.remembered()
	assert.Zero(t, transactions)
}
