// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
)

func TestTally(t *testing.T) {
	in := func(trace, span byte, proven bool) *sampler.Sample {
		return &sampler.Sample{Span: &sampler.Span{TraceID: [16]byte{trace}, SpanID: [8]byte{span}, Proven: proven}}
	}
	c := newTally()
	none := &sampler.Sample{}
	for _, s := range []*sampler.Sample{none, in(1, 1, true), in(1, 2, true), in(1, 2, true), in(2, 3, false), in(2, 3, true)} {
		c.add(10, "a", s)
	}
	// The same ids in another service are another one's share of the trace.
	for _, s := range []*sampler.Sample{in(1, 9, true), none} {
		c.add(20, "b", s)
	}
	var r Result
	c.report(&r)
	assert.Equal(t, Result{
		Samples: 8, Attributed: 6, Unproven: 1,
		Processes: []ProcessUse{{10, "a", 6, 5}, {20, "b", 2, 1}},
		Spans: []SpanUse{
			{"a", [16]byte{1}, [8]byte{2}, 2, 0},
			{"a", [16]byte{2}, [8]byte{3}, 2, 1},
			{"a", [16]byte{1}, [8]byte{1}, 1, 0},
			{"b", [16]byte{1}, [8]byte{9}, 1, 0},
		},
		Traces: []TraceUse{{"a", [16]byte{1}, 2, 3}, {"a", [16]byte{2}, 1, 2}, {"b", [16]byte{1}, 1, 1}},
	}, r)
}
