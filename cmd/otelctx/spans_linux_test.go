// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/spanctx"
)

// spanVolatile matches output of otelctx spans that differs between runs. This includes the state of the worker's
// goroutine: it never waits, but the Go scheduler may interrupt it. spanColumns matches the header, whose column
// widths differ.
var (
	spanVolatile = regexp.MustCompile(`(?m)^  [0-9a-z.]+  +runn\w+ +(-|thread \d+) +(\w+) +(\w+) +\d+  |"(start_time_unix_nano|age_nano|time_unix_nano|namespace_tid)": \d+|"state": "runn\w+"`)
	spanColumns  = regexp.MustCompile(`(?m)^  AGE +STATE +WAITING FOR +NAME +ENDPOINT +GOROUTINE `)
)

// TestSpansGolden compares the output of otelctx spans for a running process with golden files. It also checks
// that no spans are missing while the process is stopped.
func TestSpansGolden(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	for name, args := range map[string][]string{"spans.txt": {"spans", w.pid}, "spans.json": {"spans", w.pid, "--json"}} {
		out := spanVolatile.ReplaceAllStringFunc(printed(t, args...), func(s string) string {
			if name, _, ok := strings.Cut(s, ":"); ok {
				return name + ": 5678"
			}
			fields := strings.Fields(s)
			return "  AGE  running  thread TID  " + strings.Join(fields[len(fields)-3:len(fields)-1], "  ") + "  GOID  "
		})
		golden.Compare(t, name, w.anonymous(spanColumns.ReplaceAllString(out, "  AGE  STATE  WAITING FOR  NAME  ENDPOINT  GOROUTINE ")))
	}
	w.Stop()
	assert.Contains(t, printed(t, "spans", w.pid), "Process PID (worker): live spans: 2\n")
	w.Continue()

	assert.Equal(t, "Process PID (worker): live spans: 0\n", printed(t, "spans", w.pid, "--min-age", "1000h"))
	assert.Contains(t, printed(t, "spans", w.pid, "--min-age", "1000h", "--json"), `"spans": []`)
	require.Equal(t, "ended", w.Ask("end"))
	assert.Equal(t, "Process PID (worker): live spans: 0\n", printed(t, "spans", w.pid))
	w.Done()
}

// roleFuture is a service whose spans start in the year 2300, which does not fit the format.
const roleFuture = "future"

func futureRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	tp := sdktrace.NewTracerProvider(spanctx.WithPublishing())
	_, span := tp.Tracer("test").Start(context.Background(), "later", trace.WithTimestamp(time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)))
	parent.Send("started")
	parent.Receive()
	span.End()
}

// TestSpansOfTheFuture checks that a start that cannot be known does not lead to an age of centuries.
func TestSpansOfTheFuture(t *testing.T) {
	childproc.NeedReading(t)
	c := childproc.Start(t, roleFuture, nil)
	require.Equal(t, "started", c.Receive())
	var d spansDocument
	require.NoError(t, json.Unmarshal([]byte(printed(t, "spans", strconv.Itoa(c.PID()), "--json")), &d))
	require.Len(t, d.Spans, 1)
	assert.Zero(t, d.Spans[0].AgeNano)
	assert.Zero(t, d.Spans[0].StartTimeUnixNano)
	assert.Empty(t, func() (spans []spanDocument) {
		require.NoError(t, json.Unmarshal([]byte(printed(t, "spans", strconv.Itoa(c.PID()), "--json", "--min-age=1h")), &d))
		return d.Spans
	}())
}
