// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// TestLabelsAsProfilersReadThem checks that labels are read with the limits of the OpenTelemetry eBPF profiler:
// the number of labels, in the order of their keys, and the number of bytes in a value.
func TestLabelsAsProfilersReadThem(t *testing.T) {
	const trace, span = "0123456789abcdef0123456789abcdef", "fedcba9876543210"
	both := []string{"trace_id", trace, "span_id", span}
	with := func(more ...string) []string { return append(more, both...) }
	var before, after []string // eight labels each
	for _, letter := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		before = append(before, "a"+letter, "value")
		after = append(after, "z"+letter, "value")
	}
	for name, test := range map[string]struct {
		labels []string
		found  bool
	}{
		"alone":                      {both, true},
		"ten labels":                 {with(before...), true},
		"last of eleven labels":      {with(append(before, "a9", "value")...), false},
		"first of eleven labels":     {with(append(after, "z9", "value")...), true},
		"long labels beside":         {with("a", strings.Repeat("v", 5000), strings.Repeat("k", 5000), "value", "b", ""), true},
		"key that begins alike":      {[]string{"trace_id_of_the_parent", trace, "span_id", span}, false},
		"text behind trace id":       {[]string{"trace_id", trace + "0", "span_id", span}, false},
		"trace id beyond the limit":  {[]string{"trace_id", strings.Repeat(" ", 40) + trace, "span_id", span}, false},
		"zero in what is cut":        {[]string{"trace_id", trace + "\x00" + strings.Repeat("v", 100), "span_id", span}, true},
		"upper case":                 {[]string{"trace_id", strings.ToUpper(trace), "span_id", span}, false},
		"trace id without a span id": {[]string{"trace_id", trace}, false},
		"no labels":                  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, goroutines := 0, 0
			for _, one := range takeLabelled(t, 200, test.labels) {
				if one.Goroutine != 0 {
					goroutines++
				}
				if !one.Span.Exists() {
					continue
				}
				found++
				require.Equal(t, trace, hex.EncodeToString(one.Span.TraceID[:]))
				require.Equal(t, span, hex.EncodeToString(one.Span.SpanID[:]))
				require.Equal(t, Labels, one.Span.Carrier)
			}
			assert.Greater(t, goroutines, 100)
			if test.found {
				assert.Greater(t, found, 100)
			} else {
				assert.Zero(t, found)
			}
		})
	}
}

// TestLabelsThatChange checks that a sample contains no remains of longer labels from earlier samples.
func TestLabelsThatChange(t *testing.T) {
	const trace, span = "0123456789abcdef0123456789abcdef", "fedcba9876543210"
	samples := takeLabelled(t, 600,
		[]string{"span_id_before", "value", "trace_id_before", "value"},
		[]string{"span_id", span + "longer", "trace_id", trace + "longer"},
		[]string{"span_id", span, "trace_id", trace},
	)
	found := 0
	for _, one := range samples {
		if one.Span.Exists() {
			found++
			require.Equal(t, span, hex.EncodeToString(one.Span.SpanID[:]))
		}
	}
	assert.Greater(t, found, 60) // about a third have the labels
	assert.Less(t, found, 500)
}

// takeLabelled returns n samples of a process whose goroutine has these sets of labels in turn.
func takeLabelled(t *testing.T, n int, sets ...[]string) []Sample {
	t.Helper()
	s := open(t, Config{Frequency: busyservice.Frequency(), Carrier: Labels})
	c := childproc.Start(t, roleLabels, nil)
	order, err := json.Marshal(sets)
	require.NoError(t, err)
	require.Equal(t, "labelled", c.Ask("%s", order))
	watch(t, s, c.PID(), layoutOf(t, c.PID()))
	return take(t, s, n)
}

// roleLabels burns CPU on a goroutine with labels that are given as JSON and set by pprof.Do,
// alternating if there are several sets. It advertises the position of goroutine labels, but no
// records.
const roleLabels = "labels"

func labelsRole(parent *childproc.Parent) {
	order, _ := parent.Receive()
	var sets [][]string
	parent.Must(json.Unmarshal([]byte(order), &sets))
	processor, err := spanctx.New(spanctx.WithLabels(spanctx.LabelsOff))
	parent.Must(errors.Join(err, processor.Stats().Off))
	_, err = resourcepublisher.New(resource.NewSchemaless(attribute.String("service.name", "labels")))
	parent.Must(err)
	labelled := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			pprof.Do(context.Background(), pprof.Labels(sets[n%len(sets)]...), func(context.Context) {
				if n == 0 {
					close(labelled)
				}
				burnBelow(110)
			})
		}
	}()
	<-labelled
	parent.Send("labelled")
	parent.Receive()
}

// burnBelow uses the CPU for a while below the given number of frames. A deep stack is necessary to detect
// remains of earlier labels, because labels follow the stack in a sample, and the kernel zeroes the space that a
// shorter stack leaves.
//
//go:noinline
func burnBelow(frames int) {
	if frames > 0 {
		burnBelow(frames - 1)
		return
	}
	for range 200_000 {
		burnt.Add(1)
	}
}

// labelsOf encodes labels as the BPF program does.
func labelsOf(keysAndValues ...string) (b []byte) {
	for i := 0; i < len(keysAndValues); i += 2 {
		label := make([]byte, labelSize)
		copy(label, keysAndValues[i])
		copy(label[labelKeySize:], keysAndValues[i+1])
		b = append(b, label...)
	}
	return b
}

func TestSpanOfLabels(t *testing.T) {
	const trace, span = "0123456789abcdef0123456789abcdef", "fedcba9876543210"
	for name, test := range map[string]struct {
		labels []byte
		found  bool
	}{
		"none":                         {nil, false},
		"both":                         {labelsOf("trace_id", trace, "span_id", span), true},
		"others beside":                {labelsOf("a", "b", "span_id", span, "b", "", "trace_id", trace, "z", "\xff"), true},
		"no trace id":                  {labelsOf("span_id", span), false},
		"no span id":                   {labelsOf("trace_id", trace), false},
		"short":                        {labelsOf("trace_id", trace[1:], "span_id", span), false},
		"long":                         {labelsOf("trace_id", trace, "span_id", span+"0"), false},
		"no digits":                    {labelsOf("trace_id", trace, "span_id", "fedcba987654321g"), false},
		"upper case":                   {labelsOf("trace_id", trace, "span_id", "FEDCBA9876543210"), false},
		"trace id of zeros":            {labelsOf("trace_id", strings.Repeat("0", 32), "span_id", span), false},
		"span id of zeros":             {labelsOf("trace_id", trace, "span_id", strings.Repeat("0", 16)), false},
		"the last one counts":          {labelsOf("trace_id", "x", "span_id", span, "trace_id\x00x", trace), true},
		"the last one is wrong":        {labelsOf("trace_id", trace, "span_id", span, "span_id", "x"), false},
		"the last one is empty":        {labelsOf("trace_id", trace, "span_id", span, "span_id", ""), false},
		"the last one is no text":      {labelsOf("trace_id", trace, "span_id", span, "span_id", "\xff"), true},
		"text before what is no text":  {labelsOf("trace_id", trace+"\xff", "span_id", span+"\xc3"), true},
		"text before what is a zero":   {labelsOf("trace_id", trace+"\x00x", "span_id", span), true},
		"part of a label":              {labelsOf("trace_id", trace, "span_id", span)[:2*labelSize-1], false},
		"a character of three bytes":   {labelsOf("trace_id", trace, "span_id", span[3:]+"€"), false},
		"the character for no text":    {labelsOf("trace_id", trace+"\uFFFD", "span_id", span), false},
		"a character before a zero":    {labelsOf("trace_id", trace, "span_id", span+"€\x00"), false},
		"keys that begin with another": {labelsOf("trace_id2", trace, "span_id", span), false},
	} {
		t.Run(name, func(t *testing.T) {
			got := spanOfLabels(test.labels)
			if !test.found {
				assert.Zero(t, got)
				return
			}
			assert.Equal(t, Span{
				TraceID: [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF, 0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF},
				SpanID:  [8]byte{0xFE, 0xDC, 0xBA, 0x98, 0x76, 0x54, 0x32, 0x10}, Carrier: Labels, Proven: true,
			}, got)
		})
	}
}

// goContext returns a process context that says which Go version the process was built with, or nil for "".
func goContext(version string) *reader.ProcessContext {
	if version == "" {
		return nil
	}
	return &reader.ProcessContext{Attributes: []*commonpb.KeyValue{{
		Key: wire.KeyGo + wire.GoKeyVersion, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: version}},
	}}}
}
