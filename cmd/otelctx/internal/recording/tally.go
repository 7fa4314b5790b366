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
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// ProcessUse is the CPU use of a process, in samples.
type ProcessUse struct {
	PID int
	// Service is the service name, or else the name of the executable.
	Service string
	Source  Source
	// Attributed counts the samples in a span.
	Samples, Attributed uint64
}

// WorkUse is the CPU use of one kind of work, in samples.
type WorkUse struct {
	Work Work
	// Attributed counts the samples in a span.
	Samples, Attributed uint64
}

// FunctionUse is the CPU use of a function, in samples.
type FunctionUse struct {
	Service  string `json:"service"`
	Function string `json:"function"`
	// Flat counts samples in the function itself, Cumulative also those in its callees.
	Flat       uint64 `json:"flat"`
	Cumulative uint64 `json:"cumulative"`
}

// NameUse is the CPU use of the spans with one name, or of the requests to one endpoint, in samples.
type NameUse struct {
	Service string
	// Name is the name of the spans or the endpoint. It is empty if the process does not publish it.
	Name string
	// Count is the number of spans or requests that have samples.
	Count   int
	Samples uint64
}

// SpanName identifies the spans with one name in the requests to one endpoint. Endpoint and Name are empty
// if the process does not publish them.
type SpanName struct{ Service, Endpoint, Name string }

// AttributeUse is the CPU use of spans with an attribute, in samples.
type AttributeUse struct {
	Key, Value string
	Samples    uint64
}

// SpanUse is the CPU use of a span without its children, in samples.
type SpanUse struct {
	Service string
	// Name is empty if the process does not publish it.
	Name    string
	TraceID [16]byte
	SpanID  [8]byte
	Samples uint64
	// Unproven counts samples that may belong to another span.
	Unproven uint64
	// Attributes holds the attributes of the last sample that had any, except the span's name and endpoint.
	Attributes []reader.ThreadAttribute
}

// TraceUse is the CPU use of the spans of one service in a trace, in samples.
type TraceUse struct {
	Service string
	TraceID [16]byte
	// Spans is the number of sampled spans.
	Spans   int
	Samples uint64
}

// These constants bound the entries of the report. Beyond a bound, the spans, span names, functions or
// attributes with the fewest samples are dropped. Processes beyond their bound are not listed. A span takes
// about 140 bytes, and the garbage collector lets the heap grow to twice that.
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

// tally counts samples.
type tally struct {
	processes  map[processKey]*ProcessUse
	spans      map[spanKey]spanCount
	functions  map[functionKey]*functionCount
	attributes map[attributeKey]uint64 // nil if attributes are not counted
	work       [numWorks]WorkUse
	nameCounts // of the spans that were dropped from spans

	samples, attributed, unproven uint64
	// stacks is the number of stacks counted so far.
	stacks uint64
	// attributeBytes is the size of the attributes in spans.
	attributeBytes int
	// spansLeftOut counts removals from spans. It may count a span more than once, because a removed span is
	// added again when it is sampled again.
	spansLeftOut uint64
	// filtered counts samples that did not pass the filters. They are counted nowhere else.
	filtered uint64
	// filteredAttributes becomes Result.FilteredAttributes. It is collected while samples is 0.
	filteredAttributes map[string][]string
	// cut, lost and dropped are the sums over the batches.
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

// spanCount counts the samples of a span. Keep it small: a long recording holds up to maxSpans of them.
type spanCount struct {
	samples, unproven uint32
	localRoot         [8]byte                   // zeros if unknown
	attributes        *[]reader.ThreadAttribute // nil for none
}

type functionKey struct{ service, function string }

type functionCount struct {
	flat, cumulative uint64
	stack            uint64 // number of the last stack counted in cumulative
}

type attributeKey struct{ key, value string }

type nameKey struct{ service, name string }

// nameCounts counts spans by their names, requests by their endpoints, and the samples of spans by both.
type nameCounts struct {
	names, endpoints map[nameKey]*NameUse
	spanNames        map[SpanName]uint64
}

// newTally returns an empty tally. It counts attributes only if attributes is true.
func newTally(attributes bool) *tally {
	t := &tally{
		processes: map[processKey]*ProcessUse{},
		spans:     map[spanKey]spanCount{},
		functions: map[functionKey]*functionCount{},

		nameCounts:         nameCounts{map[nameKey]*NameUse{}, map[nameKey]*NameUse{}, map[SpanName]uint64{}},
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

// add counts samples whose span has the given attributes.
func (t *tally) add(pid int, s *rawSamples, attributes []reader.ThreadAttribute) {
	n := uint64(len(s.times))
	service := s.published.service
	t.samples += n
	if s.truncated {
		t.truncated += n
	}
	p := t.processes[processKey{pid, service}]
	if p == nil {
		p = &ProcessUse{PID: pid, Service: service, Source: s.published.serviceSource}
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
	if _, known := t.spans[key]; !known && len(t.spans) == maxSpans || t.attributeBytes > maxAttributeBytes {
		t.thinSpans()
	}
	count := t.spans[key]
	count.samples += uint32(n)
	if s.span.LocalRootSpanID != [8]byte{} { // not every carrier publishes the local root
		count.localRoot = s.span.LocalRootSpanID
	}
	if !s.span.Proven {
		count.unproven += uint32(n)
		t.unproven += n
	}
	if len(attributes) > 0 { // Otherwise keep the previous ones: samples of a span that has just ended have none.
		t.attributeBytes += attributesMemory(attributes) - attributesMemory(count.list())
		count.attributes = &attributes
	}
	t.spans[key] = count
	if t.attributes != nil {
		t.addAttributes(attributes, n)
	}
}

func (t *tally) addAttributes(attributes []reader.ThreadAttribute, samples uint64) {
	for _, a := range attributes {
		key := attributeKey{a.Key, a.Value}
		if _, known := t.attributes[key]; !known && len(t.attributes) == maxAttributes {
			thin(t.attributes, func(samples uint64) uint64 { return samples })
		}
		t.attributes[key] += samples
	}
}

// addStack counts samples with the same stack. attributed is the number of them that are in a span.
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
			key.function = strings.Clone(name) // do not retain a larger string
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

// functionNames yields the functions of a stack, the innermost first. Adjacent unnamed frames in the same
// file yield one name.
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

// unnamed returns the placeholder for a function without a name: the file that contains it.
func unnamed(l *symbols.Location) string {
	if l.Mapping == nil || l.Mapping.Path == "" {
		return "[unknown]"
	}
	name := path.Base(l.Mapping.Path)
	return "[" + strings.Trim(name[:min(len(name), maxNameBytes)], "[]") + "]"
}

// thinSpans drops the half of the spans with the fewest samples. The samples of the dropped spans still
// count for their names and endpoints.
func (t *tally) thinSpans() {
	removed := thin(t.spans, func(c spanCount) uint64 { return uint64(c.samples) })
	t.spansLeftOut += uint64(len(removed))
	for _, c := range removed {
		t.attributeBytes -= attributesMemory(c.list())
	}
	t.nameCounts.add(removed)
}

// attributesMemory estimates the memory of attributes, in bytes.
func attributesMemory(attributes []reader.ThreadAttribute) (bytes int) {
	const size = 64 // bytes of an attribute without its strings
	for _, a := range attributes {
		bytes += size + len(a.Key) + len(a.Value)
	}
	return bytes
}

// thin removes the half of the counts with the smallest weights and returns the removed half.
func thin[K comparable, C any](counts map[K]C, weight func(C) uint64) map[K]C {
	all := slices.SortedFunc(maps.Keys(counts), func(a, b K) int { return cmp.Compare(weight(counts[a]), weight(counts[b])) })
	removed := make(map[K]C, len(all)/2)
	for _, key := range all[:len(all)/2] {
		removed[key] = counts[key]
		delete(counts, key)
	}
	return removed
}

// add adds the samples of spans to the counts of their names and of the endpoints of their requests.
func (n *nameCounts) add(spans map[spanKey]spanCount) {
	type request struct {
		endpoint string
		samples  uint64
	}
	requests := map[spanKey]request{} // by their local root
	for key, count := range spans {
		name, endpoint, _ := splitNames(count.list())
		addName(n.names, nameKey{key.service, name}, uint64(count.samples))
		root := key
		root.spanID = count.localRoot
		if endpoint == "" && root == key {
			endpoint = name
		}
		r := requests[root]
		r.endpoint = cmp.Or(r.endpoint, endpoint) // not every span has the endpoint
		r.samples += uint64(count.samples)
		requests[root] = r
	}
	for root, r := range requests {
		addName(n.endpoints, nameKey{root.service, r.endpoint}, r.samples)
	}
	for key, count := range spans {
		name, _, _ := splitNames(count.list())
		key.spanID = count.localRoot
		both := SpanName{key.service, requests[key].endpoint, name}
		if _, known := n.spanNames[both]; !known && len(n.spanNames) == maxSpanNames {
			thin(n.spanNames, func(samples uint64) uint64 { return samples })
		}
		n.spanNames[both] += uint64(count.samples)
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

func (c *spanCount) list() []reader.ThreadAttribute {
	if c.attributes == nil {
		return nil
	}
	return *c.attributes
}

// report fills in the counts. The tally must not be used afterwards.
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
	// Sort by samples in descending order and break ties in a fixed order.
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
	t.nameCounts.add(t.spans)
	r.Names, r.Endpoints, r.SpanNames = mostUsed(t.names), mostUsed(t.endpoints), t.spanNames
	traces := make(map[spanKey]*TraceUse)
	for key, count := range t.spans {
		u := SpanUse{
			Service: key.service, TraceID: key.traceID, SpanID: key.spanID,
			Samples: uint64(count.samples), Unproven: uint64(count.unproven),
		}
		u.Name, _, u.Attributes = splitNames(count.list())
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

// mostUsed returns names sorted by samples, or nil if all names are empty.
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

// splitNames returns the span's name and endpoint, empty if missing, and its other attributes. If a key
// occurs twice, the last value wins.
func splitNames(attributes []reader.ThreadAttribute) (name, endpoint string, others []reader.ThreadAttribute) {
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
