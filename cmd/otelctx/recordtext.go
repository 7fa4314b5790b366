// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// recordDocument is the JSON of a recording. The schema is as stable as that of [document].
type recordDocument struct {
	// PID is the id of the recorded process or command, or 0 if several processes were selected.
	PID int `json:"pid"`
	// StartTimeUnixNano is the start of the recording in nanoseconds since the epoch. DurationNano is its
	// duration in nanoseconds.
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Frequency is the number of samples per second of CPU time.
	Frequency int `json:"frequency"`
	// Samples counts all samples, Attributed those with a span, and Unproven those whose span may be wrong.
	// Lost counts samples that were taken but not read in time.
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
	Processes []processUseDocument `json:"processes"`
	Spans     []spanUseDocument    `json:"spans"`
	Traces    []traceUseDocument   `json:"traces"`
	// Work breaks down the samples by kind of work. It is empty with --no-symbols.
	Work []workUseDocument `json:"work"`
	// Functions is sorted by the functions' own CPU time. It is empty with --no-symbols.
	Functions []recording.FunctionUse `json:"functions"`
	// Endpoints is empty if no endpoint is known, and SpanNames if no span has a name.
	Endpoints []endpointUseDocument `json:"endpoints"`
	SpanNames []spanNameUseDocument `json:"span_names"`
	// Attributes is empty unless --group-by asks for them.
	Attributes []attributeUseDocument `json:"attributes"`
}

type workUseDocument struct {
	// Work is application, runtime, garbage_collection, idle or kernel.
	Work       string `json:"work"`
	Samples    uint64 `json:"samples"`
	Attributed uint64 `json:"attributed"`
	CPUNano    int64  `json:"cpu_nano"`
}

type endpointUseDocument struct {
	Service  string `json:"service"`
	Endpoint string `json:"endpoint"`
	// Requests counts the requests with at least one sample.
	Requests int    `json:"requests"`
	Samples  uint64 `json:"samples"`
	CPUNano  int64  `json:"cpu_nano"`
}

type spanNameUseDocument struct {
	Service string `json:"service"`
	Name    string `json:"name"`
	// Spans counts the spans with at least one sample.
	Spans   int    `json:"spans"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

type attributeUseDocument struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

type processUseDocument struct {
	PID int `json:"pid"`
	// Service is the service.name, or the name of the executable if there is none.
	Service    string `json:"service"`
	Samples    uint64 `json:"samples"`
	Attributed uint64 `json:"attributed"`
}

type spanUseDocument struct {
	Service string `json:"service"`
	// Name is empty if the process does not publish span names.
	Name string `json:"name"`
	// TraceID and SpanID are lower-case hexadecimal.
	TraceID  string `json:"trace_id"`
	SpanID   string `json:"span_id"`
	Samples  uint64 `json:"samples"`
	Unproven uint64 `json:"unproven"`
	// CPUNano is the CPU time that the samples stand for, in nanoseconds.
	CPUNano int64 `json:"cpu_nano"`
	// Attributes are the latest attributes of the span, as in [threadDocument].
	Attributes map[string]string `json:"attributes"`
}

type traceUseDocument struct {
	Service string `json:"service"`
	TraceID string `json:"trace_id"`
	// Spans counts the spans of the trace with at least one sample.
	Spans   int    `json:"spans"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

// cpu returns the CPU time that samples stand for.
func (c *recordCommand) cpu(samples uint64) time.Duration {
	return time.Duration(samples) * (time.Second / time.Duration(c.Frequency))
}

// top returns the first --top elements of all, or all of them if --top is 0.
func top[T any](c *recordCommand, all []T) []T {
	if c.Top == 0 {
		return all
	}
	return all[:min(len(all), c.Top)]
}

func (c *recordCommand) document(r *recording.Result) recordDocument {
	d := recordDocument{
		PID: c.pid(), StartTimeUnixNano: r.Start.UnixNano(), DurationNano: int64(r.End.Sub(r.Start)), Frequency: c.Frequency,
		Samples: r.Samples, Attributed: r.Attributed, Unproven: r.Unproven, Lost: r.Lost, Ended: r.Ended,
		Replaced: r.Replaced, LeafOnly: r.Cut, Truncated: r.Truncated, Unsymbolized: r.Unnamed, SpansLeftOut: r.SpansLeftOut,
		DroppedAttributes: r.Dropped, Filtered: r.Filtered, NotExamined: r.NotExamined,
		Processes: []processUseDocument{}, Spans: []spanUseDocument{}, Traces: []traceUseDocument{},
		Work: []workUseDocument{}, Functions: []recording.FunctionUse{}, Endpoints: []endpointUseDocument{},
		SpanNames: []spanNameUseDocument{}, Attributes: []attributeUseDocument{},
	}
	for _, p := range r.Processes {
		d.Processes = append(d.Processes, processUseDocument(p))
	}
	for _, u := range top(c, r.Spans) {
		d.Spans = append(d.Spans, spanUseDocument{
			Service: u.Service, Name: u.Name, TraceID: hex.EncodeToString(u.TraceID[:]), SpanID: hex.EncodeToString(u.SpanID[:]),
			Samples: u.Samples, Unproven: u.Unproven, CPUNano: int64(c.cpu(u.Samples)), Attributes: document.Attributes(u.Attributes),
		})
	}
	for _, u := range top(c, r.Traces) {
		d.Traces = append(d.Traces, traceUseDocument{
			Service: u.Service, TraceID: hex.EncodeToString(u.TraceID[:]), Spans: u.Spans, Samples: u.Samples,
			CPUNano: int64(c.cpu(u.Samples)),
		})
	}
	for _, u := range top(c, r.Endpoints) {
		d.Endpoints = append(d.Endpoints, endpointUseDocument{u.Service, u.Name, u.Count, u.Samples, int64(c.cpu(u.Samples))})
	}
	for _, u := range top(c, r.Names) {
		d.SpanNames = append(d.SpanNames, spanNameUseDocument{u.Service, u.Name, u.Count, u.Samples, int64(c.cpu(u.Samples))})
	}
	for _, u := range top(c, c.attributes(r)) {
		d.Attributes = append(d.Attributes, attributeUseDocument{u.Key, u.Value, u.Samples, int64(c.cpu(u.Samples))})
	}
	if c.NoSymbols {
		return d
	}
	for _, u := range r.Work {
		d.Work = append(d.Work, workUseDocument{u.Work.String(), u.Samples, u.Attributed, int64(c.cpu(u.Samples))})
	}
	d.Functions = append(d.Functions, top(c, r.Functions)...)
	return d
}

// attributes returns the attributes that --group-by asks for.
func (c *recordCommand) attributes(r *recording.Result) []recording.AttributeUse {
	wanted, one := strings.CutPrefix(c.GroupBy, groupAttribute+"=")
	return slices.DeleteFunc(slices.Clone(r.Attributes), func(u recording.AttributeUse) bool { return one && u.Key != wanted })
}

func (c *recordCommand) deliveredDocument(r *recording.Result, sent export.Delivery) recordDocument {
	d := c.document(r)
	d.Sent, d.SendFailed, d.Queued = sent.Sent, sent.Dropped, sent.Waiting
	return d
}
