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

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// Without an exporter the SDK's batch processor exports nothing.
func TestNoExporter(t *testing.T) {
	assert.Nil(t, NewExporter(nil))
	tp := sdktrace.NewTracerProvider(sdktrace.WithBatcher(NewExporter(nil)))
	_, span := tp.Tracer("test").Start(t.Context(), "a")
	span.End()
	require.NoError(t, tp.Shutdown(t.Context()))
}

// ForceFlush and Shutdown export everything, whatever the order of the processors.
func TestForceFlushAndShutdownExportEverything(t *testing.T) {
	for name, integrationFirst := range map[string]bool{"integration first": true, "exporter first": false} {
		t.Run(name, func(t *testing.T) {
			supported(t)
			i, err := New(WithSocketDir(t.TempDir()), WithMode(Enabled))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, i.Shutdown(context.Background())) })
			i.correlations.delay.Store(int64(time.Hour))
			r := newRecorder()
			opts := []sdktrace.TracerProviderOption{sdktrace.WithSpanProcessor(i), sdktrace.WithBatcher(i.NewExporter(r))}
			if !integrationFirst {
				opts[0], opts[1] = opts[1], opts[0]
			}
			tp := sdktrace.NewTracerProvider(opts...)
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
			require.Len(t, r.GetSpans(), 1200)
			start(600)
			require.NoError(t, tp.Shutdown(t.Context()))
			assert.Len(t, r.GetSpans(), 2400)
			assert.True(t, r.closed.Load())
		})
	}
}

// An export that hangs ends with its context. The remaining transactions are exported later, or
// Shutdown reports that they are not exported.
func TestFlushingHonoursItsContext(t *testing.T) {
	s := newService(t)
	s.hold()
	r, e := s.second()
	ctx, cancel := context.WithCancel(t.Context())
	var exports atomic.Int64
	r.export = func(ctx context.Context) error {
		if exports.Add(1) == 1 {
			cancel()
			<-ctx.Done()
		}
		return ctx.Err()
	}
	s.start("span").End()
	require.ErrorIs(t, s.ForceFlush(ctx), context.Canceled)
	s.start("another").End()
	require.ErrorIs(t, s.ForceFlush(ctx), context.Canceled)
	require.Eventually(t, func() bool { return exports.Load() == 2 }, testenv.Patience, time.Millisecond, "the transaction stopped waiting")
	s.start("last").End()
	err := e.Shutdown(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "1 transactions are not exported")
	assert.True(t, r.closed.Load())
	require.NoError(t, e.Shutdown(ctx), "once")
}

func TestErrorsOfExportsThatWaitedAreReported(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t)
	s.hold()
	failure := errors.New("refused")
	r, _ := s.second()
	r.export = func(context.Context) error { return failure }
	s.start("span").End()
	s.send(registration(0))
	var errs []error
	require.Eventually(t, func() bool {
		errs = append(errs, handled.Take()...)
		return len(errs) == 1
	}, testenv.Patience, time.Millisecond)
	assert.ErrorIs(t, errs[0], failure)
	s.wait(1) // the other exporter is not affected
}

// Spans end, wait, are flushed and correlated concurrently; none is lost or exported twice.
func TestExportersUnderFire(t *testing.T) {
	s := newService(t, WithBufferSize(50))
	s.send(registration(time.Millisecond))
	r, _ := s.second()
	var wg, background sync.WaitGroup
	var stop atomic.Bool
	background.Go(func() {
		for !stop.Load() {
			_ = s.ForceFlush(t.Context())
			s.send(registration(time.Duration(time.Now().UnixNano() % 3e6)))
		}
	})
	const goroutines, each = 4, 500
	for range goroutines {
		wg.Go(func() {
			for range each {
				span := s.start("span")
				s.send(correlation(span, 0, 1))
				span.End()
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	background.Wait()
	require.NoError(t, s.ForceFlush(t.Context()))
	seen := map[string]int{}
	for _, span := range r.GetSpans() {
		seen[span.SpanContext.SpanID().String()]++
	}
	assert.Len(t, seen, goroutines*each)
	assert.Len(t, r.GetSpans(), goroutines*each)
	assert.Len(t, s.exported.GetSpans(), goroutines*each)
}
