// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestALargeQueue checks that no transaction is lost if the queue is larger than the maximum number
// of live spans.
func TestALargeQueue(t *testing.T) {
	testenv.NeedAll(t)
	const many = spantable.Capacity + 5_000
	s := newService(t, WithBufferSize(many))
	s.hold()
	for range many {
		span := s.start("transaction")
		span.End()
		s.send(correlation(span, 1, 1))
	}
	assert.Zero(t, s.processor.Stats().NotDeferred)
	require.NoError(t, s.processor.ForceFlush(t.Context()))
	for _, span := range s.wait(many) {
		require.Equal(t, 1, samplesOf(span, 1))
	}
}

// TestManyProviders checks that providers that are created and shut down leak nothing.
func TestManyProviders(t *testing.T) {
	supported(t)
	dir := testenv.ShortDir(t)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		for range 2 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var goroutines, open int
	var memory uint64
	r := newRecorder()
	for n := range testenv.Rounds(50, 1_000) {
		tp := sdktrace.NewTracerProvider(WithIntegration(WithSocketDir(dir), WithMode(ModeEnabled)), sdktrace.WithBatcher(NewExporter(r)))
		ctx, span := tp.Tracer("test").Start(t.Context(), "span")
		a := spanpath.Attach(ctx)
		a.Detach()
		span.End()
		require.NoError(t, tp.Shutdown(t.Context()))
		r.Reset()
		if n == 10 {
			goroutines, open, memory = runtime.NumGoroutine(), descriptors(), heap()
		}
	}
	// A goroutine of the last Integration may still be exiting.
	for end := time.Now().Add(testenv.Patience); runtime.NumGoroutine() > goroutines || descriptors() > open; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d goroutines of %d, %d descriptors of %d", runtime.NumGoroutine(), goroutines, descriptors(), open)
	}
	// Both measurements include the last Integration, which stays in memory. If another one had
	// leaked, it would add 8 MB.
	assert.Less(t, heap(), memory+4<<20)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, files)
}
