// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package wall_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/spanctx"
)

// TestSlowOutput checks that snapshots do not wait until a profile has been written.
func TestSlowOutput(t *testing.T) {
	tp := sdktrace.NewTracerProvider(spanctx.WithPublishing())
	defer func() { require.NoError(t, tp.Shutdown(context.Background())) }()
	_, span := tp.Tracer("").Start(t.Context(), "span")
	defer span.End()

	writing, written, snapshot := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var parts int
	r, err := wall.Open(t.Context(), wall.Config{
		PIDs: []int{os.Getpid()}, Frequency: 100,
		Profile: func(*profilespb.ProfilesData) {
			if parts++; parts == 1 {
				close(writing)
			}
			<-written
		},
		Progress: func(time.Duration, uint64) {
			select {
			case snapshot <- struct{}{}:
			default:
			}
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var recording sync.WaitGroup
	recording.Go(func() {
		_, err := r.Record(ctx)
		assert.NoError(t, err)
	})
	var period *wall.Result
	recording.Go(func() {
		<-snapshot
		period = r.EndPeriod()
	})
	<-writing
	patience, stop := context.WithTimeout(t.Context(), testenv.Patience)
	defer stop()
	for range 3 {
		select {
		case <-snapshot:
		case <-patience.Done():
			t.Error("the snapshots wait for the output")
		}
	}
	close(written)
	cancel()
	recording.Wait()
	assert.Equal(t, 2, parts, "one for each period")
	assert.NotZero(t, period.Snapshots)
}
