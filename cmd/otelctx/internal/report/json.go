// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/hex"
	"io"
	"slices"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
)

// Document is the JSON of a recording of CPU time. The schema is as stable as that of [document.Process].
type Document struct {
	// PID is the id of the recorded process or command, or 0 if several processes were selected.
	PID int `json:"pid"`
	// StartTimeUnixNano is the start of the recording in nanoseconds since the epoch. DurationNano is its
	// duration in nanoseconds.
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Frequency is the number of samples per second of CPU time.
	Frequency int `json:"frequency"`
	// Samples counts all samples, Attributed those with a span, and Unproven those whose span may be wrong.
	// Lost counts samples that were taken but not read in time; with --alloc, those of allocations too.
	Samples    uint64 `json:"samples"`
	Attributed uint64 `json:"attributed"`
	Unproven   uint64 `json:"unproven"`
	Lost       uint64 `json:"lost"`
	// Replaced counts samples that were not taken because their process had just executed another program.
	Replaced uint64 `json:"replaced_by_exec"`
	// LeafOnly counts samples with only the innermost frame of their stack, and no attributes of
	// their span.
	LeafOnly uint64 `json:"leaf_only"`
	// Truncated counts samples that lack the outermost frames of their stack, including those in LeafOnly.
	Truncated uint64 `json:"truncated"`
	// Unsymbolized counts samples that lack function names because looking them up took too much time or
	// memory, or because the mappings of their process were unknown.
	Unsymbolized uint64 `json:"unsymbolized"`
	// SpansLeftOut is an upper bound of the number of spans that are missing because there are too many.
	SpansLeftOut uint64 `json:"spans_left_out"`
	// DroppedAttributes counts attributes that profiles cannot represent.
	DroppedAttributes uint64 `json:"dropped_attributes"`
	// Filtered counts samples that --filter left out. Samples does not include them.
	Filtered uint64 `json:"filtered"`
	// NotExamined counts processes that were not examined before the recording ended.
	NotExamined int `json:"processes_not_examined"`
	// Sent counts the samples that the collector accepted since the last document. SendFailed counts the
	// samples dropped since then, and Queued the samples that are still waiting.
	Sent       uint64 `json:"sent"`
	SendFailed uint64 `json:"send_failed"`
	Queued     uint64 `json:"queued"`
	// Ended reports whether all processes that were selected by id ended during the recording.
	Ended bool `json:"ended"`
	// Processes, Spans and Traces are sorted by CPU time. Spans, Traces and the lists below, except Work,
	// have at most --top elements.
	Processes []ProcessUse `json:"processes"`
	Spans     []SpanUse    `json:"spans"`
	Traces    []TraceUse   `json:"traces"`
	// Work breaks down the samples by kind of work. It is empty with --no-symbols.
	Work []WorkUse `json:"work"`
	// Functions is sorted by the functions' own CPU time. It is empty with --no-symbols.
	Functions []FunctionUse `json:"functions"`
	// Endpoints is empty if no endpoint is known, and SpanNames if no span has a name.
	Endpoints []EndpointUse `json:"endpoints"`
	SpanNames []SpanNameUse `json:"span_names"`
	// Attributes is empty unless --group-by asks for them.
	Attributes []AttributeUse `json:"attributes"`
}

// WorkUse is the CPU time of a kind of work.
type WorkUse struct {
	// Work is application, runtime, garbage_collection, idle or kernel.
	Work       string `json:"work"`
	Samples    uint64 `json:"samples"`
	Attributed uint64 `json:"attributed"`
	CPUNano    int64  `json:"cpu_nano"`
}

// EndpointUse is the CPU time of the requests to an endpoint.
type EndpointUse struct {
	Service  string `json:"service"`
	Endpoint string `json:"endpoint"`
	// Requests counts the requests with at least one sample.
	Requests int    `json:"requests"`
	Samples  uint64 `json:"samples"`
	CPUNano  int64  `json:"cpu_nano"`

	RequestCount
}

// SpanNameUse is the CPU time of the spans with one name.
type SpanNameUse struct {
	Service string `json:"service"`
	Name    string `json:"name"`
	// Spans counts the spans with at least one sample.
	Spans   int    `json:"spans"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

// AttributeUse is the CPU time of the spans with an attribute.
type AttributeUse struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

// ProcessUse counts the samples of a process.
type ProcessUse struct {
	PID int `json:"pid"`
	// Service is the service.name, or the name of the executable if there is none.
	Service string `json:"service"`
	// ServiceSource is published, environment (OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES) or executable.
	ServiceSource string `json:"service_source"`
	Samples       uint64 `json:"samples"`
	Attributed    uint64 `json:"attributed"`
}

// FunctionUse counts the samples of a function.
type FunctionUse struct {
	Service  string `json:"service"`
	Function string `json:"function"`
	// Flat counts samples in the function itself, Cumulative also those in its callees.
	Flat       uint64 `json:"flat"`
	Cumulative uint64 `json:"cumulative"`
}

// SpanUse is the CPU time of a span.
type SpanUse struct {
	Service string `json:"service"`
	// Name is empty if the process does not publish span names.
	Name string `json:"name"`
	// TraceID and SpanID are lower-case hexadecimal.
	TraceID  string `json:"trace_id"`
	SpanID   string `json:"span_id"`
	Samples  uint64 `json:"samples"`
	Unproven uint64 `json:"unproven"`
	// CPUNano is the CPU time that the samples represent, in nanoseconds.
	CPUNano int64 `json:"cpu_nano"`
	// Attributes are the latest attributes of the span, as in [document.Thread].
	Attributes map[string]string `json:"attributes"`
}

// TraceUse is the CPU time of the spans of one service in a trace.
type TraceUse struct {
	Service string `json:"service"`
	TraceID string `json:"trace_id"`
	// Spans counts the spans of the trace with at least one sample.
	Spans   int    `json:"spans"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

func (r *Recording) cpuDocument(t *Tables) Document {
	c := r.CPU
	d := Document{
		PID: r.PID, StartTimeUnixNano: c.Start.UnixNano(), DurationNano: int64(c.End.Sub(c.Start)), Frequency: r.Frequency,
		Samples: c.Samples, Attributed: c.Attributed, Unproven: c.Unproven, Lost: c.Lost, Ended: c.Ended,
		Replaced: c.Replaced, LeafOnly: c.Cut, Truncated: c.Truncated, Unsymbolized: c.Unnamed, SpansLeftOut: c.SpansLeftOut,
		DroppedAttributes: c.Dropped, Filtered: c.Filtered, NotExamined: c.NotExamined,
		Sent: r.Delivery.Sent, SendFailed: r.Delivery.Dropped, Queued: r.Delivery.Waiting,
		Processes: []ProcessUse{}, Spans: []SpanUse{}, Traces: []TraceUse{},
		Work: []WorkUse{}, Functions: []FunctionUse{}, Endpoints: []EndpointUse{},
		SpanNames: []SpanNameUse{}, Attributes: []AttributeUse{},
	}
	for _, p := range c.Processes {
		d.Processes = append(d.Processes, ProcessUse{p.PID, p.Service, p.Source, uint64(p.Amount), uint64(p.Attributed)})
	}
	for _, u := range top(t.Top, c.Spans) {
		d.Spans = append(d.Spans, SpanUse{
			Service: u.Service, Name: u.Name, TraceID: hex.EncodeToString(u.TraceID[:]), SpanID: hex.EncodeToString(u.SpanID[:]),
			Samples: uint64(u.Amount), Unproven: u.Unproven, CPUNano: int64(r.cpu(uint64(u.Amount))), Attributes: document.Attributes(u.Attributes),
		})
	}
	for _, u := range top(t.Top, c.Traces) {
		d.Traces = append(d.Traces, TraceUse{
			Service: u.Service, TraceID: hex.EncodeToString(u.TraceID[:]), Spans: u.Spans, Samples: uint64(u.Amount),
			CPUNano: int64(r.cpu(uint64(u.Amount))),
		})
	}
	for _, u := range top(t.Top, c.Endpoints) {
		d.Endpoints = append(d.Endpoints, EndpointUse{u.Service, u.Name, u.Count, uint64(u.Amount), int64(r.cpu(uint64(u.Amount))), requestCount(u.Requests)})
	}
	for _, u := range top(t.Top, c.Names) {
		d.SpanNames = append(d.SpanNames, SpanNameUse{u.Service, u.Name, u.Count, uint64(u.Amount), int64(r.cpu(uint64(u.Amount)))})
	}
	for _, u := range top(t.Top, r.attributesAsked(t)) {
		d.Attributes = append(d.Attributes, AttributeUse{u.Key, u.Value, uint64(u.Amount), int64(r.cpu(uint64(u.Amount)))})
	}
	if t.NoFunctions {
		return d
	}
	for _, u := range c.Work {
		d.Work = append(d.Work, WorkUse{u.Work.String(), u.Samples, u.Attributed, int64(r.cpu(u.Samples))})
	}
	for _, u := range top(t.Top, c.Functions) {
		d.Functions = append(d.Functions, FunctionUse{u.Service, u.Function, uint64(u.Flat), uint64(u.Cumulative)})
	}
	return d
}

func (r *Recording) attributesAsked(t *Tables) []attribute {
	return slices.DeleteFunc(slices.Clone(r.CPU.Attributes), func(u attribute) bool { return !t.Group.has(u.Key) })
}

// WriteJSON writes a [Document], a [WallDocument], a [BothDocument] or an [AllocDocument].
func (r *Recording) WriteJSON(w io.Writer, t *Tables) error {
	switch {
	case r.CPU == nil && r.Alloc != nil:
		return display.WriteJSON(w, r.allocDocument(t))
	case r.CPU == nil:
		return display.WriteJSON(w, r.wallDocument(t))
	case r.Alloc == nil && r.Wall == nil:
		return display.WriteJSON(w, r.cpuDocument(t))
	}
	both := BothDocument{CPU: r.cpuDocument(t)}
	if r.Alloc != nil {
		alloc := r.allocDocument(t)
		both.Alloc = &alloc
	}
	if r.Wall != nil {
		wall := r.wallDocument(t)
		both.Wall = &wall
	}
	return display.WriteJSON(w, both)
}
