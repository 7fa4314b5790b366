// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tally

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/reader"
)

type counter struct{ *Tally[Count] }

func newCounter(attributes bool) counter { return counter{New[Count](attributes)} }

// add adds samples of a service, in a span if it has an id.
func (c counter) add(pid int, service string, samples int, span Span, attributes []reader.Attribute) {
	s := &Sample{PID: pid, Service: service, Attributes: attributes}
	if span != (Span{}) {
		s.Span = &span
	}
	c.Add(s, Count(samples))
}

func TestTally(t *testing.T) {
	span := func(trace, span byte, proven bool) Span {
		return Span{TraceID: [16]byte{trace}, SpanID: [8]byte{span}, Proven: proven}
	}
	c := newCounter(false)
	c.add(10, "a", 1, Span{}, nil)
	c.add(10, "a", 1, span(1, 1, true), nil)
	c.add(10, "a", 2, span(1, 2, true), nil)
	c.add(10, "a", 1, span(2, 3, false), nil)
	c.add(10, "a", 1, span(2, 3, true), nil)
	// Another service with the same ids has its own share of the trace.
	var shown []reader.Attribute
	for _, step := range []string{"1", "2"} {
		shown = []reader.Attribute{{Key: "step", Value: step}}
		c.add(20, "b", 1, span(1, 9, true), shown)
	}
	c.add(20, "b", 1, Span{}, nil)
	assert.Equal(t, []Count{9, 7, 1}, []Count{c.Total, c.Attributed, c.Unproven})
	r := c.Rows()
	r.SpanNames = nil
	assert.Equal(t, Rows[Count]{
		Processes: []Process[Count]{{10, "a", "", 6, 5}, {20, "b", "", 3, 2}},
		Spans: []SpanUse[Count]{
			{"a", "", [16]byte{1}, [8]byte{2}, 2, 0, nil},
			{"a", "", [16]byte{2}, [8]byte{3}, 2, 1, nil},
			{"b", "", [16]byte{1}, [8]byte{9}, 2, 0, shown},
			{"a", "", [16]byte{1}, [8]byte{1}, 1, 0, nil},
		},
		Traces: []Trace[Count]{{"a", [16]byte{1}, 2, 3}, {"a", [16]byte{2}, 1, 2}, {"b", [16]byte{1}, 1, 2}},
	}, r)
}

func TestTallyOfNames(t *testing.T) {
	attributes := func(pairs ...string) (shown []reader.Attribute) {
		for i := 0; i < len(pairs); i += 2 {
			shown = append(shown, reader.Attribute{Key: pairs[i], Value: pairs[i+1]})
		}
		return shown
	}
	c := newCounter(true)
	for _, s := range []struct {
		trace, span, root byte
		times             int
		shown             []reader.Attribute
	}{
		{1, 1, 1, 3, attributes("span_name", "GET /a")},
		{1, 1, 1, 1, nil}, // while it ends
		{1, 2, 1, 1, attributes("span_name", "SELECT", "db", "x")},
		{1, 2, 0, 1, attributes("span_name", "SELECT", "endpoint", "GET /a", "db", "x")}, // its carrier does not publish the local root
		{2, 3, 3, 1, attributes("endpoint", "GET /a", "span_name", "GET /a")},
		{2, 4, 3, 4, attributes("span_name", "SELECT")}, // in a request whose endpoint only the other span has
		{3, 5, 5, 1, attributes("span_name", "old", "span_name", "GET /b")},
		{4, 6, 0, 1, nil},
	} {
		c.add(1, "a", s.times, Span{TraceID: [16]byte{s.trace}, SpanID: [8]byte{s.span}, LocalRootSpanID: [8]byte{s.root}}, s.shown)
	}
	r := c.Rows()
	assert.Equal(t, []Name[Count]{{"a", "SELECT", 2, 6, nil}, {"a", "GET /a", 2, 5, nil}, {"a", "", 1, 1, nil}, {"a", "GET /b", 1, 1, nil}}, r.Names)
	assert.Equal(t, []Name[Count]{{"a", "GET /a", 2, 11, nil}, {"a", "", 1, 1, nil}, {"a", "GET /b", 1, 1, nil}}, r.Endpoints)
	assert.Equal(t, []SpanName[Count]{{"a", "GET /a", "SELECT", 2, 6}, {"a", "GET /a", "GET /a", 2, 5}, {"a", "", "", 1, 1}, {"a", "GET /b", "GET /b", 1, 1}}, r.SpanNames)
	assert.Equal(t, "GET /a", r.Spans[0].Name)
	assert.Empty(t, r.Spans[0].Attributes)
	assert.Equal(t, "SELECT", r.Spans[1].Name)
	assert.Equal(t, attributes("db", "x"), r.Spans[2].Attributes)
	assert.Contains(t, r.Attributes, Attribute[Count]{"span_name", "SELECT", 6})
	assert.Contains(t, r.Attributes, Attribute[Count]{"db", "x", 2})
}

// TestTallyIsBounded checks that the entries with many samples stay if there are more entries than there is
// room for.
func TestTallyIsBounded(t *testing.T) {
	c := newCounter(true)
	for i := range 3 * maxFunctions {
		name := strconv.Itoa(i)
		if i%100 == 0 {
			name = "often"
		}
		c.AddStack("a", slices.Values([]string{name}), 1)
		shown := []reader.Attribute{{Key: "span_name", Value: name}}
		c.add(1, "a", 1, Span{SpanID: [8]byte{1, 4: byte(i), byte(i >> 8), byte(i >> 16)}}, shown)
		require.LessOrEqual(t, len(c.functions), maxFunctions)
		require.LessOrEqual(t, len(c.attributes), maxAttributes)
		require.LessOrEqual(t, len(c.names), maxSpanNames)
	}
	r := c.Rows()
	const often = (3*maxFunctions + 99) / 100
	assert.Equal(t, Function[Count]{"a", "often", often, often}, r.Functions[0])
	assert.Equal(t, Attribute[Count]{"span_name", "often", often}, r.Attributes[0])
	assert.Equal(t, Name[Count]{"a", "often", often, often, nil}, r.Names[0])
}

// TestTallyOfManySpans expects the spans with the fewest samples to be dropped.
func TestTallyOfManySpans(t *testing.T) {
	c := newCounter(false)
	for i := range maxSpans + 10 {
		c.add(1, "a", 1+i%2, Span{TraceID: [16]byte{1}, SpanID: [8]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}}, nil)
		require.LessOrEqual(t, len(c.spans), maxSpans)
	}
	r := c.Rows()
	assert.EqualValues(t, (maxSpans+10)*3/2, c.Total)
	assert.Equal(t, c.Total, c.Attributed)
	assert.Equal(t, maxSpans+10, int(r.SpansLeftOut)+len(r.Spans))
	assert.EqualValues(t, 2, r.Spans[len(r.Spans)-20].Amount)
}

// TestTallyOfManyAttributes expects spans to be dropped if their attributes take too much memory.
func TestTallyOfManyAttributes(t *testing.T) {
	const spans, samples = 3000, 2 // of each
	shown := []reader.Attribute{{Key: "span_name", Value: "n"}, {Key: "k", Value: strings.Repeat("v", maxAttributeBytes/spans*2)}}
	c := newCounter(false)
	for i := range spans * samples {
		span := Span{TraceID: [16]byte{1}, SpanID: [8]byte{1, 6: byte(i % spans >> 8), 7: byte(i % spans)}}
		c.add(1, "a", 1, span, shown)
		require.LessOrEqual(t, c.attributeBytes, maxAttributeBytes+attributesMemory(shown))
	}
	held := 0
	for _, count := range c.spans {
		held += attributesMemory(count.list())
	}
	assert.Equal(t, held, c.attributeBytes)
	r := c.Rows()
	assert.EqualValues(t, spans*samples, c.Attributed)
	assert.EqualValues(t, spans*samples, r.Names[0].Amount)
	assert.Positive(t, r.SpansLeftOut)
}

// TestTallyCutsNames expects long names of functions to be cut.
func TestTallyCutsNames(t *testing.T) {
	long := strings.Repeat("x", maxNameBytes)
	c := newCounter(false)
	c.AddStack("a", slices.Values([]string{long + "y", "f", long + "z"}), 9)
	assert.Equal(t, []Function[Count]{{"a", long, 9, 9}, {"a", "f", 0, 9}}, c.Rows().Functions)
}
