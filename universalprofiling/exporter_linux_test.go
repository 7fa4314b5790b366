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

// TestNoExporter checks that NewExporter(nil) returns nil. The SDK's batch processor then exports
// nothing.
func TestNoExporter(t *testing.T) {
	assert.Nil(t, NewExporter(nil))
	tp := sdktrace.NewTracerProvider(sdktrace.WithBatcher(NewExporter(nil)))
	_, span := tp.Tracer("test").Start(t.Context(), "a")
	span.End()
	require.NoError(t, tp.Shutdown(t.Context()))
}

// TestManyTransactionsAreFlushed checks that ForceFlush and Shutdown export all waiting
// transactions, even if that takes several batches. TestEveryOrder does the same with one
// transaction, for every order of processors.
func TestManyTransactionsAreFlushed(t *testing.T) {
	s := newService(t)
	s.hold()
	for _, flush := range []func(context.Context) error{s.provider.ForceFlush, s.provider.Shutdown} {
		s.exported.Reset()
		for range 2*maxBatch + 100 {
			s.start("transaction").End()
		}
		require.Empty(t, s.exported.GetSpans())
		require.NoError(t, flush(t.Context()))
		assert.Len(t, s.exported.GetSpans(), 2*maxBatch+100)
	}
	assert.True(t, s.exported.closed.Load())
}

// TestFlushingHonoursItsContext checks that an export that hangs ends with its context. The
// remaining transactions must be exported later, or Shutdown must report that they were not
// exported.
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
	require.ErrorIs(t, s.processor.ForceFlush(ctx), context.Canceled)
	s.start("another").End()
	require.ErrorIs(t, s.processor.ForceFlush(ctx), context.Canceled)
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

// TestExportersUnderFire checks that no span is lost or exported twice while spans end, wait, and
// are correlated and flushed concurrently.
func TestExportersUnderFire(t *testing.T) {
	s := newService(t, WithBufferSize(50))
	s.send(registration(time.Millisecond))
	r, _ := s.second()
	var wg, background sync.WaitGroup
	var stop atomic.Bool
	background.Go(func() {
		for !stop.Load() {
			_ = s.processor.ForceFlush(t.Context())
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
	require.NoError(t, s.processor.ForceFlush(t.Context()))
	seen := map[string]int{}
	for _, span := range r.GetSpans() {
		seen[span.SpanContext.SpanID().String()]++
	}
	assert.Len(t, seen, goroutines*each)
	assert.Len(t, r.GetSpans(), goroutines*each)
	assert.Len(t, s.exported.GetSpans(), goroutines*each)
}
