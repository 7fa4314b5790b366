// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package tally turns samples into the rows of a report: it adds up their amounts by process, function, span, trace, span
// name, endpoint and attribute. Its memory is bounded.
package tally

import (
	"bytes"
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// Amount is a quantity that rows add up, such as a number of samples or a time.
type Amount[A any] interface {
	// Add returns the sum. It may modify and retain the memory that the receiver refers to, but not that of
	// the argument.
	Add(other A) A
	// Weight orders amounts: rows are sorted by it, and if there are too many, those with little weight are dropped.
	Weight() uint64
}

// Count is a number of samples.
type Count uint64

// Add implements [Amount].
func (c Count) Add(other Count) Count { return c + other }

// Weight implements [Amount].
func (c Count) Weight() uint64 { return uint64(c) }

// Sample describes one or several equal samples.
type Sample struct {
	PID     int
	Service string
	// Source says where the name of the service is from.
	Source string
	// Span is nil for samples in no span. Attributes are those published with the span, its name and endpoint among
	// them.
	Span       *Span
	Attributes []reader.Attribute
}

// Span identifies the span of a sample. LocalRootSpanID is zeros if it is unknown.
type Span struct {
	TraceID                 [16]byte
	SpanID, LocalRootSpanID [8]byte
	// Proven reports whether the span is certainly the right one.
	Proven bool
}

// Process is the row of a process.
type Process[A any] struct {
	PID int
	// Service is the service name, or else the name of the executable. Source is as in [Sample].
	Service, Source string
	// Attributed is the amount in spans.
	Amount, Attributed A
}

// Function is the row of a function.
type Function[A any] struct {
	Service, Function string
	// Flat is the amount of the function itself. Cumulative includes its callees.
	Flat, Cumulative A
}

// Name is the row of the spans with one name, or of the requests to one endpoint.
type Name[A any] struct {
	Service string
	// Name is the name of the spans or the endpoint. It is empty if the process does not publish it.
	Name string
	// Count is the number of spans or requests that have samples.
	Count  int
	Amount A
	// Requests is the true number of requests to an endpoint. The tally does not know it, so it leaves it nil.
	Requests *Requests
}

// Requests is a number of requests, as services count them.
type Requests struct {
	// Ended is the number of requests that have ended.
	Ended uint64
	// AtLeast reports whether there may have been more.
	AtLeast bool
}

// SpanName is the row of the spans with one name in the requests to one endpoint. Endpoint and Name are empty if
// the process does not publish them.
type SpanName[A any] struct {
	Service, Endpoint, Name string
	// Count is the number of spans that have samples.
	Count  int
	Amount A
}

// SpanUse is the row of a span. It does not include the span's children.
type SpanUse[A any] struct {
	Service string
	// Name is empty if the process does not publish it.
	Name    string
	TraceID [16]byte
	SpanID  [8]byte
	Amount  A
	// Unproven is the weight of samples that may belong to another span.
	Unproven uint64
	// Attributes holds the attributes of the last sample that had any, except the span's name and endpoint.
	Attributes []reader.Attribute
}

// Trace is the row of the spans of one service in a trace.
type Trace[A any] struct {
	Service string
	TraceID [16]byte
	// Spans is the number of spans that have samples.
	Spans  int
	Amount A
}

// Attribute is the row of the spans with an attribute.
type Attribute[A any] struct {
	Key, Value string
	Amount     A
}

// Rows are the rows of a report. Each list is in descending order of weight; Functions is in the order of Flat.
type Rows[A any] struct {
	Processes []Process[A]
	Functions []Function[A]
	// Endpoints is nil if no request has an endpoint, and Names is nil if no span has a name.
	Endpoints, Names []Name[A]
	SpanNames        []SpanName[A]
	Spans            []SpanUse[A]
	Traces           []Trace[A]
	// Attributes is nil unless they are counted.
	Attributes []Attribute[A]
	// SpansLeftOut is an upper bound for the number of spans missing from Spans: if there are too many spans, those with
	// the least weight are dropped.
	SpansLeftOut uint64
}

// These constants bound the entries. Beyond a bound, the spans, span names, functions or attributes with the least weight
// are dropped. Processes beyond their bound are not listed. A span takes about 140 bytes, and the garbage collector lets
// the heap grow to twice that.
const (
	maxSpans      = 1 << 14
	maxSpanNames  = 1 << 12
	maxFunctions  = 1 << 13
	maxAttributes = 1 << 12
	maxProcesses  = 1 << 13
	// maxAttributeBytes bounds the total size of the spans' attributes, since a span may have hundreds.
	maxAttributeBytes = 8 << 20
	// maxNameBytes bounds the name of a function. Longer names are truncated.
	maxNameBytes = 1 << 9
)

// Tally adds up samples.
type Tally[A Amount[A]] struct {
	// Total is the amount of all samples.
	Total A
	// Attributed is the amount of the samples in a span.
	Attributed A
	// Unproven is the amount of the samples whose span may be wrong.
	Unproven A

	processes    map[processKey]*Process[A]
	spans        map[spanKey]spanEntry[A]
	functions    map[functionKey]*functionEntry[A]
	attributes   map[attributeKey]A // nil if attributes are not counted
	namesOf[A]                      // of the spans that were dropped from spans
	spansLeftOut uint64             // may count a span twice, because a dropped span is added again when it is sampled again
	// stacks is the number of stacks counted so far.
	stacks uint64
	// attributeBytes is the size of the attributes in spans.
	attributeBytes int
}

type processKey struct {
	pid     int
	service string
}

type spanKey struct {
	service string
	traceID [16]byte
	spanID  [8]byte
}

// spanEntry is the amount of a span. Keep it small: a long recording holds up to maxSpans of them.
type spanEntry[A any] struct {
	amount     A
	unproven   uint64
	localRoot  [8]byte             // zeros if unknown
	attributes *[]reader.Attribute // nil for none
}

type functionKey struct{ service, function string }

type functionEntry[A any] struct {
	flat, cumulative A
	stack            uint64 // number of the last stack counted in cumulative
}

type attributeKey struct{ key, value string }

type nameKey struct{ service, name string }

type spanNameKey struct{ service, endpoint, name string }

// namesOf holds the amounts of spans by their names, of requests by their endpoints, and of spans by both.
type namesOf[A Amount[A]] struct {
	names, endpoints map[nameKey]*Name[A]
	spanNames        map[spanNameKey]*SpanName[A]
}

// New returns an empty tally. It counts attributes only if attributes is true.
func New[A Amount[A]](attributes bool) *Tally[A] {
	t := &Tally[A]{
		processes: map[processKey]*Process[A]{},
		spans:     map[spanKey]spanEntry[A]{},
		functions: map[functionKey]*functionEntry[A]{},
		namesOf:   namesOf[A]{map[nameKey]*Name[A]{}, map[nameKey]*Name[A]{}, map[spanNameKey]*SpanName[A]{}},
	}
	if attributes {
		t.attributes = map[attributeKey]A{}
	}
	return t
}

// Add adds the amount of a sample.
func (t *Tally[A]) Add(s *Sample, amount A) {
	t.Total = t.Total.Add(amount)
	p := t.processes[processKey{s.PID, s.Service}]
	if p == nil {
		p = &Process[A]{PID: s.PID, Service: s.Service, Source: s.Source}
		if len(t.processes) < maxProcesses {
			t.processes[processKey{s.PID, s.Service}] = p
		}
	}
	p.Amount = p.Amount.Add(amount)
	if s.Span == nil {
		return
	}
	p.Attributed = p.Attributed.Add(amount)
	t.Attributed = t.Attributed.Add(amount)
	key := spanKey{s.Service, s.Span.TraceID, s.Span.SpanID}
	if _, known := t.spans[key]; !known && len(t.spans) == maxSpans || t.attributeBytes > maxAttributeBytes {
		t.thinSpans()
	}
	entry := t.spans[key]
	entry.amount = entry.amount.Add(amount)
	if s.Span.LocalRootSpanID != [8]byte{} { // not every carrier publishes the local root
		entry.localRoot = s.Span.LocalRootSpanID
	}
	if !s.Span.Proven {
		entry.unproven += amount.Weight()
		t.Unproven = t.Unproven.Add(amount)
	}
	if len(s.Attributes) > 0 { // Otherwise keep the previous ones: samples of a span that has just ended have none.
		t.attributeBytes += attributesMemory(s.Attributes) - attributesMemory(entry.list())
		entry.attributes = &s.Attributes
	}
	t.spans[key] = entry
	if t.attributes != nil {
		t.addAttributes(s.Attributes, amount)
	}
}

func (t *Tally[A]) addAttributes(attributes []reader.Attribute, amount A) {
	for _, a := range attributes {
		key := attributeKey{a.Key, a.Value}
		if _, known := t.attributes[key]; !known && len(t.attributes) == maxAttributes {
			thin(t.attributes, A.Weight)
		}
		t.attributes[key] = t.attributes[key].Add(amount)
	}
}

// AddStack adds the amount of samples to the functions of their stack, the innermost first.
func (t *Tally[A]) AddStack(service string, functions iter.Seq[string], amount A) {
	t.stacks++
	leaf := true
	for name := range functions {
		name = name[:min(len(name), maxNameBytes)]
		key := functionKey{service, name}
		f := t.functions[key]
		if f == nil {
			if len(t.functions) == maxFunctions {
				thin(t.functions, func(f *functionEntry[A]) uint64 { return f.cumulative.Weight() })
			}
			f = &functionEntry[A]{}
			key.function = strings.Clone(name) // do not retain a larger string
			t.functions[key] = f
		}
		if leaf {
			f.flat = f.flat.Add(amount)
			leaf = false
		}
		if f.stack != t.stacks { // Recursion counts once.
			f.stack = t.stacks
			f.cumulative = f.cumulative.Add(amount)
		}
	}
}

// thinSpans drops the half of the spans with the least weight. Their amounts still count for their names and endpoints.
func (t *Tally[A]) thinSpans() {
	removed := thin(t.spans, func(e spanEntry[A]) uint64 { return e.amount.Weight() })
	t.spansLeftOut += uint64(len(removed))
	for _, e := range removed {
		t.attributeBytes -= attributesMemory(e.list())
	}
	t.addNames(removed)
}

// attributesMemory estimates the memory of attributes, in bytes.
func attributesMemory(attributes []reader.Attribute) (bytes int) {
	const size = 64 // bytes of an attribute without its strings
	for _, a := range attributes {
		bytes += size + len(a.Key) + len(a.Value)
	}
	return bytes
}

// thin removes the half of the entries with the smallest weights and returns the removed half.
func thin[K comparable, E any](entries map[K]E, weight func(E) uint64) map[K]E {
	all := slices.SortedFunc(maps.Keys(entries), func(a, b K) int { return cmp.Compare(weight(entries[a]), weight(entries[b])) })
	removed := make(map[K]E, len(all)/2)
	for _, key := range all[:len(all)/2] {
		removed[key] = entries[key]
		delete(entries, key)
	}
	return removed
}

// addNames adds the amounts of spans to their names and to the endpoints of their requests.
func (n *namesOf[A]) addNames(spans map[spanKey]spanEntry[A]) {
	type request struct {
		endpoint string
		amount   A
	}
	requests := map[spanKey]request{} // by their local root
	for key, entry := range spans {
		name, endpoint, _ := splitNames(entry.list())
		addName(n.names, nameKey{key.service, name}, entry.amount)
		root := key
		root.spanID = entry.localRoot
		if endpoint == "" && root == key {
			endpoint = name
		}
		r := requests[root]
		r.endpoint = cmp.Or(r.endpoint, endpoint) // not every span has the endpoint
		r.amount = r.amount.Add(entry.amount)
		requests[root] = r
	}
	for root, r := range requests {
		addName(n.endpoints, nameKey{root.service, r.endpoint}, r.amount)
	}
	for key, entry := range spans {
		name, _, _ := splitNames(entry.list())
		key.spanID = entry.localRoot
		both := spanNameKey{key.service, requests[key].endpoint, name}
		row := n.spanNames[both]
		if row == nil {
			if len(n.spanNames) == maxSpanNames {
				thin(n.spanNames, func(s *SpanName[A]) uint64 { return s.Amount.Weight() })
			}
			row = &SpanName[A]{Service: both.service, Endpoint: both.endpoint, Name: both.name}
			n.spanNames[both] = row
		}
		row.Count++
		row.Amount = row.Amount.Add(entry.amount)
	}
}

// addName adds one more span or request with a name.
func addName[A Amount[A]](names map[nameKey]*Name[A], key nameKey, amount A) {
	u := names[key]
	if u == nil {
		if len(names) == maxSpanNames {
			thin(names, func(u *Name[A]) uint64 { return u.Amount.Weight() })
		}
		u = &Name[A]{Service: key.service, Name: key.name}
		names[key] = u
	}
	u.Count++
	u.Amount = u.Amount.Add(amount)
}

func (e *spanEntry[A]) list() []reader.Attribute {
	if e.attributes == nil {
		return nil
	}
	return *e.attributes
}

// Rows returns the rows. The tally must not be used afterwards.
func (t *Tally[A]) Rows() Rows[A] {
	r := Rows[A]{SpansLeftOut: t.spansLeftOut}
	for _, p := range t.processes {
		r.Processes = append(r.Processes, *p)
	}
	t.spanRows(&r)
	for key, f := range t.functions {
		r.Functions = append(r.Functions, Function[A]{key.service, key.function, f.flat, f.cumulative})
	}
	for key, amount := range t.attributes {
		r.Attributes = append(r.Attributes, Attribute[A]{key.key, key.value, amount})
	}
	// Ties are broken in a fixed order.
	slices.SortFunc(r.Processes, func(a, b Process[A]) int {
		return cmp.Or(Heavier(a.Amount, b.Amount), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Service, b.Service))
	})
	slices.SortFunc(r.Functions, func(a, b Function[A]) int {
		return cmp.Or(Heavier(a.Flat, b.Flat), Heavier(a.Cumulative, b.Cumulative), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Function, b.Function))
	})
	slices.SortFunc(r.Attributes, func(a, b Attribute[A]) int {
		return cmp.Or(Heavier(a.Amount, b.Amount), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
	})
	return r
}

// Heavier returns a negative number if a has more weight than b, and a positive one if it has less.
func Heavier[A Amount[A]](a, b A) int { return cmp.Compare(b.Weight(), a.Weight()) }

// spanRows fills in the spans, their traces and their names.
func (t *Tally[A]) spanRows(r *Rows[A]) {
	t.addNames(t.spans)
	r.Names, r.Endpoints = nameRows(t.names), nameRows(t.endpoints)
	for _, s := range t.spanNames {
		r.SpanNames = append(r.SpanNames, *s)
	}
	traces := make(map[spanKey]*Trace[A])
	for key, entry := range t.spans {
		u := SpanUse[A]{
			Service: key.service, TraceID: key.traceID, SpanID: key.spanID, Amount: entry.amount, Unproven: entry.unproven,
		}
		u.Name, _, u.Attributes = splitNames(entry.list())
		r.Spans = append(r.Spans, u)
		key.spanID = [8]byte{}
		if traces[key] == nil {
			traces[key] = &Trace[A]{Service: u.Service, TraceID: u.TraceID}
		}
		traces[key].Spans++
		traces[key].Amount = traces[key].Amount.Add(u.Amount)
	}
	for _, u := range traces {
		r.Traces = append(r.Traces, *u)
	}
	slices.SortFunc(r.SpanNames, func(a, b SpanName[A]) int {
		return cmp.Or(Heavier(a.Amount, b.Amount), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(r.Spans, func(a, b SpanUse[A]) int {
		return cmp.Or(Heavier(a.Amount, b.Amount), cmp.Compare(a.Service, b.Service),
			bytes.Compare(a.TraceID[:], b.TraceID[:]), bytes.Compare(a.SpanID[:], b.SpanID[:]))
	})
	slices.SortFunc(r.Traces, func(a, b Trace[A]) int {
		return cmp.Or(Heavier(a.Amount, b.Amount), cmp.Compare(a.Service, b.Service), bytes.Compare(a.TraceID[:], b.TraceID[:]))
	})
}

// nameRows returns names sorted by weight, or nil if all names are empty.
func nameRows[A Amount[A]](names map[nameKey]*Name[A]) []Name[A] {
	var all []Name[A]
	some := false
	for _, u := range names {
		all = append(all, *u)
		some = some || u.Name != ""
	}
	if !some {
		return nil
	}
	slices.SortFunc(all, func(a, b Name[A]) int {
		return cmp.Or(Heavier(a.Amount, b.Amount), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// splitNames returns the span's name and endpoint, empty if missing, and its other attributes. If a key
// occurs twice, the last value wins.
func splitNames(attributes []reader.Attribute) (name, endpoint string, others []reader.Attribute) {
	for _, a := range attributes {
		switch a.Key {
		case wire.NameKey:
			name = a.Value
		case wire.EndpointKey:
			endpoint = a.Value
		default:
			others = append(others, a)
		}
	}
	return name, endpoint, others
}
