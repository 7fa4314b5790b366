// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/reader"
)

// requests returns the number of requests to each endpoint, as package reader reads them.
func requests(t *testing.T) map[string]uint64 {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	layout, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	all, err := p.Names(layout.Names, nil)
	require.NoError(t, err)
	counts, err := p.Requests(layout.Requests, len(all))
	require.NoError(t, err)
	require.Len(t, counts, len(all))
	some := map[string]uint64{}
	for i, n := range counts {
		if n > 0 {
			some[all[i]] = n
		}
	}
	return some
}

// TestRequests checks which spans count as requests, and under which name.
func TestRequests(t *testing.T) {
	remote := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	for name, tt := range map[string]struct {
		run  func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span))
		want map[string]uint64
	}{
		"a remote parent": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			_, span := start(remote, "GET /")
			span.End()
		}, map[string]uint64{"GET /": 1}},
		"children": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			ctx, root := start(t.Context(), "GET /")
			ctx, child := start(ctx, "query")
			_, grandchild := start(ctx, "GET /")
			grandchild.End()
			child.End()
			root.End()
			_, late := start(ctx, "late")
			late.End()
		}, map[string]uint64{"GET /": 1}},
		"not ended": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			_, span := start(t.Context(), "GET /")
			t.Cleanup(func() { span.End() })
		}, map[string]uint64{}},
		"ended twice, and by another goroutine": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			_, span := start(t.Context(), "GET /")
			apart(func() { span.End() })
			span.End()
		}, map[string]uint64{"GET /": 1}},
		"a new root": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			ctx, span := start(t.Context(), "GET /")
			_, job := start(ctx, "job", trace.WithNewRoot())
			job.End()
			span.End()
		}, map[string]uint64{"GET /": 1, "job": 1}},
		"renamed": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			ctx, span := start(t.Context(), "GET")
			span.SetName("GET /cart/{id}")
			Refresh(ctx)
			span.End()
			_, unpublished := start(t.Context(), "GET")
			unpublished.SetName("GET /user/{id}")
			unpublished.End()
		}, map[string]uint64{"GET /cart/{id}": 1, "GET": 1}},
		"no name": {func(start func(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span)) {
			for i := range names.Capacity {
				_, span := start(t.Context(), fmt.Sprint("span ", i))
				span.SetName("")
				span.End()
			}
		}, nil},
	} {
		for _, sampler := range []sdktrace.Sampler{sdktrace.AlwaysSample(), sdktrace.NeverSample()} {
			t.Run(name+"/"+sampler.Description(), func(t *testing.T) {
				s := serve(t).publishAll(t, sampler)
				tt.run(s.tracer.Start)
				got := requests(t)
				if tt.want == nil { // All names that found room count once.
					assert.Len(t, got, names.Capacity-1)
					assert.EqualValues(t, 1, s.processor.Stats().SpansWithoutName)
					return
				}
				assert.Equal(t, tt.want, got)
			})
		}
	}
}

// TestRequestsOfSeveralProviders checks that requests are counted once, no matter how many providers and goroutines
// there are, and that the numbers start again once spans are published again.
func TestRequestsOfSeveralProviders(t *testing.T) {
	const each = 1000
	for range 2 {
		t.Run("", func(t *testing.T) {
			s := serve(t)
			other := s.publishAll(t, sdktrace.TraceIDRatioBased(0.01))
			goroutines := 4 * runtime.GOMAXPROCS(0)
			var all sync.WaitGroup
			for i := range goroutines {
				all.Go(func() {
					for range each {
						ctx, span := s.tracer.Start(t.Context(), fmt.Sprint("GET /", i%2))
						_, child := other.tracer.Start(ctx, "query")
						child.End()
						span.End()
						_, job := other.tracer.Start(t.Context(), "job")
						job.End()
					}
				})
			}
			all.Wait()
			half := uint64(goroutines * each / 2)
			assert.Equal(t, map[string]uint64{"GET /0": half, "GET /1": half, "job": 2 * half}, requests(t))
		})
	}
}
