// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
)

// These are the heads of columns that occur in several tables.
const (
	ColumnService    = "SERVICE"
	ColumnTraceID    = "TRACE ID"
	ColumnSpanID     = "SPAN ID"
	ColumnLocalRoot  = "LOCAL ROOT"
	ColumnWaitingFor = "WAITING FOR"
	ColumnEndpoint   = "ENDPOINT"
	ColumnName       = "NAME"
	ColumnAttributes = "ATTRIBUTES"
)

// Table aligns the cells of rows in columns. Cells must not contain tabs or line breaks.
func Table(rows [][]string) []byte {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush() // Writing to a bytes.Buffer does not fail.
	return b.Bytes()
}
