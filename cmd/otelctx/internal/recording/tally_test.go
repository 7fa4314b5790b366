// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/reader"
)

func TestTally(t *testing.T) {
	in := func(service string, times int, span rawSpan) *rawSamples {
		return &rawSamples{rawKey: rawKey{published: &published{service: service}, span: span}, times: make([]time.Time, times)}
	}
	span := func(trace, span byte, proven bool) rawSpan {
		return rawSpan{traceID: [16]byte{trace}, spanID: [8]byte{span}, proven: proven}
	}
	c := newTally()
	none := rawSpan{}
	for _, s := range []*rawSamples{
		in("a", 1, none), in("a", 1, span(1, 1, true)), in("a", 2, span(1, 2, true)), in("a", 1, span(2, 3, false)), in("a", 1, span(2, 3, true)),
	} {
		c.add(10, s, nil)
	}
	// The same ids in another service are another one's share of the trace.
	var shown []reader.ThreadAttribute
	for _, step := range []string{"1", "2"} {
		shown = []reader.ThreadAttribute{{Key: "step", Value: step}}
		c.add(20, in("b", 1, span(1, 9, true)), shown)
	}
	c.add(20, in("b", 1, none), nil)
	var r Result
	c.report(&r)
	assert.Equal(t, Result{
		Samples: 9, Attributed: 7, Unproven: 1,
		Processes: []ProcessUse{{10, "a", 6, 5}, {20, "b", 3, 2}},
		Spans: []SpanUse{
			{"a", [16]byte{1}, [8]byte{2}, 2, 0, nil},
			{"a", [16]byte{2}, [8]byte{3}, 2, 1, nil},
			{"b", [16]byte{1}, [8]byte{9}, 2, 0, shown},
			{"a", [16]byte{1}, [8]byte{1}, 1, 0, nil},
		},
		Traces: []TraceUse{{"a", [16]byte{1}, 2, 3}, {"a", [16]byte{2}, 1, 2}, {"b", [16]byte{1}, 1, 2}},
	}, r)
}

// TestTallyOfManySpans leaves out those with the fewest samples.
func TestTallyOfManySpans(t *testing.T) {
	c := newTally()
	of := &published{service: "a"}
	for i := range maxSpans + 10 {
		s := &rawSamples{rawKey: rawKey{published: of, span: rawSpan{traceID: [16]byte{1}, spanID: [8]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}}}}
		s.times = make([]time.Time, 1+i%2)
		c.add(1, s, nil)
		require.LessOrEqual(t, len(c.spans), maxSpans)
	}
	var r Result
	c.report(&r)
	assert.EqualValues(t, (maxSpans+10)*3/2, r.Samples)
	assert.Equal(t, r.Samples, r.Attributed)
	assert.Equal(t, maxSpans+10, int(r.SpansLeftOut)+len(r.Spans))
	assert.EqualValues(t, 2, r.Spans[len(r.Spans)-20].Samples)
}
