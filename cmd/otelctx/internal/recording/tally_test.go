// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
	"github.com/otelctx/otelctx/reader"
)

func TestTally(t *testing.T) {
	in := func(trace, span byte, proven bool) *sampler.Sample {
		return &sampler.Sample{Span: &sampler.Span{TraceID: [16]byte{trace}, SpanID: [8]byte{span}, Proven: proven}}
	}
	c := newTally()
	none := &sampler.Sample{}
	for _, s := range []*sampler.Sample{none, in(1, 1, true), in(1, 2, true), in(1, 2, true), in(2, 3, false), in(2, 3, true)} {
		c.add(10, "a", s, nil)
	}
	// The same ids in another service are another one's share of the trace.
	var shown []reader.ThreadAttribute
	for _, step := range []string{"1", "2"} {
		shown = []reader.ThreadAttribute{{Key: "step", Value: step}}
		c.add(20, "b", in(1, 9, true), shown)
	}
	c.add(20, "b", none, nil)
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
