// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

// Heads of columns.
const (
	columnCPU          = "CPU"
	columnShare        = "SHARE"
	columnInSpans      = "IN SPANS"
	columnCum          = "CUM"
	columnFlat         = "FLAT"
	columnRequestsSeen = "REQUESTS SEEN"
	columnCPURequest   = "CPU/REQUEST"
	columnSpansSeen    = "SPANS SEEN"
	columnCPUSpan      = "CPU/SPAN"
)

// columnTexts lists explanations of columns, in the order in which they are printed.
var columnTexts = []struct{ column, text string }{
	{columnShare, "of the CPU time of all samples"},
	{columnInSpans, "of the CPU time of the row"},
	{columnCum, "CPU time of the function and of what it calls"},
	{columnFlat, "CPU time of the function without what it calls"},
	{columnRequestsSeen, "requests with at least one sample; short ones may have none"},
	{columnCPURequest, "average CPU time of one; ≤ marks an upper bound"},
	{columnSpansSeen, "spans with at least one sample; short ones may have none"},
	{columnCPUSpan, "average CPU time of one, without its children; ≤ marks an upper bound"},
}
