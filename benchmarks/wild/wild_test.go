// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
)

// TestPatterns runs each pattern once.
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
	assert.GreaterOrEqual(t, len(names), 80)
}

// TestStackSpellsNumber asserts that the stack of the work is the number of its truth.
func TestStackSpellsNumber(t *testing.T) {
	defer func(before func()) { atBottom = before }(atBottom)
	for _, number := range []uint64{0, 1, 0xABCDEF, maxNumbers - 1} {
		atBottom = func() {
			var pcs [64]uintptr
			frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
			var names []string
			for frame, more := frames.Next(); more; frame, more = frames.Next() {
				names = append(names, frame.Function)
			}
			got, ok := told(names)
			assert.True(t, ok, names)
			assert.Equal(t, number, got)
		}
		burn(number, nil)
	}
}

// TestProfileHasGoroutineThatWaits asserts that a goroutine that waits after its work is seen.
func TestProfileHasGoroutineThatWaits(t *testing.T) {
	defer func(before func()) { atBottom = before }(atBottom)
	atBottom = waitAtBottom
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				burn(0xABCDEF, nil)
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
		require.True(t, time.Now().Before(deadline), "it never waits")
	}
}

func TestToldNeedsWholeStack(t *testing.T) {
	whole := strings.Fields("main.spin main.bottom main.spell main.digit1 main.spell main.digit0 main.spell main.digit0 " +
		"main.spell main.digit0 main.spell main.digit0 main.spell main.digit0 main.spell main.burn")
	number, ok := told(whole)
	require.True(t, ok)
	require.EqualValues(t, 1, number)
	number, ok = told(append([]string{"runtime.asyncPreempt2", "runtime.asyncPreempt"}, whole...))
	assert.True(t, ok)
	assert.EqualValues(t, 1, number)
	for name, stack := range map[string][]string{
		"outermost frames are missing": whole[:len(whole)-1],
		"a digit is missing":           append(append([]string{}, whole[:3]...), whole[5:]...),
		"nothing burns":                whole[2:],
		"another function burns":       append([]string{"main.sqlExec"}, whole...),
		"no frames":                    nil,
	} {
		_, ok := told(stack)
		assert.False(t, ok, name)
	}
}

func TestTruthsSurviveTheirFile(t *testing.T) {
	var ts truths
	one := truth{pattern: "one", spans: [2]id{{trace.TraceID{1}, trace.SpanID{2}}}}
	other := truth{pattern: "other", spans: [2]id{{trace.TraceID{3}, trace.SpanID{4}}, {trace.TraceID{3}, trace.SpanID{5}}}, nothing: true}
	for i, each := range []truth{one, other, {pattern: "none"}} {
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
		truth truth
		given id
		want  tally
	}{
		{"the span", truth{spans: [2]id{a}}, a, tally{Right: 1, Shown: 1}},
		{"another span", truth{spans: [2]id{a}}, b, tally{Wrong: 1}},
		{"no span", truth{spans: [2]id{a}}, id{}, tally{None: 1}},
		{"nothing is due", truth{}, id{}, tally{Right: 1}},
		{"a span where nothing is due", truth{}, a, tally{Wrong: 1, Outside: 1}},
		{"nothing is allowed", truth{spans: [2]id{a}, nothing: true}, id{}, tally{Right: 1}},
		{"the second of two spans", truth{spans: [2]id{a, b}}, b, tally{Right: 1, Shown: 1}},
		{"none of two spans", truth{spans: [2]id{a, b}}, c, tally{Wrong: 1}},
	} {
		var got tally
		got.add(one.truth, one.given, 1)
		assert.Equal(t, one.want, got, one.name)
	}
}

func TestParseGoroutines(t *testing.T) {
	const text = `2 @ 0x1 0x2
# labels: {"span_id":"0000000000000002", "trace_id":"00000000000000000000000000000001"}
#	0x1	main.spin+0x1d							/truth.go:1
#	0x2	main.bottom+0x2		/truth.go:2
#	0x3	main.spell+0x2		/truth.go:2
#	0x3	main.digitA+0x2		/truth.go:2
#	0x3	main.digit0+0x2		/truth.go:2
#	0x3	main.digit0+0x2		/truth.go:2
#	0x3	main.digit0+0x2		/truth.go:2
#	0x3	main.digit0+0x2		/truth.go:2
#	0x3	main.digit0+0x2		/truth.go:2
#	0x4	main.burn+0x3		/truth.go:3
#	0x4	main.(*run).burn+0x3		/pattern.go:3
`
	got, times, ok := parseGoroutines(text)
	require.True(t, ok)
	assert.Equal(t, 2, times)
	assert.Equal(t, seen{10, id{trace.TraceID{15: 1}, trace.SpanID{7: 2}}}, got)
}
