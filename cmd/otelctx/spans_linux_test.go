// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

// spanVolatile is what differs between runs of otelctx spans. The worker runs all the time, or would if
// the Go scheduler let it.
var (
	spanVolatile = regexp.MustCompile(`(?m)^  [0-9a-z.]+  +runn\w+ +(-|thread \d+) +\d+  |"(start_time_unix_nano|age_nano|time_unix_nano|thread)": \d+|"state": "runn\w+"`)
	spanColumns  = regexp.MustCompile(`(?m)^  AGE +STATE +WAITING FOR +GOROUTINE `)
)

// What spans prints of a process that runs. Of one that is stopped it shows the same spans.
func TestSpansGolden(t *testing.T) {
	w := startWorker(t)
	for name, args := range map[string][]string{"spans.txt": {"spans", w.pid}, "spans.json": {"spans", w.pid, "--json"}} {
		out := spanVolatile.ReplaceAllStringFunc(printed(t, args...), func(s string) string {
			if name, _, ok := strings.Cut(s, ":"); ok {
				return name + ": 5678"
			}
			return "  AGE  running  thread TID  GOID  "
		})
		golden.Compare(t, name, w.anonymous(spanColumns.ReplaceAllString(out, "  AGE  STATE  WAITING FOR  GOROUTINE ")))
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

func TestSpansExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no process":       {nil, exitUsage, "expected"},
		"negative age":     {[]string{"1", "--min-age=-1s"}, exitUsage, "--min-age -1s is negative"},
		"never there":      {[]string{strconv.Itoa(math.MaxInt32)}, exitProcessGone, "otelctx list"},
		"no context":       {[]string{strconv.Itoa(startIdle(t).PID())}, exitNoContext, "no"},
		"no spans":         {[]string{strconv.Itoa(startForeign(t, `resource {}`).PID())}, exitNoContext, ""},
		"closed to others": {[]string{strconv.Itoa(startHidden(t).PID())}, exitNotPermitted, "not permitted"},
	} {
		run := otelctx
		if tt.code == exitNotPermitted {
			run = otelctxAsNobody
		}
		got := run(t, append([]string{"spans"}, tt.args...)...)
		assert.Equal(t, tt.code, got.code, "%s: %s", name, got.stderr)
		assert.Empty(t, got.stdout, name)
		assert.Contains(t, got.stderr, tt.says, name)
	}
}
