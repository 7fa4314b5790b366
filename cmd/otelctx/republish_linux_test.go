// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

const roleReloading = "reloading"

// generation is an id generator: trace ids begin with the number of a provider.
type generation byte

func (g generation) NewIDs(ctx context.Context) (t trace.TraceID, s trace.SpanID) {
	t = trace.TraceID{0: byte(g), 15: 1}
	return t, g.NewSpanID(ctx, t)
}

func (g generation) NewSpanID(context.Context, trace.TraceID) (s trace.SpanID) {
	binary.NativeEndian.PutUint64(s[:], uint64(time.Now().UnixNano()))
	return s
}

// parity is the key of an attribute that the spans of every second provider have.
func (g generation) parity() string {
	return []string{"even", "odd"}[g%2]
}

func (g generation) String() string { return fmt.Sprint("generation ", byte(g)) }

// reloadingRole shuts its provider down and sets up another one, for each line that it receives. Each provider has other
// names and attributes for the same numbers.
func reloadingRole(parent *childproc.Parent) {
	for g := generation(1); ; g++ {
		tp := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(g), resourcepublisher.WithResource(sdkresource.Empty()),
			spanctx.WithPublishing(spanctx.WithAttributeKeys(attribute.Key(g.parity()))))
		_, span := tp.Tracer("").Start(context.Background(), g.String(), trace.WithAttributes(attribute.String(g.parity(), g.String())))
		if g == 1 {
			parent.Send("ready")
			parent.Receive()
		}
		for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
			allocated = make([]byte, 1<<14)
		}
		span.End()
		parent.Must(tp.Shutdown(context.Background()))
		if g == 20 {
			parent.Send("done")
			parent.Receive()
			return
		}
	}
}

// TestRecordReloads checks that the samples of a process that publishes again have no names and attributes of its earlier
// publications, although the recorder notices a new one only after a while.
func TestRecordReloads(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := childproc.Start(t, roleReloading, nil)
	c.Expect("ready")
	file := filepath.Join(t.TempDir(), "reloads.pb.gz")
	r := startRecord(t, pidOf(c), "--output", file)
	r.awaitRecorded(t, c)
	require.Equal(t, "done", c.Ask("go"))
	decodeRecord(t, r.interrupt(t))
	named := 0
	for _, s := range readPprof(t, file).Sample {
		if len(s.Label["trace_id"]) == 0 {
			continue
		}
		id, err := hex.DecodeString(s.Label["trace_id"][0])
		require.NoError(t, err)
		g := generation(id[0])
		for _, label := range []string{"span_name", "endpoint", g.parity()} {
			for _, value := range s.Label[label] {
				assert.Equal(t, g.String(), value, label)
				named++
			}
		}
		assert.Empty(t, s.Label[(g+1).parity()])
	}
	assert.Positive(t, named)
}
