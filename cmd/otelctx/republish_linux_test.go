// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
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

// lastGeneration is the number of providers that reloadingRole sets up.
const lastGeneration = generation(20)

// reloadingRole sets up one provider after the other. Each has other names and attributes for the same numbers. All of them use
// enough CPU time for many samples. The last one lives until the role receives a second line.
func reloadingRole(parent *childproc.Parent) {
	enough := make(chan struct{})
	for g := generation(1); ; g++ {
		tp := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(g), resourcepublisher.WithResource(sdkresource.Empty()),
			spanctx.WithPublishing(spanctx.WithAttributeKeys(attribute.Key(g.parity()))))
		_, span := tp.Tracer("").Start(attrcontext.With(context.Background(), attribute.String(g.parity(), g.String())), g.String())
		if g == 1 {
			parent.Send("ready")
			parent.Receive()
			go func() {
				defer close(enough)
				parent.Receive()
			}()
		}
		for began := usedCPU(); usedCPU()-began < 100*time.Millisecond || g == lastGeneration && !isClosed(enough); {
			allocated = make([]byte, 1<<14)
		}
		span.End()
		parent.Must(tp.Shutdown(context.Background()))
		if g == lastGeneration {
			parent.Send("done")
			parent.Receive()
			return
		}
	}
}

// usedCPU returns the CPU time that this process has used.
func usedCPU() time.Duration {
	var used unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used) // it cannot fail
	return time.Duration(used.Nano())
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestRecordReloads checks that the samples of a process that publishes again have no names and attributes of its earlier
// publications, although the recorder notices a new one only after a while.
func TestRecordReloads(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := childproc.Start(t, roleReloading, nil)
	c.Expect("ready")
	dir := t.TempDir()
	r := startRecord(t, pidOf(c), "--repeat", "--duration=200ms", "--output", filepath.Join(dir, "reloads.pb.gz"))
	r.awaitRecorded(t, c)
	c.Send("go")
	require.Eventually(t, func() bool { return strings.Contains(r.stdout.String(), lastGeneration.String()) }, testenv.Patience, tick)
	require.Equal(t, "done", c.Ask("enough"))
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	files, err := filepath.Glob(filepath.Join(dir, "*.pb.gz"))
	require.NoError(t, err)
	var samples []*pprof.Sample
	for _, file := range files {
		samples = append(samples, readPprof(t, file).Sample...)
	}
	named := map[string]int{}
	for _, s := range samples {
		if len(s.Label["trace_id"]) == 0 {
			continue
		}
		id, err := hex.DecodeString(s.Label["trace_id"][0])
		require.NoError(t, err)
		g := generation(id[0])
		for _, label := range []string{"span_name", "endpoint", g.parity()} {
			for _, value := range s.Label[label] {
				assert.Equal(t, g.String(), value, label)
				named[label]++
			}
		}
		assert.Empty(t, s.Label[(g+1).parity()])
	}
	for _, label := range []string{"span_name", "endpoint", lastGeneration.parity()} {
		assert.Positive(t, named[label], label)
	}
}
