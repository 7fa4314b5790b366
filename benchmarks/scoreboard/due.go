// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
)

// id identifies a span. The zero id means no span.
type id struct {
	Trace trace.TraceID
	Span  trace.SpanID
}

func idOf(sc trace.SpanContext) id { return id{sc.TraceID(), sc.SpanID()} }

// due is the right answer for a piece of work in a pattern: the spans that an observer may report.
type due struct {
	Pattern string
	// Spans holds one or two right spans. Unused elements are zero.
	Spans [2]id
	// Nothing says that the observer may also report no span.
	Nothing bool
}

// kind classifies what an observer must report: "shown" is a span, "nothing" is no span, and "either"
// is one of them.
func (t due) kind() string {
	switch {
	case t.Spans[0] == id{}:
		return "nothing"
	case t.Nothing:
		return "either"
	default:
		return "shown"
	}
}

// expected assigns a number to each value of due. While a pattern works, the number is on its stack.
type expected struct {
	mu      sync.Mutex
	numbers map[due]uint64
	all     []due
}

// number returns the number of t. Equal values have the same number.
func (ts *expected) number(t due) uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if n, ok := ts.numbers[t]; ok {
		return n
	}
	if ts.numbers == nil {
		ts.numbers = map[due]uint64{}
	}
	n := uint64(len(ts.all))
	if n >= stacknumber.Max {
		panic("more values than numbers")
	}
	ts.numbers[t] = n
	ts.all = append(ts.all, t)
	return n
}

// parseID decodes the hexadecimal ids of a span. Empty texts mean no span.
func parseID(traceID, spanID string) (id, error) {
	var out id
	if len(traceID) > 2*len(out.Trace) || len(spanID) > 2*len(out.Span) {
		return out, fmt.Errorf("%s %s: too long for the ids of a span", traceID, spanID)
	}
	if _, err := hex.Decode(out.Trace[:], []byte(traceID)); err != nil {
		return out, err
	}
	_, err := hex.Decode(out.Span[:], []byte(spanID))
	return out, err
}
