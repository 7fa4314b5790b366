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

// Append appends the threads that are in a span as text. It lists at most the given number of them.
func Append(out []byte, threads []reader.Thread, most int) []byte {
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
