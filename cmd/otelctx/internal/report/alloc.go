// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/allocations"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
)

// AllocDocument is the output of record --alloc --json. Its schema is as stable as that of [document.Process].
type AllocDocument struct {
	// PID is the id of the recorded process or command, or 0 if several processes were selected.
	PID               int   `json:"pid"`
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Samples is the number of sampled allocations, from which the others are estimated. Lost counts those that
	// were not read in time, and LeftOut those of processes of which the rate is not known.
	Samples  uint64 `json:"samples"`
	Lost     uint64 `json:"lost"`
	LeftOut  uint64 `json:"left_out"`
	Unproven uint64 `json:"unproven"`
	Filtered uint64 `json:"filtered"`
	Ended    bool   `json:"ended"`
	// Sent, SendFailed and Queued count samples as in [Document], those with the same stack and span as one.
	Sent       uint64 `json:"sent"`
	SendFailed uint64 `json:"send_failed"`
	Queued     uint64 `json:"queued"`
	// Allocated is the amount of all allocations, and InSpans that of allocations in spans.
	Allocated AllocAmount `json:"allocated"`
	InSpans   AllocAmount `json:"in_spans"`
	// The lists are sorted by bytes, and have at most --top elements. Functions is empty with --no-symbols, and
	// Attributes unless --group-by asks for them.
	Endpoints  []AllocUse `json:"endpoints"`
	SpanNames  []AllocUse `json:"span_names"`
	Functions  []AllocUse `json:"functions"`
	Spans      []AllocUse `json:"spans"`
	Traces     []AllocUse `json:"traces"`
	Processes  []AllocUse `json:"processes"`
	Attributes []AllocUse `json:"attributes"`
}

// AllocAmount is an estimate of what was allocated. ErrorBytes is the standard error of Bytes.
type AllocAmount struct {
	Samples    uint64 `json:"samples"`
	Objects    uint64 `json:"objects"`
	Bytes      uint64 `json:"bytes"`
	ErrorBytes uint64 `json:"error_bytes"`
}

// AllocUse is what an endpoint, the spans of a name, a function and so on allocated. Fields that do not apply are left
// out.
type AllocUse struct {
	AllocAmount

	PID      int    `json:"pid,omitempty"`
	Service  string `json:"service,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Name     string `json:"name,omitempty"`
	Function string `json:"function,omitempty"`
	// CumulativeBytes are the bytes of the function and of what it calls.
	CumulativeBytes uint64            `json:"cumulative_bytes,omitempty"`
	TraceID         string            `json:"trace_id,omitempty"`
	SpanID          string            `json:"span_id,omitempty"`
	Key             string            `json:"key,omitempty"`
	Value           string            `json:"value,omitempty"`
	Attributes      map[string]string `json:"attributes,omitempty"`
}

func allocAmount(a allocations.Amount) AllocAmount {
	return AllocAmount{
		Samples: a.Samples, Objects: uint64(math.Round(a.Objects)), Bytes: uint64(math.Round(a.Bytes)), ErrorBytes: uint64(math.Round(a.Error())),
	}
}

// allocRow is a row of a table of allocations. cells are those of the last columns.
type allocRow struct {
	amount allocations.Amount
	use    AllocUse
	cells  []string
}

// allocTable is a kind of table of allocations.
type allocTable struct {
	title string
	heads []string
	rows  func(*Recording, *Tables) []allocRow
}

var (
	allocEndpoints  = allocTable{"Top endpoints by allocated bytes", []string{display.ColumnEndpoint}, (*Recording).allocEndpoints}
	allocNames      = allocTable{"Top span names by allocated bytes, without their children", []string{display.ColumnName}, (*Recording).allocNames}
	allocFunctions  = allocTable{"Top functions by the bytes that they allocate", []string{columnWith, columnFunction}, (*Recording).allocFunctions}
	allocSpans      = allocTable{"Top spans by allocated bytes", []string{display.ColumnName, display.ColumnSpanID, display.ColumnTraceID, display.ColumnAttributes}, (*Recording).allocSpans}
	allocTraces     = allocTable{"Top traces by allocated bytes", []string{display.ColumnTraceID}, (*Recording).allocTraces}
	allocProcesses  = allocTable{"Top processes by allocated bytes", []string{"PID", display.ColumnService}, (*Recording).allocProcesses}
	allocServices   = allocTable{"Top services by allocated bytes", []string{columnProcesses, display.ColumnService}, (*Recording).allocServices}
	allocAttributes = allocTable{"Top attributes of spans by allocated bytes", []string{columnKey, columnValue}, (*Recording).allocAttributes}
)

// allocTables lists the tables of allocations for each kind of group. "" is the default.
var allocTables = map[string][]*allocTable{
	"":             {&allocProcesses, &allocEndpoints, &allocNames, &allocFunctions},
	GroupSpan:      {&allocNames, &allocSpans},
	GroupEndpoint:  {&allocEndpoints},
	GroupTrace:     {&allocTraces},
	GroupService:   {&allocServices},
	GroupFunction:  {&allocFunctions},
	GroupAttribute: {&allocAttributes},
}

func (r *Recording) allocEndpoints(*Tables) (rows []allocRow) {
	for _, n := range r.Alloc.Allocated.Endpoints {
		rows = append(rows, allocRow{n.Amount, AllocUse{Service: n.Service, Endpoint: n.Name}, []string{display.Name(n.Name)}})
	}
	return rows
}

func (r *Recording) allocNames(*Tables) (rows []allocRow) {
	for _, n := range r.Alloc.Allocated.Names {
		rows = append(rows, allocRow{n.Amount, AllocUse{Service: n.Service, Name: n.Name}, []string{display.Name(n.Name)}})
	}
	return rows
}

func (r *Recording) allocFunctions(t *Tables) (rows []allocRow) {
	if t.NoFunctions {
		return nil
	}
	for _, f := range r.Alloc.Allocated.Functions {
		use := AllocUse{Service: f.Service, Function: f.Function, CumulativeBytes: uint64(math.Round(f.Cumulative.Bytes))}
		rows = append(rows, allocRow{f.Flat, use, []string{display.Bytes(f.Cumulative.Bytes), functionText(f.Function)}})
	}
	return rows
}

func (r *Recording) allocSpans(*Tables) (rows []allocRow) {
	for _, u := range r.Alloc.Allocated.Spans {
		id, trace, attributes := hex.EncodeToString(u.SpanID[:]), hex.EncodeToString(u.TraceID[:]), document.Attributes(u.Attributes)
		shown := id
		if u.Unproven > 0 {
			shown += ", unproven"
		}
		use := AllocUse{Service: u.Service, Name: u.Name, SpanID: id, TraceID: trace, Attributes: attributes}
		rows = append(rows, allocRow{u.Amount, use, []string{display.Name(u.Name), shown, trace, display.Attributes(attributes)}})
	}
	return rows
}

func (r *Recording) allocTraces(*Tables) (rows []allocRow) {
	for _, u := range r.Alloc.Allocated.Traces {
		trace := hex.EncodeToString(u.TraceID[:])
		rows = append(rows, allocRow{u.Amount, AllocUse{Service: u.Service, TraceID: trace}, []string{trace}})
	}
	return rows
}

func (r *Recording) allocProcesses(*Tables) (rows []allocRow) {
	for _, p := range r.Alloc.Allocated.Processes {
		rows = append(rows, allocRow{p.Amount, AllocUse{Service: p.Service, PID: p.PID}, []string{strconv.Itoa(p.PID), display.Key(p.Service)}})
	}
	return rows
}

// allocServices adds up the processes of each service.
func (r *Recording) allocServices(*Tables) (rows []allocRow) {
	processes := map[string]int{}
	for _, p := range r.Alloc.Allocated.Processes {
		i := slices.IndexFunc(rows, func(row allocRow) bool { return row.use.Service == p.Service })
		if processes[p.Service]++; i < 0 {
			rows = append(rows, allocRow{p.Amount, AllocUse{Service: p.Service}, nil})
			continue
		}
		rows[i].amount = rows[i].amount.Add(p.Amount)
	}
	for i := range rows {
		rows[i].cells = []string{strconv.Itoa(processes[rows[i].use.Service]), display.Key(rows[i].use.Service)}
	}
	slices.SortStableFunc(rows, func(a, b allocRow) int { return tally.Heavier(a.amount, b.amount) })
	return rows
}

func (r *Recording) allocAttributes(t *Tables) (rows []allocRow) {
	for _, a := range r.Alloc.Allocated.Attributes {
		if t.Group.has(a.Key) {
			rows = append(rows, allocRow{a.Amount, AllocUse{Key: a.Key, Value: a.Value}, []string{display.Key(a.Key), display.Value(a.Value)}})
		}
	}
	return rows
}

func (r *Recording) allocDocument(t *Tables) AllocDocument {
	a := r.Alloc
	uses := func(table *allocTable) []AllocUse {
		all := []AllocUse{}
		for _, row := range top(t.Top, table.rows(r, t)) {
			row.use.AllocAmount = allocAmount(row.amount)
			all = append(all, row.use)
		}
		return all
	}
	return AllocDocument{
		PID: r.PID, StartTimeUnixNano: a.Start.UnixNano(), DurationNano: int64(a.End.Sub(a.Start)),
		Samples: a.Samples, Lost: a.Lost, LeftOut: a.Allocated.Unweighed, Unproven: a.Unproven, Filtered: a.Filtered, Ended: a.Ended,
		Sent: r.Delivery.Sent, SendFailed: r.Delivery.Dropped, Queued: r.Delivery.Waiting,
		Allocated: allocAmount(a.Allocated.Total), InSpans: allocAmount(a.Allocated.Attributed),
		Endpoints: uses(&allocEndpoints), SpanNames: uses(&allocNames), Functions: uses(&allocFunctions), Spans: uses(&allocSpans),
		Traces: uses(&allocTraces), Processes: uses(&allocProcesses), Attributes: uses(&allocAttributes),
	}
}

// allocText returns the text report of allocations.
func (r *Recording) allocText(l display.Layout, t *Tables) []byte {
	a := r.Alloc
	subject := r.Subject
	if r.PID != 0 && len(a.Processes) > 0 {
		subject += ", " + serviceText(&a.Processes[0])
	}
	took := a.End.Sub(a.Start)
	total, inSpans := a.Allocated.Total, a.Allocated.Attributed
	out := fmt.Appendf(nil, "Recorded the allocations of %s for %v\n", l.Styled(display.Bold, subject), took.Round(10*time.Millisecond))
	out = append(out, l.Table(make([]display.Column, 3), [][]string{
		{"  Allocated", display.Bytes(total.Bytes), "± " + display.Bytes(total.Error())},
		{"  In spans", display.Bytes(inSpans.Bytes), display.Share(inSpans.Weight(), total.Weight())},
		{"  Samples", display.Digits(total.Samples)},
	})...)
	several := slices.ContainsFunc(a.Processes, func(p process) bool { return p.Service != a.Processes[0].Service })
	shown, columns := 0, map[string]bool{}
	for _, table := range allocTables[t.Group.Kind] {
		rows := top(t.Top, table.rows(r, t))
		if len(rows) == 0 || table == &allocProcesses && r.PID != 0 && len(rows) == 1 {
			continue
		}
		shown++
		heads, lines := allocLines(table, rows, total, took, several)
		heads[0].Style = func(row int) display.Style { return heat(rows[row].amount.Weight(), total.Weight()) }
		out = append(fmt.Appendf(out, "\n%s\n", l.Styled(display.Bold, table.title)), l.Table(heads, lines)...)
		for _, head := range l.Heads(heads, lines) {
			columns[head] = true
		}
	}
	if shown == 0 {
		return fmt.Appendf(out, "\nNo samples to group by %s\n", display.Key(t.Group.String()))
	}
	terms := [][2]string{
		{columnError, "standard error of ALLOCATED: the true number is twice as far away in 1 of 20 rows"},
		{columnShare, "of the bytes of all allocations"},
		{columnRate, "bytes allocated in a second of the recording"},
	}
	if columns[columnWith] {
		terms = append(terms, [2]string{columnWith, "bytes allocated by the function and by what it calls"})
	}
	return append(append(out, '\n'), l.Explain(terms)...)
}

// allocLines returns the columns and the cells of a table.
func allocLines(table *allocTable, rows []allocRow, total allocations.Amount, took time.Duration, several bool) ([]display.Column, [][]string) {
	heads := []string{"  " + columnAllocated, columnError, columnShare, columnRate}
	withService := several && rows[0].use.Service != "" && !slices.Contains(table.heads, display.ColumnService)
	if withService {
		heads = append(heads, display.ColumnService)
	}
	var lines [][]string
	for _, row := range rows {
		line := []string{
			"  " + display.Bytes(row.amount.Bytes), display.Bytes(row.amount.Error()), display.Share(row.amount.Weight(), total.Weight()),
			display.Bytes(row.amount.Bytes/max(took.Seconds(), math.SmallestNonzeroFloat32)) + "/s",
		}
		if withService {
			line = append(line, display.Key(row.use.Service))
		}
		lines = append(lines, append(line, row.cells...))
	}
	return columnsOf(append(heads, table.heads...)), lines
}
