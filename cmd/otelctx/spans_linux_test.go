// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/reader"
)

// spanVolatile is what differs between runs of otelctx spans.
var spanVolatile = regexp.MustCompile(`(?m)^  [0-9a-z.]+  +\d+  |"(start_time_unix_nano|age_nano|time_unix_nano)": \d+`)

// What spans prints of a process that runs, and of one that is stopped.
func TestSpansGolden(t *testing.T) {
	w := startWorker(t)
	compare := func() {
		for name, args := range map[string][]string{"spans.txt": {"spans", w.pid}, "spans.json": {"spans", w.pid, "--json"}} {
			out := spanVolatile.ReplaceAllStringFunc(printed(t, args...), func(s string) string {
				if name, _, ok := strings.Cut(s, ":"); ok {
					return name + ": 5678"
				}
				return "  AGE  GOID  "
			})
			golden.Compare(t, name, w.anonymous(out))
		}
	}
	compare()
	w.Stop()
	compare()
	w.Continue()

	assert.Equal(t, "Process PID: live spans: 0\n", printed(t, "spans", w.pid, "--min-age", "1000h"))
	assert.Contains(t, printed(t, "spans", w.pid, "--min-age", "1000h", "--json"), `"spans": []`)
	require.Equal(t, "ended", w.Ask("end"))
	assert.Equal(t, "Process PID: live spans: 0\n", printed(t, "spans", w.pid))
	w.Done()
}

// Ages and what is not known.
func TestSpansDocument(t *testing.T) {
	now := time.Unix(1000, 0)
	span := func(age time.Duration) reader.LiveSpan {
		return reader.LiveSpan{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, Start: now.Add(-age)}
	}
	known := span(90 * time.Minute)
	known.Name, known.Endpoint = "query", "GET /cart/{id}"
	known.LocalRootSpanID, known.TraceFlags, known.Goroutine = [8]byte{7: 3}, 3, 17
	spans := []reader.LiveSpan{known, span(time.Second), span(12345 * time.Microsecond), span(-time.Hour)}
	var out bytes.Buffer
	require.NoError(t, writeSpans(&out, newSpansDocument(7, spans, now, 0)))
	lines := strings.Split(out.String(), "\n")
	trace := strings.Repeat("0", 31) + "1"
	for i, want := range []string{
		"Process 7: live spans: 4",
		"AGE GOROUTINE NAME ENDPOINT TRACE ID SPAN ID LOCAL ROOT SAMPLED",
		"1h30m 17 query GET /cart/{id} " + trace + " 0000000000000002 0000000000000003 yes",
		"1s - - - " + trace + " 0000000000000002 - no",
		"12ms - - - " + trace + " 0000000000000002 - no",
		"0s - - - " + trace + " 0000000000000002 - no",
		"",
	} {
		assert.Equal(t, want, strings.Join(strings.Fields(lines[i]), " "))
	}
	for minAge, want := range map[time.Duration]int{0: 4, time.Millisecond: 3, time.Second: 2, time.Second + 1: 1, 2 * time.Hour: 0} {
		assert.Len(t, newSpansDocument(7, spans, now, minAge).Spans, want, minAge)
	}
	b, err := json.Marshal(newSpansDocument(7, spans[:1], now, 0))
	require.NoError(t, err)
	assert.JSONEq(t, `{"pid": 7, "time_unix_nano": 1000000000000, "spans": [{"trace_id": "`+trace+`", "span_id": "0000000000000002",
		"local_root_span_id": "0000000000000003", "name": "query", "endpoint": "GET /cart/{id}", "trace_flags": 3, "sampled": true, "goroutine": 17,
		"start_time_unix_nano": -4400000000000, "age_nano": 5400000000000}]}`, string(b))
}
