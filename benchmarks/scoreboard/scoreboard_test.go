// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
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
			r := &run{service: service, pattern: p.name(), expected: new(expected)}
			r.repeat(p, 1, func() bool { return r.burned.Load() > 0 })
			assert.Positive(t, r.burned.Load())
			t.Log(r.says())
		})
	}
}

// TestProfileHasGoroutineThatWaits checks that a goroutine profile has the number and the span of a
// goroutine that waits at the bottom.
func TestProfileHasGoroutineThatWaits(t *testing.T) {
	defer func(before func()) { stacknumber.AtBottom = before }(stacknumber.AtBottom)
	waiting, done := make(chan struct{}), make(chan struct{})
	stacknumber.AtBottom = func() {
		close(waiting)
		<-done
	}
	defer close(done)
	span := id{trace.TraceID{15: 1}, trace.SpanID{7: 2}}
	labels := pprof.Labels("trace_id", span.Trace.String(), "span_id", span.Span.String())
	go pprof.Do(t.Context(), labels, func(context.Context) { stacknumber.Burn(0xABCDEF, nil) })
	<-waiting
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 0))
	got, err := readProfile(profile.Bytes(), 0)
	require.NoError(t, err)
	assert.Equal(t, map[seen]int{{Number: 0xABCDEF, Given: span}: 1}, got)
}

func TestExpectedSurviveTheirFile(t *testing.T) {
	var ts expected
	one := due{Pattern: "one", Spans: [2]id{{trace.TraceID{1}, trace.SpanID{2}}, {trace.TraceID{1}, trace.SpanID{5}}}, Nothing: true}
	for i, each := range []due{one, {Pattern: "none"}} {
		assert.EqualValues(t, i, ts.number(each))
		assert.EqualValues(t, i, ts.number(each), "the same value again")
	}
	s := server{dir: t.TempDir()}
	require.NoError(t, s.write(expectedFile, ts.all))
	text, err := os.ReadFile(filepath.Join(s.dir, expectedFile))
	require.NoError(t, err)
	got, err := decode[[]due](text)
	require.NoError(t, err)
	assert.Equal(t, ts.all, got)
}

func TestVerdict(t *testing.T) {
	a, b, c := id{Span: trace.SpanID{1}}, id{Span: trace.SpanID{2}}, id{Span: trace.SpanID{3}}
	for _, one := range []struct {
		name  string
		due   due
		given id
		want  tally
	}{
		{"the span", due{Spans: [2]id{a}}, a, tally{Right: 1, Shown: 1}},
		{"another span", due{Spans: [2]id{a}}, b, tally{Wrong: 1}},
		{"no span", due{Spans: [2]id{a}}, id{}, tally{None: 1}},
		{"nothing is due", due{}, id{}, tally{Right: 1}},
		{"a span where nothing is due", due{}, a, tally{Wrong: 1, Outside: 1}},
		{"nothing is allowed", due{Spans: [2]id{a}, Nothing: true}, id{}, tally{Right: 1}},
		{"the second of two spans", due{Spans: [2]id{a, b}}, b, tally{Right: 1, Shown: 1}},
		{"none of two spans", due{Spans: [2]id{a, b}}, c, tally{Wrong: 1}},
	} {
		var got tally
		got.add(one.due, one.given, 1)
		assert.Equal(t, one.want, got, one.name)
	}
}
