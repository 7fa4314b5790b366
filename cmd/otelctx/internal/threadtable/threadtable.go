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

// Append appends the threads that are in a span as text, and why others could not be read.
func Append(out []byte, l display.Layout, threads []reader.Thread) []byte {
	return appendUnread(appendInSpans(out, l, threads), l, threads)
}

func appendInSpans(out []byte, l display.Layout, threads []reader.Thread) []byte {
	shown := document.Threads(threads)
	if len(shown) == 0 {
		return out
	}
	columns := []display.Column{
		{Head: "  TID"},
		{Head: "GOROUTINE", Spare: 4},
		{Head: display.ColumnName, Min: 16},
		{Head: display.ColumnEndpoint, Min: 16, Spare: 2},
		{Head: display.ColumnTraceID},
		{Head: display.ColumnSpanID, Spare: 3},
		{Head: display.ColumnLocalRoot},
		{Head: "CARRIER", Spare: 5},
		{Head: display.ColumnAttributes, Min: 20, Spare: 1},
	}
	// Empty columns and columns for --wide are left out.
	empty := map[string]bool{
		display.ColumnName:       !slices.ContainsFunc(shown, func(d document.Thread) bool { return d.Name != "" || d.Endpoint != "" }),
		display.ColumnLocalRoot:  !l.Wide,
		display.ColumnAttributes: !slices.ContainsFunc(shown, func(d document.Thread) bool { return len(d.Attributes) > 0 }),
	}
	empty[display.ColumnEndpoint] = empty[display.ColumnName]
	var rows [][]string
	for _, d := range shown {
		rows = append(rows, threadRow(l, &d))
	}
	return append(out, l.Table(display.Without(columns, rows, func(c *display.Column) bool { return empty[c.Head] }))...)
}

// maxReasons is the maximum number of reasons that are listed for threads that could not be read.
const maxReasons = 5

// appendUnread appends a line for each reason why threads could not be read.
func appendUnread(out []byte, l display.Layout, threads []reader.Thread) []byte {
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
			reason = fmt.Sprintf("thread %d was not read: %s", all[0].TID, reason)
		default:
			reason = fmt.Sprintf("%d threads, such as %d, were not read: %s", len(all), all[0].TID, reason)
		}
		for _, line := range l.Hang("  ", reason) {
			out = append(out, line+"\n"...)
		}
	}
	if more := len(reasons) - maxReasons; more > 0 {
		out = fmt.Appendf(out, "  … and threads for %d other reasons\n", more)
	}
	return out
}

func threadRow(l display.Layout, d *document.Thread) []string {
	tid, goroutine, localRoot, carrier := strconv.Itoa(d.TID), "-", "-", d.Carrier
	if d.OwnTID != d.TID {
		tid += fmt.Sprintf(" (%d inside)", d.OwnTID)
	}
	if d.Goroutine != 0 {
		goroutine = strconv.FormatUint(d.Goroutine, 10)
	}
	if d.LocalRootSpanID != "" {
		localRoot = l.ID(d.LocalRootSpanID)
	}
	if !d.Proven {
		carrier += ", unproven"
	}
	return []string{
		"  " + tid, goroutine, display.Name(d.Name), display.Name(d.Endpoint), l.ID(d.TraceID), l.ID(d.SpanID), localRoot, carrier,
		display.Attributes(d.Attributes),
	}
}

// Count says how many of the threads are in a span.
func Count(threads []reader.Thread) string {
	return fmt.Sprintf("%d of %d", len(document.InSpans(threads)), len(threads))
}
