// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/truth"
)

// id identifies a span. The zero id means no span.
type id struct {
	trace trace.TraceID
	span  trace.SpanID
}

func idOf(sc trace.SpanContext) id { return id{sc.TraceID(), sc.SpanID()} }

// due is the right answer for a piece of work in a pattern: the spans that an observer may report.
type due struct {
	pattern string
	// spans holds up to two permitted spans. Unused elements are zero.
	spans [2]id
	// nothing says that the observer may also report no span.
	nothing bool
}

// kind classifies what an observer must report: "shown" is a span, "nothing" is no span, and "either"
// permits both.
func (t due) kind() string {
	switch {
	case t.spans[0] == id{}:
		return "nothing"
	case t.nothing:
		return "either"
	default:
		return "shown"
	}
}

// truths assigns a number to each value of due. While a pattern works, the number is on its stack.
type truths struct {
	mu      sync.Mutex
	numbers map[due]uint64
	all     []due
}

// number returns the number of t. Equal values have the same number.
func (ts *truths) number(t due) uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if n, ok := ts.numbers[t]; ok {
		return n
	}
	if ts.numbers == nil {
		ts.numbers = map[due]uint64{}
	}
	n := uint64(len(ts.all))
	if n >= truth.Max {
		panic("more truths than numbers")
	}
	ts.numbers[t] = n
	ts.all = append(ts.all, t)
	return n
}

// write writes a line for each truth, in the order of the numbers.
func (ts *truths) write(w io.Writer) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	buffered := bufio.NewWriter(w)
	for _, t := range ts.all {
		_, _ = fmt.Fprintf(buffered, "%s %t", t.pattern, t.nothing)
		for _, s := range t.spans {
			_, _ = fmt.Fprintf(buffered, " %x %x", s.trace[:], s.span[:])
		}
		_, _ = fmt.Fprintln(buffered)
	}
	return buffered.Flush()
}

// readTruths reads the output of write.
func readTruths(r io.Reader) ([]due, error) {
	var all []due
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var (
			t     due
			words [4]string
		)
		if _, err := fmt.Sscan(lines.Text(), &t.pattern, &t.nothing, &words[0], &words[1], &words[2], &words[3]); err != nil {
			return nil, fmt.Errorf("truth %d: %w", len(all), err)
		}
		for i := range t.spans {
			var err error
			if t.spans[i], err = parseID(words[2*i], words[2*i+1]); err != nil {
				return nil, fmt.Errorf("truth %d: %w", len(all), err)
			}
		}
		all = append(all, t)
	}
	return all, lines.Err()
}

// parseID decodes the hexadecimal ids of a span. Empty texts mean no span.
func parseID(traceID, spanID string) (id, error) {
	var out id
	if len(traceID) > 2*len(out.trace) || len(spanID) > 2*len(out.span) {
		return out, fmt.Errorf("%s %s: too long for the ids of a span", traceID, spanID)
	}
	if _, err := hex.Decode(out.trace[:], []byte(traceID)); err != nil {
		return out, err
	}
	_, err := hex.Decode(out.span[:], []byte(spanID))
	return out, err
}
