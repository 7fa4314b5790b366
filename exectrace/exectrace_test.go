// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package exectrace_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	rttrace "runtime/trace"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/exectrace"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
)

// task is a user task parsed from an execution trace. parent is the type of its parent task.
type task struct {
	traceparent, parent string
	ended               bool
}

// taskOf returns the task that a span is expected to have in the trace.
func taskOf(span trace.Span, parent string, ended bool) task {
	header := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpan(context.Background(), span), header)
	return task{header["traceparent"], parent, ended}
}

var (
	taskBegin = regexp.MustCompile(` TaskBegin .* ID=(\d+) Parent=(\d+) Type="(.*)"`)
	taskEnd   = regexp.MustCompile(` TaskEnd .* ID=(\d+) `)
	taskLog   = regexp.MustCompile(` Log .* Task=(\d+) Category="traceparent" Message="(.*)"`)
)

// tasks parses a trace with go tool trace and returns the tasks by type.
func tasks(t *testing.T, traced []byte) map[string]task {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(file, traced, 0o600))
	var stderr bytes.Buffer
	cmd := exec.Command("go", "tool", "trace", "-d=parsed", file)
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	byType, types := map[string]task{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		if m := taskBegin.FindStringSubmatch(line); m != nil {
			assert.NotContains(t, byType, m[3], "one task for a span")
			types[m[1]], byType[m[3]] = m[3], task{parent: types[m[2]]}
		} else if m := taskLog.FindStringSubmatch(line); m != nil {
			found := byType[types[m[1]]]
			found.traceparent += m[2]
			byType[types[m[1]]] = found
		} else if m := taskEnd.FindStringSubmatch(line); m != nil && types[m[1]] != "" {
			found := byType[types[m[1]]]
			found.ended = true
			byType[types[m[1]]] = found
		}
	}
	return byType
}

// recordTrace runs f while runtime/trace records, and returns the trace.
func recordTrace(t *testing.T, f func()) []byte {
	t.Helper()
	var traced bytes.Buffer
	require.NoError(t, rttrace.Start(&traced))
	f()
	rttrace.Stop()
	return traced.Bytes()
}

// recordFlight runs f while a flight recorder is active, and returns the recorded trace.
func recordFlight(t *testing.T, f func()) []byte {
	t.Helper()
	recorder := rttrace.NewFlightRecorder(rttrace.FlightRecorderConfig{})
	require.NoError(t, recorder.Start())
	defer recorder.Stop()
	f()
	var traced bytes.Buffer
	_, err := recorder.WriteTo(&traced)
	require.NoError(t, err)
	return traced.Bytes()
}

// elsewhere runs f on another goroutine and waits for it.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func TestIDsInTasks(t *testing.T) {
	for name, record := range map[string]func(*testing.T, func()) []byte{"trace": recordTrace, "flight recorder": recordFlight} {
		t.Run(name, func(t *testing.T) {
			tp := oteltest.TracerProvider(t, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
			tracer := exectrace.NewTracerProvider(tp).Tracer("test")
			_, early := tracer.Start(context.Background(), "early")
			var want map[string]task
			var live trace.Span
			traced := record(t, func() {
				ctx, request := tracer.Start(context.Background(), "GET /cart")
				inner, query := tracer.Start(ctx, "query")
				elsewhere(func() { query.End() })
				var worker trace.Span
				elsewhere(func() {
					_, worker = tracer.Start(inner, "worker")
				})
				_, live = tracer.Start(ctx, "live")
				unsampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true})
				_, dropped := tracer.Start(trace.ContextWithSpanContext(ctx, unsampled), "dropped")
				for _, span := range []trace.Span{dropped, worker, early, request} {
					span.End()
				}
				want = map[string]task{
					"GET /cart": taskOf(request, "", true),
					"query":     taskOf(query, "GET /cart", true),
					"worker":    taskOf(worker, "query", true),
					"live":      taskOf(live, "GET /cart", false),
				}
			})
			assert.Equal(t, want, tasks(t, traced))

			// The next trace contains no task for a span that started before it, even if the span
			// ends during the trace.
			_, late := tracer.Start(context.Background(), "late")
			late.End()
			assert.Empty(t, tasks(t, record(t, func() { live.End() })))
		})
	}
}

func TestNoAllocationWithoutTrace(t *testing.T) {
	tp := oteltest.TracerProvider(t)
	allocations := func(tp trace.TracerProvider) float64 {
		tracer := tp.Tracer("test")
		return testing.AllocsPerRun(100, func() {
			_, span := tracer.Start(context.Background(), "span")
			span.End()
		})
	}
	assert.InDelta(t, allocations(tp), allocations(exectrace.NewTracerProvider(tp)), 0)
}
