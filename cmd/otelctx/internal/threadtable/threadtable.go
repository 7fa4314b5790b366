// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package threadtable prints threads with the spans that they are in.
package threadtable

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/reader"
)

// Append appends the threads that are in a span as text, and why others could not be read. It lists at most
// the given number of threads.
func Append(out []byte, threads []reader.Thread, most int) []byte {
	return appendUnread(appendInSpans(out, threads, most), threads)
}

func appendInSpans(out []byte, threads []reader.Thread, most int) []byte {
	shown := document.Threads(threads)
	if len(shown) == 0 {
		return out
	}
	rows := [][]string{{"  TID", "GOROUTINE", display.ColumnTraceID, display.ColumnSpanID, display.ColumnLocalRoot, "CARRIER", display.ColumnAttributes}}
	// Leave out columns that would be empty: most services publish no names.
	named := slices.ContainsFunc(shown, func(d document.Thread) bool { return d.Name != "" || d.Endpoint != "" })
	if named {
		rows[0] = slices.Insert(rows[0], 2, display.ColumnName, display.ColumnEndpoint)
	}
	for _, d := range shown[:min(len(shown), most)] {
		row := threadRow(&d)
		if named {
			row = slices.Insert(row, 2, display.Name(d.Name), display.Name(d.Endpoint))
		}
		rows = append(rows, row)
	}
	out = append(out, display.Table(rows)...)
	if more := len(shown) - most; more > 0 {
		out = fmt.Appendf(out, "  … and %d more\n", more)
	}
	return out
}

// maxReasons is the maximum number of reasons that are listed for threads that could not be read.
const maxReasons = 5

// appendUnread appends a line for each reason why threads could not be read.
func appendUnread(out []byte, threads []reader.Thread) []byte {
	var reasons []string
	unread := map[string][]reader.Thread{}
	for _, t := range document.Unread(threads) {
		reason := display.Cut(display.Escape(t.Err.Error()), display.MaxValue)
		if unread[reason] == nil {
			reasons = append(reasons, reason)
		}
		unread[reason] = append(unread[reason], t)
	}
	for _, reason := range reasons[:min(len(reasons), maxReasons)] {
		switch all := unread[reason]; len(all) {
		case 1:
			out = fmt.Appendf(out, "  thread %d was not read: %s\n", all[0].TID, reason)
		default:
			out = fmt.Appendf(out, "  %d threads, such as %d, were not read: %s\n", len(all), all[0].TID, reason)
		}
	}
	if more := len(reasons) - maxReasons; more > 0 {
		out = fmt.Appendf(out, "  … and threads for %d other reasons\n", more)
	}
	return out
}

func threadRow(d *document.Thread) []string {
	tid, goroutine, localRoot, carrier := strconv.Itoa(d.TID), "-", "-", d.Carrier
	if d.OwnTID != d.TID {
		tid += fmt.Sprintf(" (own %d)", d.OwnTID)
	}
	if d.Goroutine != 0 {
		goroutine = strconv.FormatUint(d.Goroutine, 10)
	}
	if d.LocalRootSpanID != "" {
		localRoot = d.LocalRootSpanID
	}
	if !d.Proven {
		carrier += ", unproven"
	}
	return []string{"  " + tid, goroutine, d.TraceID, d.SpanID, localRoot, carrier, display.Attributes(d.Attributes)}
}

// Count says how many of the threads are in a span.
func Count(threads []reader.Thread) string {
	return fmt.Sprintf("%d of %d", len(document.InSpans(threads)), len(threads))
}
