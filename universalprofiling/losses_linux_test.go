// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// deliver sends a message to a socket, and retries while the socket's queue is full.
func deliver(t testing.TB, send func([]byte) error, m []byte) {
	t.Helper()
	err := send(m)
	for errors.Is(err, unix.EAGAIN) {
		err = send(m)
	}
	require.NoError(t, err)
}

// trickle keeps sending correlations of another transaction until the end of the test.
func (s *service) trickle() {
	send, m := sender(s.t, s.socket.Path()), correlation(s.start("another"), 9, 1).Encode()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_ = send(m)
			}
		}
	}()
	s.t.Cleanup(func() { close(stop); <-done })
}

// TestSamplesWrittenUpToTheDeadline checks that messages that the profiler has written before a
// transaction is due are exported with it. It ignores messages that were written later because the
// machine was busy.
func TestSamplesWrittenUpToTheDeadline(t *testing.T) {
	const delay, before, wave = 20 * time.Millisecond, time.Millisecond, 10
	for name, trickle := range map[string]bool{"alone": false, "with a trickle of others": true} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			s.send(registration(delay))
			if trickle {
				s.trickle()
			}
			send := sender(t, s.socket.Path())
			for inTime := 0; inTime < testenv.Rounds(100, 1_000); {
				s.exported.Reset()
				var spans [wave]trace.Span
				var deadlines [wave]time.Time
				for n := range wave {
					spans[n] = s.start("transaction")
					deadlines[n] = time.Now().Add(delay) // the transaction is not due before this time
					spans[n].End()
				}
				wrote := map[trace.SpanID]bool{}
				for n, span := range spans {
					time.Sleep(time.Until(deadlines[n].Add(-before)))
					deliver(t, send, correlation(span, 1, 1).Encode())
					wrote[span.SpanContext().SpanID()] = time.Now().Before(deadlines[n])
				}
				for _, span := range s.wait(wave) {
					if wrote[span.SpanContext.SpanID()] {
						inTime++
						require.Equal(t, 1, samplesOf(span, 1))
					}
				}
			}
		})
	}
}

// exportTriggers contains the ways to make a provider export its transactions.
var exportTriggers = map[string]func(*sdktrace.TracerProvider) error{
	"ForceFlush": func(tp *sdktrace.TracerProvider) error { return tp.ForceFlush(context.Background()) },
	"Shutdown":   func(tp *sdktrace.TracerProvider) error { return tp.Shutdown(context.Background()) },
	"delay": func(*sdktrace.TracerProvider) error {
		current.Load().correlations.delay.Store(0)
		current.Load().correlations.wake()
		return nil
	},
}

// TestEveryOrder checks that messages that the profiler has sent before the export of a transaction
// are exported with it, whatever triggers the export and in whatever order exporter, integration
// and processors are set up.
func TestEveryOrder(t *testing.T) {
	supported(t)
	dir := testenv.ShortDir(t) // shared by all cases
	for trigger, export := range exportTriggers {
		for n := range 16 {
			exporterFirst, processorFirst, twice, syncer := n&1 != 0, n&2 != 0, n&4 != 0, n&8 != 0
			name := fmt.Sprintf("%s, exporter made first=%t, its processor first=%t, integrated twice=%t, syncer=%t",
				trigger, exporterFirst, processorFirst, twice, syncer)
			t.Run(name, func(t *testing.T) {
				handled := oteltest.HandledErrors(t)
				for range testenv.Rounds(3, 70) {
					r := newRecorder()
					var e sdktrace.SpanExporter
					if exporterFirst {
						e = NewExporter(r)
					}
					opts := []Option{WithSocketDir(dir), WithMode(ModeEnabled)}
					integration := []sdktrace.TracerProviderOption{WithIntegration(opts...)}
					if twice {
						integration = append(integration, WithIntegration(opts...))
					}
					i := current.Load()
					require.NotNil(t, i)
					i.correlations.delay.Store(int64(time.Hour))
					if !exporterFirst {
						e = NewExporter(NewExporter(r))
					}
					processor := sdktrace.WithSyncer(e)
					if !syncer {
						processor = sdktrace.WithBatcher(e, sdktrace.WithBatchTimeout(time.Millisecond))
					}
					if processorFirst {
						integration = append([]sdktrace.TracerProviderOption{processor}, integration...)
					} else {
						integration = append(integration, processor)
					}
					tp := sdktrace.NewTracerProvider(integration...)
					ctx, span := tp.Tracer("test").Start(t.Context(), "transaction")
					_, child := tp.Tracer("test").Start(ctx, "child")
					child.End()
					span.End()
					deliver(t, sender(t, i.socket.Path()), correlation(span, 1, 2).Encode())
					require.NoError(t, export(tp))
					require.Eventually(t, func() bool { return len(r.GetSpans()) == 2 }, testenv.Patience, time.Millisecond)
					for _, s := range r.GetSpans() {
						assert.Equal(t, map[string]int{"transaction": 2}[s.Name], samplesOf(s, 1), s.Name)
					}
					require.NoError(t, tp.Shutdown(t.Context()))
					require.Nil(t, Current())
					require.Empty(t, exporters.each())
				}
				assert.Empty(t, handled.Take())
			})
		}
	}
}

// TestMissingHalves checks that incomplete setups are reported: an exporter without an integration,
// and stack traces without an exporter.
func TestMissingHalves(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	latest.Store(nil)
	requested.Store(false)
	reportedMissing.Store(false)
	r := newRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(NewExporter(r)))
	for range 2 {
		_, span := tp.Tracer("test").Start(t.Context(), "span")
		span.End()
	}
	assert.Len(t, r.GetSpans(), 2)
	requireReported(t, handled, "use WithIntegration")
	require.NoError(t, tp.Shutdown(t.Context()))

	supported(t)
	tp = sdktrace.NewTracerProvider(WithIntegration(WithSocketDir(testenv.ShortDir(t)), WithMode(ModeEnabled)))
	i := current.Load()
	_, span := tp.Tracer("test").Start(t.Context(), "span")
	for range 2 {
		i.handleMessage(correlation(span, 1, 1).Encode(), true)
	}
	requireReported(t, handled, "use NewExporter")
	assert.EqualValues(t, 2, i.stats().Early)
	require.NoError(t, tp.Shutdown(t.Context()))
}
