// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

//go:noinline
func waitIn(ctx context.Context, tp *sdktrace.TracerProvider, end <-chan struct{}) {
	_, span := tp.Tracer("").Start(ctx, "waits")
	defer span.End()
	<-end
}

// publishing returns a provider whose spans this process publishes, and a reader of this process. Both are closed when the test
// ends.
func publishing(t *testing.T) (*sdktrace.TracerProvider, *reader.Process) {
	t.Helper()
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.Empty()),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()), // so that tp.Shutdown withdraws the context, too
		spanctx.WithPublishing(),
	)
	t.Cleanup(func() { assert.NoError(t, tp.Shutdown(context.Background())) })
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return tp, p
}

// TestGoroutines checks that Goroutines finds the state, the wait reason and the stack of a
// goroutine of its own process, and reports the goroutine as gone after it has exited.
func TestGoroutines(t *testing.T) {
	tp, p := publishing(t)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		waitIn(t.Context(), tp, end)
	}()
	var ref reader.GoroutineRef
	look := func() reader.Goroutine {
		if ref.G == 0 {
			spans, err := p.Spans(t.Context())
			require.NoError(t, err)
			if len(spans) == 0 {
				return reader.Goroutine{}
			}
			ref = spans[0].Starter
		}
		found, err := p.Goroutines(t.Context(), []reader.GoroutineRef{ref, {ID: ref.ID + 1000, G: ref.G}, {ID: 1, G: 64}}, reader.GoroutineOptions{Stacks: true})
		require.NoError(t, err)
		require.Len(t, found.Goroutines, 3)
		if found.StateErr != nil {
			return reader.Goroutine{} // the only goroutine was running, so there was no parked one for the calibration
		}
		assert.Equal(t, reader.GoroutineGone, found.Goroutines[1].State)
		assert.Equal(t, reader.GoroutineUnknown, found.Goroutines[2].State)
		require.ErrorIs(t, found.Goroutines[2].StackErr, reader.ErrNoStack)
		return found.Goroutines[0]
	}
	var g reader.Goroutine
	require.Eventually(t, func() bool { g = look(); return g.WaitReason == "chan receive" }, testenv.Patience, time.Millisecond)
	assert.Equal(t, reader.GoroutineWaiting, g.State)
	assert.Equal(t, ref, g.GoroutineRef)
	require.NoError(t, g.StackErr)
	var functions []string
	for _, pc := range g.Stack {
		functions = append(functions, runtime.FuncForPC(uintptr(pc)).Name())
	}
	assert.Equal(t, "runtime.gopark", functions[0])
	assert.Contains(t, functions, "github.com/otelctx/otelctx/reader_test.waitIn")

	close(end)
	<-ended
	assert.Eventually(t, func() bool { return look().State == reader.GoroutineGone }, testenv.Patience, time.Millisecond)
	_, err := p.Goroutines(canceled(), []reader.GoroutineRef{ref}, reader.GoroutineOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestGoroutinesWaitedFor checks that WaitedFor is never longer than the wait, although the runtime
// stores a time before it, and that it is known once another goroutine has shown a later collection.
func TestGoroutinesWaitedFor(t *testing.T) {
	tp, p := publishing(t)
	const apart = 50 * time.Millisecond // The collections are this far from the starts of the waits.
	end := make(chan struct{})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer close(end)
	waits := func() []reader.Goroutine {
		spans, err := p.Spans(t.Context())
		require.NoError(t, err)
		var refs []reader.GoroutineRef
		for _, s := range spans {
			refs = append(refs, s.Starter)
		}
		found, err := p.Goroutines(t.Context(), refs, reader.GoroutineOptions{})
		require.NoError(t, err)
		return found.Goroutines
	}
	count := 0
	// wait starts a goroutine that waits in a span, and returns when a collection has found it.
	wait := func() (began time.Time) {
		time.Sleep(apart)
		began = time.Now()
		waiting.Go(func() { waitIn(context.Background(), tp, end) })
		count++
		require.Eventually(t, func() bool {
			found := waits()
			return len(found) == count && found[count-1].State == reader.GoroutineWaiting
		}, testenv.Patience, time.Millisecond)
		runtime.GC()
		return began
	}
	runtime.GC()
	first := wait()
	found := waits()
	assert.LessOrEqual(t, found[0].WaitedFor, time.Since(first))
	known := time.Now()
	second := wait()
	runtime.GC()
	found = waits()
	require.Len(t, found, 2)
	assert.LessOrEqual(t, found[0].WaitedFor, time.Since(first))
	assert.Greater(t, found[0].WaitedFor, second.Sub(known), "the second goroutine has shown the end of a collection")
	assert.LessOrEqual(t, found[1].WaitedFor, time.Since(second))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
