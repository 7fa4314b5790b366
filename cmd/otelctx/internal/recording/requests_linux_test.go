// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/spanctx"
)

// TestRequestPeriodsInOrder checks that a period has its own requests if the next one, which has none, ends before they are
// counted.
func TestRequestPeriodsInOrder(t *testing.T) {
	tp := sdktrace.NewTracerProvider(spanctx.WithPublishing())
	defer func() { require.NoError(t, tp.Shutdown(context.Background())) }()
	serve := func() {
		_, span := tp.Tracer("").Start(t.Context(), "GET /")
		span.End()
	}
	serve() // The tables are published with the first span.
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	layout, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	published := newPublished(os.Getpid(), layout)
	published.service = "shop"
	program := &target{image: sampler.Image{PID: os.Getpid()}, reader: p}
	program.published.Store(published)
	program.acquire()
	s := searchOfNone()
	s.targets.add(program)
	s.countRequests(program)
	endedRequests := func(ended <-chan *requests.Period) uint64 {
		endpoint := []tally.Name[tally.Count]{{Service: "shop", Name: "GET /"}}
		requests.Set(<-ended, endpoint)
		require.NotNil(t, endpoint[0].Requests)
		return endpoint[0].Requests.Ended
	}
	for range testenv.Rounds(1000, 100_000) {
		serve()
		first, second := make(chan *requests.Period, 1), make(chan *requests.Period, 1)
		s.endRequestPeriod(first)
		s.endRequestPeriod(second)
		require.Equal(t, uint64(1), endedRequests(first))
		assert.Zero(t, endedRequests(second))
	}
	s.working.Wait()
	require.NoError(t, p.Close())
}
