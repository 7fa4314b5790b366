// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"cmp"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/reader"
)

// ProcessUse is how much of the processor a process has used, in samples.
type ProcessUse struct {
	PID int
	// Service is the service's name, or else that of the executable.
	Service string
	// Samples is all there are, Attributed those of which a span is known.
	Samples, Attributed uint64
}

// WorkUse is how much of the processor went to one kind of work, in samples.
type WorkUse struct {
	Work Work
	// Samples is all there are, Attributed those of which a span is known.
	Samples, Attributed uint64
}

// FunctionUse is how much of the processor was used in a function, in samples.
type FunctionUse struct {
	Service  string
	Function string
	// Flat is how many samples were taken in the function itself, Cumulative also those in
	// what it had called.
	Flat, Cumulative uint64
}

// NameUse is how much of the processor was used in the spans with one name, or in the
// requests to one endpoint, in samples.
type NameUse struct {
	Service string
	// Name is empty for those without a name.
	Name string
	// Count is how many spans, or requests, were sampled. Those that no sample has met are
	// not in it.
	Count   int
	Samples uint64
}

// AttributeUse is how much of the processor was used in spans with an attribute, in samples.
type AttributeUse struct {
	Key, Value string
	Samples    uint64
}

// SpanUse is how much of the processor was used in a span, in samples, not counting its
// children.
type SpanUse struct {
	Service string
	// Name is empty if the process does not publish it.
	Name    string
	TraceID [16]byte
	SpanID  [8]byte
	Samples uint64
	// Unproven is in how many of them it may have been another span.
	Unproven uint64
	// Attributes are what was last shown with the span, without its name and its endpoint.
	Attributes []reader.ThreadAttribute
}

// TraceUse is how much of the processor was used in the spans of a trace, of one
// service, in samples.
type TraceUse struct {
	Service string
	TraceID [16]byte
	// Spans is in how many of its spans.
	Spans   int
	Samples uint64
}

// The bounds of what is counted one by one. Beyond that, the spans, names of spans, functions and
// attributes with the fewest samples are left out of what is reported. All processes that come
// later are left out too. A span takes about 140 bytes, and the collector lets the heap be twice
// that.
const (
	maxSpans      = 1 << 14
	maxSpanNames  = 1 << 12
	maxFunctions  = 1 << 13
	maxAttributes = 1 << 12
	maxProcesses  = 1 << 13
	// maxShownBytes bounds what the attributes of spans take: a span may have hundreds.
	maxShownBytes = 8 << 20
	// maxNameBytes bounds the name of a function. What is longer is cut off.
	maxNameBytes = 1 << 9
)

// tally counts samples.
type tally struct {
	processes  map[processKey]*ProcessUse
	spans      map[spanKey]spanCount
	functions  map[functionKey]*functionCount
	attributes map[attributeKey]uint64 // nil if they are not counted
	work       [numWorks]WorkUse
	// names and endpoints are of the spans that are not among spans any more.
	names, endpoints map[nameKey]*NameUse

	samples, attributed, unproven uint64
	// stacks is how many have been counted.
	stacks uint64
	// shownBytes is what the attributes of spans take.
	shownBytes int
	// spansLeftOut is how often a span was taken out of spans. One that is sampled again comes back.
	spansLeftOut uint64
	// filtered are those that did not pass the filters, and are in nothing else.
	filtered uint64
	// filteredAttributes are Result.FilteredAttributes, collected while samples is 0.
	filteredAttributes map[string][]string
	// cut, lost and dropped are what parts say of themselves.
	cut, lost, dropped uint64
	truncated, unnamed uint64
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

// spanCount is small: in a long recording there are about maxSpans at all times.
type spanCount struct {
	samples, unproven uint32
	localRoot         [8]byte                   // zeros if unknown
	attributes        *[]reader.ThreadAttribute // nil for none
}

type functionKey struct{ service, function string }

type functionCount struct {
	flat, cumulative uint64
	stack            uint64 // the last one that is in cumulative
}

type attributeKey struct{ key, value string }

type nameKey struct{ service, name string }

// newTally returns one that has counted nothing yet. It counts attributes only if asked to.
func newTally(attributes bool) *tally {
	t := &tally{
		processes: map[processKey]*ProcessUse{},
		spans:     map[spanKey]spanCount{},
		functions: map[functionKey]*functionCount{},
		names:     map[nameKey]*NameUse{},
		endpoints: map[nameKey]*NameUse{},

		filteredAttributes: map[string][]string{},
	}
	if attributes {
		t.attributes = map[attributeKey]uint64{}
	}
	for w := range t.work {
		t.work[w].Work = Work(w)
	}
	return t
}

// add counts samples, whose span is shown with attributes.
func (t *tally) add(pid int, s *rawSamples, shown []reader.ThreadAttribute) {
	n := uint64(len(s.times))
	service := s.published.service
	t.samples += n
	if s.truncated {
		t.truncated += n
	}
	p := t.processes[processKey{pid, service}]
	if p == nil {
		p = &ProcessUse{PID: pid, Service: service}
		if len(t.processes) < maxProcesses {
			t.processes[processKey{pid, service}] = p
		}
	}
	p.Samples += n
	if !s.span.Exists() {
		return
	}
	p.Attributed += n
	t.attributed += n
	key := spanKey{service, s.span.TraceID, s.span.SpanID}
	if _, known := t.spans[key]; !known && len(t.spans) == maxSpans || t.shownBytes > maxShownBytes {
		t.thinSpans()
	}
	count := t.spans[key]
	count.samples += uint32(n)
	if s.span.LocalRootSpanID != [8]byte{} { // not every carrier leads to the span's cell
		count.localRoot = s.span.LocalRootSpanID
	}
	if !s.span.Proven {
		count.unproven += uint32(n)
		t.unproven += n
	}
	if len(shown) > 0 { // A span that has ended is shown without, until its goroutine goes on.
		t.shownBytes += shownSize(shown) - shownSize(count.shown())
		count.attributes = &shown
	}
	t.spans[key] = count
	if t.attributes != nil {
		t.addAttributes(shown, n)
	}
}

func (t *tally) addAttributes(shown []reader.ThreadAttribute, samples uint64) {
	for _, a := range shown {
		key := attributeKey{a.Key, a.Value}
		if _, known := t.attributes[key]; !known && len(t.attributes) == maxAttributes {
			thin(t.attributes, func(samples uint64) uint64 { return samples })
		}
		t.attributes[key] += samples
	}
}

// addStack counts samples with one stack, of which some are in a span.
func (t *tally) addStack(service string, stack []*symbols.Location, samples, attributed uint64) {
	w := &t.work[workOf(stack)]
	w.Samples += samples
	w.Attributed += attributed
	t.stacks++
	leaf := true
	for name := range functionNames(stack) {
		key := functionKey{service, name}
		f := t.functions[key]
		if f == nil {
			if len(t.functions) == maxFunctions {
				thin(t.functions, func(f *functionCount) uint64 { return f.cumulative })
			}
			f = &functionCount{}
			key.function = strings.Clone(name) // not a part of something larger
			t.functions[key] = f
		}
		if leaf {
			f.flat += samples
			leaf = false
		}
		if f.stack != t.stacks { // Recursion counts once.
			f.stack = t.stacks
			f.cumulative += samples
		}
	}
}

// functionNames yields the functions of a stack, the innermost first. Of neighbours that have
// no name, and are in the same file, it yields one.
func functionNames(stack []*symbols.Location) iter.Seq[string] {
	return func(yield func(string) bool) {
		var before *symbols.Location
		for _, l := range stack {
			same := before != nil && len(before.Lines) == 0 && before.Mapping == l.Mapping
			before = l
			if len(l.Lines) == 0 && !same && !yield(unnamed(l)) {
				return
			}
			for _, line := range l.Lines {
				if !yield(line.Function[:min(len(line.Function), maxNameBytes)]) {
					return
				}
			}
		}
	}
}

// unnamed returns what stands for a function without a name: where it is.
func unnamed(l *symbols.Location) string {
	if l.Mapping == nil || l.Mapping.Path == "" {
		return "[unknown]"
	}
	name := path.Base(l.Mapping.Path)
	return "[" + strings.Trim(name[:min(len(name), maxNameBytes)], "[]") + "]"
}

// thinSpans leaves out the half of the spans that has the fewest samples, but not of what
// their names have used.
func (t *tally) thinSpans() {
	removed := thin(t.spans, func(c spanCount) uint64 { return uint64(c.samples) })
	t.spansLeftOut += uint64(len(removed))
	for _, c := range removed {
		t.shownBytes -= shownSize(c.shown())
	}
	sumNames(removed, t.names, t.endpoints)
}

// shownSize returns what attributes take, in bytes, about.
func shownSize(shown []reader.ThreadAttribute) (bytes int) {
	const size = 64 // bytes, of an attribute beside its texts
	for _, a := range shown {
		bytes += size + len(a.Key) + len(a.Value)
	}
	return bytes
}

// thin removes the half of counts with the smallest weights, and returns it.
func thin[K comparable, C any](counts map[K]C, weight func(C) uint64) map[K]C {
	all := slices.SortedFunc(maps.Keys(counts), func(a, b K) int { return cmp.Compare(weight(counts[a]), weight(counts[b])) })
	removed := make(map[K]C, len(all)/2)
	for _, key := range all[:len(all)/2] {
		removed[key] = counts[key]
		delete(counts, key)
	}
	return removed
}

// sumNames adds what spans have used to their names and to the endpoints of their requests.
func sumNames(spans map[spanKey]spanCount, names, endpoints map[nameKey]*NameUse) {
	type request struct {
		endpoint string
		samples  uint64
	}
	requests := map[spanKey]request{} // by their local root
	for key, count := range spans {
		name, endpoint, _ := splitNames(count.shown())
		addName(names, nameKey{key.service, name}, uint64(count.samples))
		root := key
		root.spanID = count.localRoot
		if endpoint == "" && root == key {
			endpoint = name
		}
		r := requests[root]
		r.endpoint = cmp.Or(r.endpoint, endpoint) // which not every span need tell
		r.samples += uint64(count.samples)
		requests[root] = r
	}
	for root, r := range requests {
		addName(endpoints, nameKey{root.service, r.endpoint}, r.samples)
	}
}

// addName counts one more span or request with a name.
func addName(names map[nameKey]*NameUse, key nameKey, samples uint64) {
	u := names[key]
	if u == nil {
		if len(names) == maxSpanNames {
			thin(names, func(u *NameUse) uint64 { return u.Samples })
		}
		u = &NameUse{Service: key.service, Name: key.name}
		names[key] = u
	}
	u.Count++
	u.Samples += samples
}

func (c *spanCount) shown() []reader.ThreadAttribute {
	if c.attributes == nil {
		return nil
	}
	return *c.attributes
}

// report fills in what has been counted. Nothing more can be counted afterwards.
func (t *tally) report(r *Result) {
	r.Samples, r.Attributed, r.Unproven = t.samples, t.attributed, t.unproven
	r.SpansLeftOut, r.Cut, r.Dropped, r.Truncated = t.spansLeftOut, t.cut, t.dropped, t.truncated
	r.Filtered, r.Unnamed = t.filtered, t.unnamed
	if t.samples == 0 {
		r.FilteredAttributes = t.filteredAttributes
	}
	r.Lost += t.lost
	r.Work = t.work[:]
	for _, p := range t.processes {
		r.Processes = append(r.Processes, *p)
	}
	t.reportSpans(r)
	for key, count := range t.functions {
		r.Functions = append(r.Functions, FunctionUse{key.service, key.function, count.flat, count.cumulative})
	}
	for key, samples := range t.attributes {
		r.Attributes = append(r.Attributes, AttributeUse{key.key, key.value, samples})
	}
	// Most first, and what is equal in an order that is always the same.
	slices.SortFunc(r.Processes, func(a, b ProcessUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Service, b.Service))
	})
	slices.SortFunc(r.Functions, func(a, b FunctionUse) int {
		return cmp.Or(cmp.Compare(b.Flat, a.Flat), cmp.Compare(b.Cumulative, a.Cumulative),
			cmp.Compare(a.Service, b.Service), cmp.Compare(a.Function, b.Function))
	})
	slices.SortFunc(r.Attributes, func(a, b AttributeUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
	})
}

// reportSpans fills in the spans, their traces and their names.
func (t *tally) reportSpans(r *Result) {
	sumNames(t.spans, t.names, t.endpoints)
	r.Names, r.Endpoints = mostUsed(t.names), mostUsed(t.endpoints)
	traces := make(map[spanKey]*TraceUse)
	for key, count := range t.spans {
		u := SpanUse{
			Service: key.service, TraceID: key.traceID, SpanID: key.spanID,
			Samples: uint64(count.samples), Unproven: uint64(count.unproven),
		}
		u.Name, _, u.Attributes = splitNames(count.shown())
		r.Spans = append(r.Spans, u)
		key.spanID = [8]byte{}
		if traces[key] == nil {
			traces[key] = &TraceUse{Service: u.Service, TraceID: u.TraceID}
		}
		traces[key].Spans++
		traces[key].Samples += u.Samples
	}
	for _, u := range traces {
		r.Traces = append(r.Traces, *u)
	}
	slices.SortFunc(r.Spans, func(a, b SpanUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Service, b.Service),
			bytes.Compare(a.TraceID[:], b.TraceID[:]), bytes.Compare(a.SpanID[:], b.SpanID[:]))
	})
	slices.SortFunc(r.Traces, func(a, b TraceUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Service, b.Service),
			bytes.Compare(a.TraceID[:], b.TraceID[:]))
	})
}

// mostUsed returns names, what used most first, or nil if there is not a single one.
func mostUsed(names map[nameKey]*NameUse) []NameUse {
	var all []NameUse
	some := false
	for _, u := range names {
		all = append(all, *u)
		some = some || u.Name != ""
	}
	if !some {
		return nil
	}
	slices.SortFunc(all, func(a, b NameUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	return all
}
