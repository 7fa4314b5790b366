// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/reader"
)

// samplesOf returns samples of a service, in a span if it has an id.
func samplesOf(service string, times int, span sampler.Span) *rawSamples {
	return &rawSamples{rawKey: rawKey{published: &published{service: service}, span: span}, times: make([]time.Time, times)}
}

func TestTally(t *testing.T) {
	in := samplesOf
	span := func(trace, span byte, proven bool) sampler.Span {
		return sampler.Span{TraceID: [16]byte{trace}, SpanID: [8]byte{span}, Proven: proven}
	}
	c := newTally(false)
	none := sampler.Span{}
	for _, s := range []*rawSamples{
		in("a", 1, none), in("a", 1, span(1, 1, true)), in("a", 2, span(1, 2, true)), in("a", 1, span(2, 3, false)), in("a", 1, span(2, 3, true)),
	} {
		c.add(10, s, nil)
	}
	// Another service with the same ids has its own share of the trace.
	var shown []reader.ThreadAttribute
	for _, step := range []string{"1", "2"} {
		shown = []reader.ThreadAttribute{{Key: "step", Value: step}}
		c.add(20, in("b", 1, span(1, 9, true)), shown)
	}
	c.add(20, in("b", 1, none), nil)
	var r Result
	c.report(&r)
	r.Work, r.SpanNames = nil, nil
	assert.Equal(t, Result{
		Samples: 9, Attributed: 7, Unproven: 1,
		Processes: []ProcessUse{{10, "a", "", 6, 5}, {20, "b", "", 3, 2}},
		Spans: []SpanUse{
			{"a", "", [16]byte{1}, [8]byte{2}, 2, 0, nil},
			{"a", "", [16]byte{2}, [8]byte{3}, 2, 1, nil},
			{"b", "", [16]byte{1}, [8]byte{9}, 2, 0, shown},
			{"a", "", [16]byte{1}, [8]byte{1}, 1, 0, nil},
		},
		Traces: []TraceUse{{"a", [16]byte{1}, 2, 3}, {"a", [16]byte{2}, 1, 2}, {"b", [16]byte{1}, 1, 2}},
	}, r)
}

func TestTallyOfNames(t *testing.T) {
	attributes := func(pairs ...string) (shown []reader.ThreadAttribute) {
		for i := 0; i < len(pairs); i += 2 {
			shown = append(shown, reader.ThreadAttribute{Key: pairs[i], Value: pairs[i+1]})
		}
		return shown
	}
	c := newTally(true)
	for _, s := range []struct {
		trace, span, root byte
		times             int
		shown             []reader.ThreadAttribute
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
		c.add(1, samplesOf("a", s.times, sampler.Span{TraceID: [16]byte{s.trace}, SpanID: [8]byte{s.span}, LocalRootSpanID: [8]byte{s.root}}), s.shown)
	}
	var r Result
	c.report(&r)
	assert.Equal(t, []NameUse{{"a", "SELECT", 2, 6}, {"a", "GET /a", 2, 5}, {"a", "", 1, 1}, {"a", "GET /b", 1, 1}}, r.Names)
	assert.Equal(t, []NameUse{{"a", "GET /a", 2, 11}, {"a", "", 1, 1}, {"a", "GET /b", 1, 1}}, r.Endpoints)
	assert.Equal(t, map[SpanName]uint64{
		{"a", "GET /a", "GET /a"}: 5, {"a", "GET /a", "SELECT"}: 6, {"a", "GET /b", "GET /b"}: 1, {"a", "", ""}: 1,
	}, r.SpanNames)
	assert.Equal(t, "GET /a", r.Spans[0].Name)
	assert.Empty(t, r.Spans[0].Attributes)
	assert.Equal(t, "SELECT", r.Spans[1].Name)
	assert.Equal(t, attributes("db", "x"), r.Spans[2].Attributes)
	assert.Contains(t, r.Attributes, AttributeUse{"span_name", "SELECT", 6})
	assert.Contains(t, r.Attributes, AttributeUse{"db", "x", 2})
}

func TestTallyOfFunctions(t *testing.T) {
	stack := func(names ...string) (stack []*symbols.Location) {
		for _, name := range names {
			stack = append(stack, &symbols.Location{Type: symbols.TypeGo, Lines: []symbols.Line{{Function: name}}})
		}
		return stack
	}
	inlined := stack("main.inlined")
	inlined[0].Lines = append(inlined[0].Lines, symbols.Line{Function: "main.f"})
	kernel := append([]*symbols.Location{{Type: symbols.TypeKernel, Lines: []symbols.Line{{Function: "do_futex"}}}}, stack("main.f")...)
	long := strings.Repeat("x", maxNameBytes)
	c := newTally(false)
	for _, s := range []struct {
		stack               []*symbols.Location
		samples, attributed uint64
		work                Work
	}{
		{stack("main.f", "main.f", "main.main"), 3, 2, Application},
		{append(inlined, stack("main.main")...), 1, 1, Application},
		{stack("runtime.mallocgc", "main.f"), 4, 4, Runtime},
		{stack("internal/runtime/maps.(*Map).Delete"), 1, 0, Runtime},
		{stack("runtime/pprof.Do"), 1, 0, Application},
		{stack("runtime.scanobject", "runtime.gcDrain", "runtime.systemstack", "runtime.gcBgMarkWorker"), 5, 0, GarbageCollection},
		{stack("runtime.findRunnable", "runtime.schedule"), 1, 0, Idle},
		{kernel, 2, 1, Kernel},
		{append(kernel[:1:1], stack("runtime.findRunnable")...), 1, 0, Idle},
		{nil, 1, 0, Application},
		{[]*symbols.Location{{}}, 1, 0, Application},
		{[]*symbols.Location{{Mapping: &symbols.Mapping{Path: "/lib/libc.so"}}}, 1, 0, Application},
		{stack(long + "y"), 9, 0, Application},
	} {
		assert.Equal(t, s.work, workOf(s.stack), "%v", s.stack)
		c.addStack("a", s.stack, s.samples, s.attributed)
	}
	var r Result
	c.report(&r)
	assert.Contains(t, r.Functions, FunctionUse{"a", "main.f", 3, 10})
	assert.Contains(t, r.Functions, FunctionUse{"a", "main.inlined", 1, 1})
	assert.Contains(t, r.Functions, FunctionUse{"a", "main.main", 0, 4})
	assert.Contains(t, r.Functions, FunctionUse{"a", "[unknown]", 1, 1})
	assert.Contains(t, r.Functions, FunctionUse{"a", "[libc.so]", 1, 1})
	assert.Equal(t, FunctionUse{"a", long, 9, 9}, r.Functions[0])
	assert.Contains(t, r.Work, WorkUse{Runtime, 5, 4})
	assert.Contains(t, r.Work, WorkUse{Idle, 2, 0})
}

// TestTallyIsBounded checks that the entries with many samples stay if there are more entries than there is
// room for.
func TestTallyIsBounded(t *testing.T) {
	c := newTally(true)
	for i := range 3 * maxFunctions {
		name := strconv.Itoa(i)
		if i%100 == 0 {
			name = "often"
		}
		c.addStack("a", []*symbols.Location{{Lines: []symbols.Line{{Function: name}}}}, 1, 0)
		shown := []reader.ThreadAttribute{{Key: "span_name", Value: name}}
		c.add(1, samplesOf("a", 1, sampler.Span{SpanID: [8]byte{1, 4: byte(i), byte(i >> 8), byte(i >> 16)}}), shown)
		require.LessOrEqual(t, len(c.functions), maxFunctions)
		require.LessOrEqual(t, len(c.attributes), maxAttributes)
		require.LessOrEqual(t, len(c.names), maxSpanNames)
	}
	var r Result
	c.report(&r)
	const often = (3*maxFunctions + 99) / 100
	assert.Equal(t, FunctionUse{"a", "often", often, often}, r.Functions[0])
	assert.Equal(t, AttributeUse{"span_name", "often", often}, r.Attributes[0])
	assert.Equal(t, NameUse{"a", "often", often, often}, r.Names[0])
}

// TestTallyOfManySpans expects the spans with the fewest samples to be dropped.
func TestTallyOfManySpans(t *testing.T) {
	c := newTally(false)
	for i := range maxSpans + 10 {
		c.add(1, samplesOf("a", 1+i%2, sampler.Span{TraceID: [16]byte{1}, SpanID: [8]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}}), nil)
		require.LessOrEqual(t, len(c.spans), maxSpans)
	}
	var r Result
	c.report(&r)
	assert.EqualValues(t, (maxSpans+10)*3/2, r.Samples)
	assert.Equal(t, r.Samples, r.Attributed)
	assert.Equal(t, maxSpans+10, int(r.SpansLeftOut)+len(r.Spans))
	assert.EqualValues(t, 2, r.Spans[len(r.Spans)-20].Samples)
}

// TestTallyOfManyAttributes expects spans to be dropped if their attributes take too much memory.
func TestTallyOfManyAttributes(t *testing.T) {
	const spans, samples = 3000, 2 // of each
	shown := []reader.ThreadAttribute{{Key: "span_name", Value: "n"}, {Key: "k", Value: strings.Repeat("v", maxAttributeBytes/spans*2)}}
	c := newTally(false)
	for i := range spans * samples {
		span := sampler.Span{TraceID: [16]byte{1}, SpanID: [8]byte{1, 6: byte(i % spans >> 8), 7: byte(i % spans)}}
		c.add(1, samplesOf("a", 1, span), shown)
		require.LessOrEqual(t, c.attributeBytes, maxAttributeBytes+attributesMemory(shown))
	}
	held := 0
	for _, count := range c.spans {
		held += attributesMemory(count.list())
	}
	assert.Equal(t, held, c.attributeBytes)
	var r Result
	c.report(&r)
	assert.EqualValues(t, spans*samples, r.Attributed)
	assert.EqualValues(t, spans*samples, r.Names[0].Samples)
	assert.Positive(t, r.SpansLeftOut)
}
