// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package otelctxreceiver

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const (
	traceA = "0102030405060708090a0b0c0d0e0f10"
	spanA  = "a1a2a3a4a5a6a7a8"
	spanB  = "b1b2b3b4b5b6b7b8"
)

// labels builds a goroutine's labels from alternating keys and values.
func labels(kvs ...string) map[libpf.String]libpf.String {
	m := map[libpf.String]libpf.String{}
	for i := 0; i < len(kvs); i += 2 {
		m[libpf.Intern(kvs[i])] = libpf.Intern(kvs[i+1])
	}
	return m
}

func TestLink(t *testing.T) {
	for _, tc := range []struct {
		name        string
		trace, span string
		linked      bool
	}{
		{"valid ids", traceA, spanA, true},
		{"upper case", "0102030405060708090A0B0C0D0E0F10", spanA, true},
		{"no labels", "", "", false},
		{"trace only", traceA, "", false},
		{"span only", "", spanA, false},
		{"short trace id", traceA[2:], spanA, false},
		{"long span id", traceA, spanA + "00", false},
		{"not hexadecimal", traceA, "a1a2a3a4a5a6a7ag", false},
		{"zero trace id", "00000000000000000000000000000000", spanA, false},
		{"zero span id", traceA, "0000000000000000", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			given := labels("http.app", "shop", "trace_id", tc.trace, "span_id", tc.span)
			var meta samples.TraceEventMeta
			require.Equal(t, tc.linked, link(given, &meta))
			if !tc.linked {
				assert.Len(t, given, 3, "labels that are not ids must stay")
				assert.Zero(t, meta)
				return
			}
			assert.Equal(t, labels("http.app", "shop"), given)
			want, err := hex.DecodeString(tc.trace)
			require.NoError(t, err)
			assert.Equal(t, want, meta.TraceID[:])
			assert.Equal(t, tc.span, hex.EncodeToString(meta.SpanID[:]))
		})
	}
}

// reportInterval is the time between reports. It is short because each test waits for one report.
const reportInterval = 100 * time.Millisecond

// reported returns the profiles that upstream's reporter creates from one sample for each of
// labelSets. The samples differ only in their labels and timestamps.
func reported(t *testing.T, l *linker, labelSets ...map[libpf.String]libpf.String) pprofile.Profiles {
	t.Helper()
	sink := new(consumertest.ProfilesSink)
	r, err := reporter.NewCollector(&reporter.Config{
		SamplesPerSecond: 20, ReportInterval: reportInterval, ExtraSampleAttrProd: byLabels{},
	}, sink)
	require.NoError(t, err)
	l.Reporter = r
	cpu := &samples.TypeMetadata{PeriodType: "cpu", PeriodUnit: "nanoseconds", SampleType: "samples", SampleUnit: "count"}
	for i, labels := range labelSets {
		require.NoError(t, l.ReportTraceEvent(
			&libpf.Trace{CustomLabels: labels},
			&samples.TraceEventMeta{PID: 1, ProfileType: cpu, Timestamp: libpf.UnixTime64(i + 1)}))
	}
	require.NoError(t, l.Start(t.Context()))
	defer l.Stop()
	require.Eventually(t, func() bool { return len(sink.AllProfiles()) > 0 }, testenv.Patience, time.Millisecond)
	return sink.AllProfiles()[0]
}

// seen is the part of a reported sample that tests compare.
type seen struct {
	span, attributes string
	times            int
}

// seenIn counts the samples in p by span, label attributes and number of timestamps.
func seenIn(p pprofile.Profiles) map[seen]int {
	out := map[seen]int{}
	d := p.Dictionary()
	all := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples()
	for _, sample := range all.All() {
		s := seen{times: sample.TimestampsUnixNano().Len()}
		if i := sample.LinkIndex(); i != 0 {
			s.span = d.LinkTable().At(int(i)).SpanID().String()
		}
		for _, i := range sample.AttributeIndices().All() {
			a := d.AttributeTable().At(int(i))
			if key := d.StringTable().At(int(a.KeyStrindex())); key != "thread.id" && key != "cpu.logical_number" {
				s.attributes += key + "=" + a.Value().AsString()
			}
		}
		out[s]++
	}
	return out
}

func TestSamplesInDifferentSpansAreNotMerged(t *testing.T) {
	set := componenttest.NewTelemetry()
	tel, err := newTelemetry(set.NewTelemetrySettings().MeterProvider)
	require.NoError(t, err)
	p := reported(t, &linker{links: true, telemetry: tel},
		labels("trace_id", traceA, "span_id", spanA),
		labels("trace_id", traceA, "span_id", spanB),
		labels("trace_id", traceA, "span_id", spanA),
		labels("trace_id", traceA, "span_id", spanA, "tenant", "a"),
		labels("trace_id", traceA, "span_id", spanA, "tenant", "b"),
		labels("tenant", "b"), nil, nil)
	assert.Equal(t, map[seen]int{
		{spanA, "", 2}: 1,
		{spanB, "", 1}: 1,
		{spanA, "process.context.label.tenant=a", 1}: 1,
		{spanA, "process.context.label.tenant=b", 1}: 1,
		{"", "process.context.label.tenant=b", 1}:    1,
		{"", "", 2}: 1,
	}, seenIn(p))
	assert.Equal(t, int64(5), counted(t, set, "otelcol_otelctx_samples_linked"))
	assert.Equal(t, int64(3), counted(t, set, "otelcol_otelctx_samples_unlinked"))
}

func TestWithoutSpanLinksIDsStayAttributes(t *testing.T) {
	p := reported(t, &linker{}, labels("span_id", spanA), labels("span_id", spanB))
	assert.Equal(t, map[seen]int{
		{"", "process.context.label.span_id=" + spanA, 1}: 1,
		{"", "process.context.label.span_id=" + spanB, 1}: 1,
	}, seenIn(p))
}

// counted returns the value of a metric, summed over its data points.
func counted(t *testing.T, set *componenttest.Telemetry, name string) int64 {
	t.Helper()
	m, err := set.GetMetric(name)
	require.NoError(t, err)
	sum := int64(0)
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		sum += p.Value
	}
	return sum
}
