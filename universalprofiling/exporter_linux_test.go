// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/wire"
)

// recorder is an exporter that is told how to behave.
type recorder struct {
	mu       sync.Mutex
	exported []sdktrace.ReadOnlySpan
	closed   bool
	busy     atomic.Int32
	export   func(ctx context.Context) error
}

func newRecorder() *recorder { return &recorder{export: func(context.Context) error { return nil }} }

func (r *recorder) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if r.busy.Add(1) > 1 {
		panic("called concurrently")
	}
	defer r.busy.Add(-1)
	err := r.export(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.exported = append(r.exported, spans...)
	}
	return err
}

func (r *recorder) Shutdown(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *recorder) spans() []sdktrace.ReadOnlySpan {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]sdktrace.ReadOnlySpan{}, r.exported...)
}

// batched is a provider as services have them.
func batched(t *testing.T, next sdktrace.SpanExporter, integrationFirst bool) *sdktrace.TracerProvider {
	t.Helper()
	supported(t)
	i, err := New(WithSocketDir(t.TempDir()), WithEnabled(Enabled))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, i.Shutdown(context.Background())) })
	i.correlations.delay.Store(int64(time.Hour))
	opts := []sdktrace.TracerProviderOption{sdktrace.WithSpanProcessor(i), sdktrace.WithBatcher(i.NewExporter(next))}
	if !integrationFirst {
		opts[0], opts[1] = opts[1], opts[0]
	}
	return sdktrace.NewTracerProvider(opts...)
}

// Whatever the order of the processors, ForceFlush and Shutdown export everything.
func TestForceFlushAndShutdownExportEverything(t *testing.T) {
	for name, integrationFirst := range map[string]bool{"integration first": true, "exporter first": false} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder()
			tp := batched(t, r, integrationFirst)
			start := func(n int) {
				for range n {
					ctx, span := tp.Tracer("test").Start(t.Context(), "transaction")
					_, child := tp.Tracer("test").Start(ctx, "child")
					child.End()
					span.End()
				}
			}
			start(600)
			require.NoError(t, tp.ForceFlush(t.Context()))
			require.Len(t, r.spans(), 1200)
			start(600)
			require.NoError(t, tp.Shutdown(t.Context()))
			assert.Len(t, r.spans(), 2400)
			assert.True(t, r.closed)
		})
	}
}

func TestFlushingHonoursItsContext(t *testing.T) {
	s := newService(t)
	s.send(registration(maxDelay))
	r := newRecorder()
	r.export = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	e := s.NewExporter(r)
	s.provider.RegisterSpanProcessor(sdktrace.NewSimpleSpanProcessor(e))
	_, span := s.tracer.Start(t.Context(), "span")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	from := time.Now()
	require.ErrorIs(t, s.ForceFlush(ctx), context.DeadlineExceeded)
	assert.Less(t, time.Since(from), 5*time.Second)
	require.ErrorIs(t, e.Shutdown(ctx), context.DeadlineExceeded)
	assert.True(t, r.closed)
	require.NoError(t, e.Shutdown(ctx), "once")
}

func TestWhatCannotBeExportedAtShutdownIsTold(t *testing.T) {
	s := newService(t)
	s.send(registration(maxDelay))
	r := newRecorder()
	e := s.NewExporter(r)
	s.provider.RegisterSpanProcessor(sdktrace.NewSimpleSpanProcessor(e))
	_, span := s.tracer.Start(t.Context(), "span")
	span.End()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	err := e.Shutdown(done)
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "1 transactions are not exported")
	assert.True(t, r.closed)
}

func TestErrorsOfExportsThatWaitedAreReported(t *testing.T) {
	handled := errorsHandled(t)
	s := newService(t)
	s.send(registration(50 * time.Millisecond))
	r := newRecorder()
	failure := errors.New("refused")
	r.export = func(context.Context) error { return failure }
	s.provider.RegisterSpanProcessor(sdktrace.NewSimpleSpanProcessor(s.NewExporter(r)))
	_, span := s.tracer.Start(t.Context(), "span")
	span.End()
	require.Eventually(t, func() bool { return len(handled()) == 1 }, patience, time.Millisecond)
	assert.ErrorIs(t, handled()[0], failure)
	s.wait(1) // the other exporter has nothing to do with it
}

// Spans end, wait, are flushed and told of all at once; none is lost or exported twice.
func TestExportersUnderFire(t *testing.T) {
	s := newService(t, WithBufferSize(50))
	s.send(registration(time.Millisecond))
	r := newRecorder()
	s.provider.RegisterSpanProcessor(sdktrace.NewSimpleSpanProcessor(s.NewExporter(r)))
	var wg, background sync.WaitGroup
	var stop atomic.Bool
	background.Go(func() {
		for !stop.Load() {
			_ = s.ForceFlush(t.Context())
			s.register(registration(time.Duration(time.Now().UnixNano() % 3e6)))
		}
	})
	const goroutines, each = 4, 500
	for range goroutines {
		wg.Go(func() {
			for range each {
				_, span := s.tracer.Start(t.Context(), "span")
				sc := span.SpanContext()
				s.correlate(wire.ProfilingCorrelation{TraceID: sc.TraceID(), TransactionID: sc.SpanID(), Count: 1})
				span.End()
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	background.Wait()
	require.NoError(t, s.ForceFlush(t.Context()))
	seen := map[string]int{}
	for _, span := range r.spans() {
		seen[span.SpanContext().SpanID().String()]++
	}
	assert.Len(t, seen, goroutines*each)
	for id, n := range seen {
		assert.Equal(t, 1, n, id)
	}
	assert.Len(t, s.exported.GetSpans(), goroutines*each)
}
