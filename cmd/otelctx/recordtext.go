// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// recordDocument is what --json prints of a recording. The schema is stable as that of
// [document] is.
type recordDocument struct {
	// PID is the recorded process, 0 for all.
	PID int `json:"pid"`
	// StartTimeUnixNano is when the recording began, in nanoseconds since the epoch,
	// DurationNano how long it took, in nanoseconds.
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Frequency is how many samples were taken in a second of CPU time.
	Frequency int `json:"frequency"`
	// Samples counts all samples, Attributed those with a span, Unproven those of them
	// in which it may be another one, Lost those that are missing.
	Samples    uint64 `json:"samples"`
	Attributed uint64 `json:"attributed"`
	Unproven   uint64 `json:"unproven"`
	Lost       uint64 `json:"lost"`
	// Replaced counts samples that were not taken: their process had begun to run another
	// program.
	Replaced uint64 `json:"replaced"`
	// Cut counts samples with only the innermost frame of their stack.
	Cut uint64 `json:"cut"`
	// SpansLeftOut counts spans that are not in Spans: there are too many.
	SpansLeftOut uint64 `json:"spans_left_out"`
	// Dropped counts attributes that no profile can have.
	Dropped uint64 `json:"dropped"`
	// Ended says that the process ended meanwhile.
	Ended bool `json:"ended"`
	// Processes, Spans and Traces are those that used the processor most, in that
	// order. There are at most --top spans and traces.
	Processes []processUseDocument `json:"processes"`
	Spans     []spanUseDocument    `json:"spans"`
	Traces    []traceUseDocument   `json:"traces"`
}

type processUseDocument struct {
	PID int `json:"pid"`
	// Service is the service's name, or else that of the executable.
	Service    string `json:"service"`
	Samples    uint64 `json:"samples"`
	Attributed uint64 `json:"attributed"`
}

type spanUseDocument struct {
	Service string `json:"service"`
	// TraceID and SpanID are lower-case hexadecimal.
	TraceID  string `json:"trace_id"`
	SpanID   string `json:"span_id"`
	Samples  uint64 `json:"samples"`
	Unproven uint64 `json:"unproven"`
	// CPUNano is the CPU time that the samples stand for, in nanoseconds.
	CPUNano int64 `json:"cpu_nano"`
	// Attributes are what was last shown with the span, as in [threadDocument].
	Attributes map[string]string `json:"attributes"`
}

type traceUseDocument struct {
	Service string `json:"service"`
	TraceID string `json:"trace_id"`
	// Spans counts the spans of the trace that were sampled.
	Spans   int    `json:"spans"`
	Samples uint64 `json:"samples"`
	CPUNano int64  `json:"cpu_nano"`
}

// Heads of columns.
const (
	columnCPU   = "  CPU"
	columnShare = "SHARE"

	columnAttributes = "ATTRIBUTES"
)

// cpu returns the CPU time that samples stand for.
func (c *recordCommand) cpu(samples uint64) time.Duration {
	return time.Duration(samples) * (time.Second / time.Duration(c.Frequency))
}

// top returns the first of all, as many as are to be shown.
func top[T any](c *recordCommand, all []T) []T {
	if c.Top == 0 {
		return all
	}
	return all[:min(len(all), c.Top)]
}

func (c *recordCommand) document(r *recording.Result) recordDocument {
	d := recordDocument{
		PID: c.PID, StartTimeUnixNano: r.Start.UnixNano(), DurationNano: int64(r.End.Sub(r.Start)), Frequency: c.Frequency,
		Samples: r.Samples, Attributed: r.Attributed, Unproven: r.Unproven, Lost: r.Lost, Ended: r.Ended,
		Replaced: r.Replaced, Cut: r.Cut, SpansLeftOut: r.SpansLeftOut, Dropped: r.Dropped,
		Processes: []processUseDocument{}, Spans: []spanUseDocument{}, Traces: []traceUseDocument{},
	}
	for _, p := range r.Processes {
		d.Processes = append(d.Processes, processUseDocument(p))
	}
	for _, u := range top(c, r.Spans) {
		d.Spans = append(d.Spans, spanUseDocument{
			Service: u.Service, TraceID: hex.EncodeToString(u.TraceID[:]), SpanID: hex.EncodeToString(u.SpanID[:]),
			Samples: u.Samples, Unproven: u.Unproven, CPUNano: int64(c.cpu(u.Samples)), Attributes: attributesObject(u.Attributes),
		})
	}
	for _, u := range top(c, r.Traces) {
		d.Traces = append(d.Traces, traceUseDocument{
			Service: u.Service, TraceID: hex.EncodeToString(u.TraceID[:]), Spans: u.Spans, Samples: u.Samples,
			CPUNano: int64(c.cpu(u.Samples)),
		})
	}
	return d
}

func (c *recordCommand) writeJSON(w io.Writer, r *recording.Result) error {
	return writeJSON(w, c.document(r))
}

// writeText writes a recording for people.
func (c *recordCommand) writeText(w io.Writer, r *recording.Result) error {
	d := c.document(r)
	subject := "every process that publishes"
	if c.PID != 0 {
		subject = fmt.Sprintf("process %d", c.PID)
	}
	if c.PID != 0 && len(d.Processes) > 0 {
		subject += ", " + keyText(d.Processes[0].Service)
	}
	out := fmt.Appendf(nil, "Recorded %s for %v at %d Hz\n", subject, r.End.Sub(r.Start).Round(10*time.Millisecond), c.Frequency)
	out = append(out, table([][]string{
		{"  CPU time", cpuText(c.cpu(d.Samples)), groupDigits(d.Samples) + " samples"},
		{"  In spans", cpuText(c.cpu(d.Attributed)), shareText(d.Attributed, d.Samples)},
		{"  Lost", cpuText(c.cpu(d.Lost)), groupDigits(d.Lost) + " samples"},
	})...)
	if c.PID == 0 && len(d.Processes) > 0 {
		rows := [][]string{{columnCPU, columnShare, "IN SPANS", "PID", columnService}}
		for _, p := range top(c, d.Processes) {
			rows = append(rows, []string{
				"  " + cpuText(c.cpu(p.Samples)), shareText(p.Samples, d.Samples), shareText(p.Attributed, p.Samples),
				strconv.Itoa(p.PID), keyText(p.Service),
			})
		}
		out = append(append(out, "\nTop processes by CPU time\n"...), table(rows)...)
	}
	if len(d.Spans) > 0 {
		out = c.appendSpans(out, &d)
	}
	_, err := w.Write(out)
	return err
}

// appendSpans appends the spans and traces for people.
func (c *recordCommand) appendSpans(out []byte, d *recordDocument) []byte {
	rows := [][]string{{columnCPU, columnShare, columnService, columnSpanID, columnTraceID}}
	// Most services publish none.
	attributes := slices.ContainsFunc(d.Spans, func(u spanUseDocument) bool { return len(u.Attributes) > 0 })
	if attributes {
		rows[0] = append(rows[0], columnAttributes)
	}
	for _, u := range d.Spans {
		id := u.SpanID
		if u.Unproven > 0 {
			id += ", unproven"
		}
		rows = append(rows, []string{
			"  " + cpuText(c.cpu(u.Samples)), shareText(u.Samples, d.Samples), keyText(u.Service), id, u.TraceID,
		})
		if attributes {
			rows[len(rows)-1] = append(rows[len(rows)-1], attributesText(u.Attributes))
		}
	}
	out = append(append(out, "\nTop spans by CPU time\n"...), table(rows)...)
	rows = [][]string{{columnCPU, columnShare, columnService, "SPANS", columnTraceID}}
	for _, u := range d.Traces {
		rows = append(rows, []string{
			"  " + cpuText(c.cpu(u.Samples)), shareText(u.Samples, d.Samples), keyText(u.Service), strconv.Itoa(u.Spans), u.TraceID,
		})
	}
	return append(append(out, "\nTop traces by CPU time\n"...), table(rows)...)
}

func cpuText(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

// shareText returns how much of the whole a part is.
func shareText(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}
