// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

// origin is the time that test data is relative to.
var origin = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func at(milliseconds int) pcommon.Timestamp {
	return pcommon.NewTimestampFromTime(origin.Add(time.Duration(milliseconds) * time.Millisecond))
}

func write(t *testing.T, lines ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.jsonl")
	require.NoError(t, os.WriteFile(path, append(bytes.Join(lines, []byte("\n")), '\n'), 0o600))
	return path
}

// testSpan is a span. Its from and to are in milliseconds since the origin.
type testSpan struct {
	id       byte
	name     string
	from, to int
}

// tracesOf returns a line of the traces file, with spans of one instance of a service.
func tracesOf(t *testing.T, service, id string, spans ...testSpan) []byte {
	t.Helper()
	data := ptrace.NewTraces()
	r := data.ResourceSpans().AppendEmpty()
	r.Resource().Attributes().PutStr("service.name", service)
	r.Resource().Attributes().PutStr("service.instance.id", id)
	scope := r.ScopeSpans().AppendEmpty()
	for _, from := range spans {
		s := scope.Spans().AppendEmpty()
		s.SetTraceID(pcommon.TraceID{1})
		s.SetSpanID(pcommon.SpanID{from.id})
		s.SetName(from.name)
		s.SetStartTimestamp(at(from.from))
		s.SetEndTimestamp(at(from.to))
	}
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(data)
	require.NoError(t, err)
	return line
}

// testProfile is a profile of one instance of a service. Its from and to are in milliseconds since the
// origin.
type testProfile struct {
	service, id      string
	sampled, period  string // the types of the samples and of the period
	unit, periodUnit string
	from, to         int
	spans            []byte  // the span of each sample, 0 for none
	values           []int64 // the value of each sample; nil if samples have only timestamps
}

// shopProfile returns a profile that covers the first second of instance a of the shop. Sample i is in
// the span spans[i] and has used milliseconds[i] of CPU time.
func shopProfile(spans []byte, milliseconds ...int64) testProfile {
	p := testProfile{"shop", "a", "cpu", "cpu", "nanoseconds", "nanoseconds", 0, 1000, spans, nil}
	for _, m := range milliseconds {
		p.values = append(p.values, m*int64(time.Millisecond))
	}
	return p
}

// line returns a line of the profiles file, with this profile. The sampling period is 10 ms.
func (from testProfile) line(t *testing.T) []byte {
	t.Helper()
	data := pprofile.NewProfiles()
	d := data.Dictionary()
	d.StringTable().FromRaw([]string{"", from.sampled, from.unit, from.period, from.periodUnit})
	d.LinkTable().AppendEmpty()
	r := data.ResourceProfiles().AppendEmpty()
	r.Resource().Attributes().PutStr("service.name", from.service)
	r.Resource().Attributes().PutStr("service.instance.id", from.id)
	p := r.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	p.SampleType().SetTypeStrindex(1)
	p.SampleType().SetUnitStrindex(2)
	p.PeriodType().SetTypeStrindex(3)
	p.PeriodType().SetUnitStrindex(4)
	p.SetPeriod(int64(10 * time.Millisecond))
	p.SetTime(at(from.from))
	p.SetDurationNano(uint64(time.Duration(from.to-from.from) * time.Millisecond))
	for i, id := range from.spans {
		s := p.Samples().AppendEmpty()
		if id != 0 {
			l := d.LinkTable().AppendEmpty()
			l.SetTraceID(pcommon.TraceID{1})
			l.SetSpanID(pcommon.SpanID{id})
			s.SetLinkIndex(int32(d.LinkTable().Len() - 1))
		}
		s.TimestampsUnixNano().Append(uint64(at(from.from)))
		if from.values != nil {
			s.Values().Append(from.values[i])
		}
	}
	line, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(data)
	require.NoError(t, err)
	return line
}

func TestJoin(t *testing.T) {
	traces := write(t,
		tracesOf(t, "shop", "a",
			testSpan{1, "request", 100, 300},
			testSpan{2, "query", 100, 200},
			testSpan{3, "request", 900, 1400},  // the last 400 ms are not recorded
			testSpan{4, "request", -100, 50},   // the first 100 ms are not recorded
			testSpan{5, "request", 1100, 1200}, // not recorded at all
			testSpan{6, "instant", 500, 500},
		),
		nil,
		tracesOf(t, "shop", "b", testSpan{7, "request", 100, 300}), // spans of another instance
		tracesOf(t, "blog", "", testSpan{8, "request", 4900, 5300}),
		tracesOf(t, "mail", "", testSpan{9, "request", 0, 1000}), // not recorded
	)
	profiles := write(t,
		// The recording of the shop is in two profiles.
		shopProfile([]byte{1, 0, 3}, 60, 40, 20).line(t),
		shopProfile([]byte{1, 2, 99}, 20, 5, 15).line(t),
		// The blog was recorded twice. The first profile has counts, the second only timestamps.
		testProfile{"blog", "", "samples", "cpu", "count", "nanoseconds", 4000, 5000, []byte{8}, []int64{3}}.line(t),
		testProfile{"blog", "", "samples", "cpu", "count", "nanoseconds", 5000, 6000, []byte{8, 0}, nil}.line(t),
	)
	golden.Compare(t, "join.txt", joined(t, traces, profiles, false))
	golden.Compare(t, "join.json", joined(t, traces, profiles, true))
}

func joined(t *testing.T, traces, profiles string, asJSON bool) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(&out, traces, profiles, asJSON))
	return out.String()
}

// TestForeignSpanIDs checks that CPU time is attributed to the service that has used it, even if the
// service uses and exports the span ids of another service.
func TestForeignSpanIDs(t *testing.T) {
	traces := write(t,
		tracesOf(t, "shop", "a", testSpan{1, "request", 0, 1000}),
		tracesOf(t, "thief", "", testSpan{2, "request", 0, 1000}, testSpan{1, "stolen", 0, 1000}),
	)
	profiles := write(t,
		shopProfile([]byte{1}, 60).line(t),
		testProfile{"thief", "", "cpu", "cpu", "nanoseconds", "nanoseconds", 0, 1000, []byte{1, 3}, []int64{5e6, 7e6}}.line(t),
	)
	golden.Compare(t, "others.json", joined(t, traces, profiles, true))
}

// TestNamesAreQuoted checks that span names with control characters cannot disturb the terminal.
// Services choose the names.
func TestNamesAreQuoted(t *testing.T) {
	traces := write(t, tracesOf(t, "shop", "a", testSpan{1, "a\tb\x1b[31m\n", 0, 10}, testSpan{2, "", 0, 5}))
	profiles := write(t, shopProfile(nil).line(t))
	out := joined(t, traces, profiles, false)
	assert.Contains(t, out, `shop     "a\tb\x1b[31m\n"  1`)
	assert.Contains(t, out, `shop     ""`)
	assert.Contains(t, out, "0.000s of CPU time, - of it in spans")
}

func TestFails(t *testing.T) {
	traces, profiles := write(t, tracesOf(t, "shop", "a")), write(t, shopProfile(nil).line(t))
	memory := testProfile{"shop", "", "alloc_space", "space", "bytes", "bytes", 0, 1, nil, nil}.line(t)
	unknown := bytes.Replace(shopProfile([]byte{1}, 1).line(t), []byte(`"linkIndex":1`), []byte(`"linkIndex":7`), 1)
	for name, test := range map[string]struct{ traces, profiles, want string }{
		"no traces":       {"none", profiles, "no such file"},
		"no profiles":     {traces, "none", "no such file"},
		"not JSON":        {traces, write(t, nil, []byte("{")), "file.jsonl:2: "},
		"not of CPU time": {traces, write(t, memory), "a profile of alloc_space in bytes with a period of space in bytes is not one of CPU time"},
		"no such link":    {traces, write(t, unknown), "a sample with link 7 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.ErrorContains(t, run(&out, test.traces, test.profiles, false), test.want)
			assert.Empty(t, out.String())
		})
	}
}
