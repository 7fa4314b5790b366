// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// spansCommand is otelctx spans.
type spansCommand struct {
	PID    int           `arg:""                                help:"The process to read."                             name:"pid"`
	MinAge time.Duration `default:"0s"                          help:"Leave out spans that were started more recently." name:"min-age"`
	JSON   bool          `help:"Print JSON, nothing cut short." name:"json"`
}

// Help is shown by otelctx spans --help.
func (*spansCommand) Help() string {
	return "Shows the spans of the process that have started and not ended, the oldest first: also those of goroutines that wait, " +
		"and of a process that is stopped. A span that stays at the top was never ended, or its request hangs. A - stands for " +
		"what is not known.\n\n" +
		"The age is the time since the span's start as the span says it. The goroutine is the one that has started the span.\n\n" +
		"With --json:\n\n" +
		"  {pid, time_unix_nano, spans: [{trace_id, span_id, local_root_span_id, name, endpoint, trace_flags, sampled,\n" +
		"                                 goroutine, start_time_unix_nano, age_nano}]}"
}

// Validate is called by kong.
func (c *spansCommand) Validate() error {
	if c.MinAge < 0 {
		return fmt.Errorf("--min-age %v is negative", c.MinAge)
	}
	return validatePID(c.PID)
}

// Run is called by kong.
func (c *spansCommand) Run(s streams) error {
	ctx := context.Background()
	var now time.Time
	spans, err := patient.Call(ctx, c.PID, patient.Limit, func() ([]reader.LiveSpan, error) {
		p, err := reader.Open(c.PID)
		if err != nil {
			return nil, err
		}
		defer func() { _ = p.Close() }()
		spans, err := p.Spans(ctx)
		now = time.Now()
		return spans, err
	})
	if err != nil {
		return aboutProcess(c.PID, err)
	}
	d := newSpansDocument(c.PID, spans, now, c.MinAge)
	if c.JSON {
		return writeJSON(s.stdout, d)
	}
	return writeSpans(s.stdout, d)
}

// spansDocument is what spans --json prints. The schema is stable as that of [document] is.
type spansDocument struct {
	PID int `json:"pid"`
	// TimeUnixNano is when the spans had been read, in nanoseconds since the epoch.
	TimeUnixNano int64 `json:"time_unix_nano"`
	// Spans holds the live spans, the oldest first.
	Spans []spanDocument `json:"spans"`
}

// spanDocument is a live span, for --json.
type spanDocument struct {
	// TraceID, SpanID and LocalRootSpanID are lower-case hexadecimal. The last is "" if it
	// is not known.
	TraceID         string `json:"trace_id"`
	SpanID          string `json:"span_id"`
	LocalRootSpanID string `json:"local_root_span_id"`
	// Name is the span's name, Endpoint that of the local root; "" if they are not known.
	Name       string `json:"name"`
	Endpoint   string `json:"endpoint"`
	TraceFlags byte   `json:"trace_flags"`
	// Sampled is the lowest bit of TraceFlags.
	Sampled bool `json:"sampled"`
	// Goroutine is the id of the goroutine that has started the span, 0 if it is not known.
	Goroutine uint64 `json:"goroutine"`
	// StartTimeUnixNano is the span's start in nanoseconds since the epoch, AgeNano how long
	// before TimeUnixNano that was, 0 if it lies ahead.
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	AgeNano           int64 `json:"age_nano"`
}

// newSpansDocument returns the spans that are at least so old.
func newSpansDocument(pid int, spans []reader.LiveSpan, now time.Time, minAge time.Duration) spansDocument {
	d := spansDocument{PID: pid, TimeUnixNano: now.UnixNano(), Spans: []spanDocument{}}
	for _, s := range spans {
		age := max(now.Sub(s.Start), 0)
		if age < minAge {
			continue
		}
		span := spanDocument{
			TraceID: hex.EncodeToString(s.TraceID[:]), SpanID: hex.EncodeToString(s.SpanID[:]),
			Name: s.Name, Endpoint: s.Endpoint, TraceFlags: s.TraceFlags, Sampled: s.TraceFlags&1 == 1, Goroutine: s.Goroutine,
			StartTimeUnixNano: s.Start.UnixNano(), AgeNano: int64(age),
		}
		if s.LocalRootSpanID != [8]byte{} {
			span.LocalRootSpanID = hex.EncodeToString(s.LocalRootSpanID[:])
		}
		d.Spans = append(d.Spans, span)
	}
	return d
}

// writeSpans writes spans for people.
func writeSpans(w io.Writer, d spansDocument) error {
	out := fmt.Appendf(nil, "Process %d: live spans: %d\n", d.PID, len(d.Spans))
	if len(d.Spans) > 0 {
		rows := [][]string{{"  AGE", "GOROUTINE", columnTraceID, columnSpanID, columnLocalRoot, "SAMPLED"}}
		// Most services publish none.
		named := slices.ContainsFunc(d.Spans, func(s spanDocument) bool { return s.Name != "" || s.Endpoint != "" })
		if named {
			rows[0] = slices.Insert(rows[0], 2, columnName, columnEndpoint)
		}
		for _, s := range d.Spans {
			goroutine, localRoot, sampled := "-", "-", "no"
			if s.Goroutine != 0 {
				goroutine = strconv.FormatUint(s.Goroutine, 10)
			}
			if s.LocalRootSpanID != "" {
				localRoot = s.LocalRootSpanID
			}
			if s.Sampled {
				sampled = "yes"
			}
			rows = append(rows, []string{"  " + spanAgeText(time.Duration(s.AgeNano)), goroutine, s.TraceID, s.SpanID, localRoot, sampled})
			if named {
				rows[len(rows)-1] = slices.Insert(rows[len(rows)-1], 2, nameText(s.Name), nameText(s.Endpoint))
			}
		}
		out = append(out, table(rows)...)
	}
	_, err := w.Write(out)
	return err
}

// spanAgeText is ageText for what may be over within a second.
func spanAgeText(d time.Duration) string {
	if d < time.Second {
		return d.Truncate(time.Millisecond).String()
	}
	return ageText(d)
}
