// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import "github.com/otelctx/otelctx/cmd/otelctx/internal/display"

// Heads of the columns of record. Those that other commands have, too, are in package display.
const (
	columnCPU        = "CPU"
	columnShare      = "SHARE"
	columnInSpans    = "IN SPANS"
	columnCum        = "CUM"
	columnFlat       = "FLAT"
	columnRequests   = "REQUESTS"
	columnCPURequest = "CPU/REQUEST"
	columnSpansSeen  = "SPANS SEEN"
	columnCPUSpan    = "CPU/SPAN"
	columnFunction   = "FUNCTION"
	columnProcesses  = "PROCESSES"
	columnKey        = "KEY"
	columnValue      = "VALUE"

	// With --wall.
	columnWall        = "WALL"
	columnError       = "±"
	columnRunning     = "RUNNING"
	columnMainWait    = "MAIN WAIT"
	columnCPUWait     = "CPU WAIT"
	columnRunnable    = "RUNNABLE"
	columnWaiting     = "WAITING"
	columnWallSpan    = "WALL/SPAN"
	columnWallRequest = "WALL/REQUEST"

	// With --alloc.
	columnAllocated = "ALLOCATED"
	columnLive      = "LIVE"
	columnRate      = "RATE"
	columnWith      = "WITH CALLEES"
	columnEach      = "ALLOCATED/REQUEST"
)

// columnsOf returns the columns with these heads: which of them become narrower on a narrow terminal, and which are left out.
func columnsOf(heads []string) []display.Column {
	columns := make([]display.Column, len(heads))
	for i, head := range heads {
		c := display.Column{Head: head}
		switch head {
		case columnFunction:
			c.Min, c.KeepEnd = 20, true
		case display.ColumnName, display.ColumnEndpoint, display.ColumnService, display.ColumnWaitingFor, columnValue:
			c.Min = 16
		case display.ColumnAttributes:
			c.Min, c.Spare = 20, 2
		case columnCPUWait, columnRunnable:
			c.Spare = 4
		case columnError, columnSpansSeen, columnRequests:
			c.Spare = 3
		case columnWallSpan, columnWallRequest:
			c.Spare = 1
		}
		columns[i] = c
	}
	return columns
}

// requestsText explains columnRequests.
const requestsText = "requests that ended, as the service counts them; ≥ marks a lower bound"

// columnTexts lists explanations of columns, in the order in which they are printed.
var columnTexts = []struct{ column, text string }{
	{columnShare, "of the CPU time of all samples"},
	{columnInSpans, "of the CPU time of the row"},
	{columnCum, "CPU time of the function and of what it calls"},
	{columnFlat, "CPU time of the function without what it calls"},
	{columnRequests, requestsText},
	{columnCPURequest, "average CPU time of one; ≤ marks an upper bound"},
	{columnSpansSeen, "spans with at least one sample; short ones may have none"},
	{columnCPUSpan, "average CPU time of one, without its children; ≤ marks an upper bound"},
}
