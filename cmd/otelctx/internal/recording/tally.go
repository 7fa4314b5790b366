// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

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

// SpanUse is how much of the processor was used in a span, in samples, not counting its
// children.
type SpanUse struct {
	Service string
	TraceID [16]byte
	SpanID  [8]byte
	Samples uint64
	// Unproven is in how many of them it may have been another span.
	Unproven uint64
	// Attributes are what was last shown with the span.
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

// maxSpans and maxProcesses bound what is counted one by one. Of spans beyond that, those
// with the fewest samples are left out of what is reported, as are all processes beyond it
// that come later. A span takes about 130 bytes, and the collector lets the heap be twice that.
const (
	maxSpans     = 1 << 14
	maxProcesses = 1 << 13
)

// tally counts samples.
type tally struct {
	processes map[processKey]*ProcessUse
	spans     map[spanKey]spanCount

	samples, attributed, unproven uint64
	// spansLeftOut is how many spans are not among spans any more.
	spansLeftOut uint64
	// cut, lost and dropped are what parts say of themselves.
	cut, lost, dropped uint64
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
	attributes        *[]reader.ThreadAttribute // nil for none
}

func newTally() *tally {
	return &tally{processes: make(map[processKey]*ProcessUse), spans: make(map[spanKey]spanCount)}
}

// add counts samples, whose span is shown with attributes.
func (t *tally) add(pid int, s *rawSamples, shown []reader.ThreadAttribute) {
	n := uint64(len(s.times))
	service := s.published.service
	t.samples += n
	p := t.processes[processKey{pid, service}]
	if p == nil {
		p = &ProcessUse{PID: pid, Service: service}
		if len(t.processes) < maxProcesses {
			t.processes[processKey{pid, service}] = p
		}
	}
	p.Samples += n
	if !s.span.exists() {
		return
	}
	p.Attributed += n
	t.attributed += n
	key := spanKey{service, s.span.traceID, s.span.spanID}
	count, known := t.spans[key]
	if !known && len(t.spans) == maxSpans {
		t.thin()
	}
	count.samples += uint32(n)
	if !s.span.proven {
		count.unproven += uint32(n)
		t.unproven += n
	}
	if count.attributes = nil; len(shown) > 0 {
		count.attributes = &shown
	}
	t.spans[key] = count
}

// thin leaves out the half of the spans that has the fewest samples.
func (t *tally) thin() {
	all := slices.SortedFunc(maps.Keys(t.spans), func(a, b spanKey) int {
		return cmp.Compare(t.spans[a].samples, t.spans[b].samples)
	})
	for _, key := range all[:len(all)/2] {
		delete(t.spans, key)
		t.spansLeftOut++
	}
}

// report fills in what has been counted.
func (t *tally) report(r *Result) {
	r.Samples, r.Attributed, r.Unproven = t.samples, t.attributed, t.unproven
	r.SpansLeftOut, r.Cut, r.Dropped = t.spansLeftOut, t.cut, t.dropped
	r.Lost += t.lost
	for _, p := range t.processes {
		r.Processes = append(r.Processes, *p)
	}
	traces := make(map[spanKey]*TraceUse)
	for key, count := range t.spans {
		u := SpanUse{
			Service: key.service, TraceID: key.traceID, SpanID: key.spanID,
			Samples: uint64(count.samples), Unproven: uint64(count.unproven),
		}
		if count.attributes != nil {
			u.Attributes = *count.attributes
		}
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
	// Most first, and what is equal in an order that is always the same.
	slices.SortFunc(r.Processes, func(a, b ProcessUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Service, b.Service))
	})
	slices.SortFunc(r.Spans, func(a, b SpanUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Service, b.Service),
			bytes.Compare(a.TraceID[:], b.TraceID[:]), bytes.Compare(a.SpanID[:], b.SpanID[:]))
	})
	slices.SortFunc(r.Traces, func(a, b TraceUse) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Service, b.Service),
			bytes.Compare(a.TraceID[:], b.TraceID[:]))
	})
}
