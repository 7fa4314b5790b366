// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/truth"
)

// TestPatterns checks that each pattern works at least once without an error, and that names are
// unique.
func TestPatterns(t *testing.T) {
	service := newService(publications[0])
	defer service.close()
	names := map[string]bool{}
	for _, p := range all() {
		t.Run(p.name(), func(t *testing.T) {
			assert.False(t, names[p.name()], "two patterns have the same name")
			names[p.name()] = true
			assert.NotEmpty(t, p.about)
			service := service
			if p.alone {
				service = newService(publications[0])
			}
			r := &run{service: service, pattern: p.name(), truths: new(truths)}
			r.repeat(p, 1, func() bool { return r.burned.Load() > 0 })
			assert.Positive(t, r.burned.Load())
			t.Log(r.says())
		})
	}
}

// TestProfileHasGoroutineThatWaits checks that a goroutine profile shows the number of a goroutine
// that waits in waitAtBottom.
func TestProfileHasGoroutineThatWaits(t *testing.T) {
	defer func(before func()) { truth.AtBottom = before }(truth.AtBottom)
	truth.AtBottom = waitAtBottom
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				truth.Burn(0xABCDEF, nil)
			}
		}
	}()
	for deadline := time.Now().Add(time.Minute); ; {
		var profile bytes.Buffer
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		for stack := range strings.SplitSeq(profile.String(), "\n\n") {
			if strings.Contains(stack, ".waitAtBottom+") {
				got, times, ok := parseGoroutines(stack)
				require.True(t, ok, stack)
				assert.Equal(t, 1, times)
				assert.Equal(t, seen{number: 0xABCDEF}, got)
				return
			}
		}
		require.True(t, time.Now().Before(deadline), "the goroutine never waits")
	}
}

func TestTruthsSurviveTheirFile(t *testing.T) {
	var ts truths
	one := due{pattern: "one", spans: [2]id{{trace.TraceID{1}, trace.SpanID{2}}}}
	other := due{pattern: "other", spans: [2]id{{trace.TraceID{3}, trace.SpanID{4}}, {trace.TraceID{3}, trace.SpanID{5}}}, nothing: true}
	for i, each := range []due{one, other, {pattern: "none"}} {
		assert.EqualValues(t, i, ts.number(each))
		assert.EqualValues(t, i, ts.number(each), "the same truth again")
	}
	var text bytes.Buffer
	require.NoError(t, ts.write(&text))
	got, err := readTruths(&text)
	require.NoError(t, err)
	assert.Equal(t, ts.all, got)
}

func TestVerdict(t *testing.T) {
	a, b, c := id{span: trace.SpanID{1}}, id{span: trace.SpanID{2}}, id{span: trace.SpanID{3}}
	for _, one := range []struct {
		name  string
		truth due
		given id
		want  tally
	}{
		{"the span", due{spans: [2]id{a}}, a, tally{Right: 1, Shown: 1}},
		{"another span", due{spans: [2]id{a}}, b, tally{Wrong: 1}},
		{"no span", due{spans: [2]id{a}}, id{}, tally{None: 1}},
		{"nothing is due", due{}, id{}, tally{Right: 1}},
		{"a span where nothing is due", due{}, a, tally{Wrong: 1, Outside: 1}},
		{"nothing is allowed", due{spans: [2]id{a}, nothing: true}, id{}, tally{Right: 1}},
		{"the second of two spans", due{spans: [2]id{a, b}}, b, tally{Right: 1, Shown: 1}},
		{"none of two spans", due{spans: [2]id{a, b}}, c, tally{Wrong: 1}},
	} {
		var got tally
		got.add(one.truth, one.given, 1)
		assert.Equal(t, one.want, got, one.name)
	}
}

func TestParseGoroutines(t *testing.T) {
	const text = `2 @ 0x1 0x2
# labels: {"span_id":"0000000000000002", "trace_id":"00000000000000000000000000000001"}
#	0x1	github.com/otelctx/otelctx/benchmarks/internal/truth.spin+0x1d							/truth.go:1
#	0x2	github.com/otelctx/otelctx/benchmarks/internal/truth.bottom+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.spell+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.digitA+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.digit0+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.digit0+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.digit0+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.digit0+0x2		/truth.go:2
#	0x3	github.com/otelctx/otelctx/benchmarks/internal/truth.digit0+0x2		/truth.go:2
#	0x4	github.com/otelctx/otelctx/benchmarks/internal/truth.Burn+0x3		/truth.go:3
#	0x4	github.com/otelctx/otelctx/benchmarks/internal/truth.(*run).burn+0x3		/pattern.go:3
`
	got, times, ok := parseGoroutines(text)
	require.True(t, ok)
	assert.Equal(t, 2, times)
	assert.Equal(t, seen{number: 10, given: id{trace.TraceID{15: 1}, trace.SpanID{7: 2}}}, got)
}
