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

	AllocLists

	// Live is left out without --live.
	Live *LiveDocument `json:"live,omitempty"`
}

// LiveDocument reports the memory that is in use at the end of the recording or of the program. It counts objects that were
// allocated after the start of the recording and before the last completed collection of the program began, and have not been
// freed since.
type LiveDocument struct {
	// Collections is the number of collections that the programs have completed since the start of the recording. Before the
	// first, nothing is known to be in use.
	Collections uint64 `json:"collections"`
	// LostFrees counts objects that were freed, but may be among those in use. LeftOut counts objects that were not followed
	// because there were too many.
	LostFrees uint64 `json:"lost_frees"`
	LeftOut   uint64 `json:"left_out"`
	// Total is the amount of all objects, and InSpans that of objects allocated in spans.
	Total   AllocAmount `json:"total"`
	InSpans AllocAmount `json:"in_spans"`

	AllocLists
}

// AllocLists lists what has allocated.
type AllocLists struct {
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

// AllocUse is a row of a list in AllocLists: the allocations of an endpoint, a span name, a function and so on. Fields that
// do not apply are left out.
type AllocUse struct {
	AllocAmount
	RequestCount

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

// memory holds the numbers of the tables: of the allocated memory, or of the memory in use.
type memory struct {
	total allocations.Amount
	tally.Rows[allocations.Amount]

	// verb is for titles.
	column, verb string
}

func (r *Recording) allocated() *memory {
	a := r.Alloc.Allocated
	return &memory{a.Total, a.Rows, columnAllocated, "allocated"}
}

func (r *Recording) live() *memory {
	l := r.Alloc.Live
	return &memory{l.Total, l.Rows, columnLive, "live"}
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
	// title contains %s in the place of memory.verb.
	title string
	heads []string
	rows  func(*memory, *Tables) []allocRow
}

var (
	allocEndpoints  = allocTable{"Top endpoints by %s bytes", []string{display.ColumnEndpoint}, (*memory).endpoints}
	allocNames      = allocTable{"Top span names by %s bytes, without their children", []string{display.ColumnName}, (*memory).names}
	allocFunctions  = allocTable{"Top functions by %s bytes", []string{columnWith, columnFunction}, (*memory).functions}
	allocSpans      = allocTable{"Top spans by %s bytes", []string{display.ColumnName, display.ColumnSpanID, display.ColumnTraceID, display.ColumnAttributes}, (*memory).spans}
	allocTraces     = allocTable{"Top traces by %s bytes", []string{display.ColumnTraceID}, (*memory).traces}
	allocProcesses  = allocTable{"Top processes by %s bytes", []string{"PID", display.ColumnService}, (*memory).processes}
	allocServices   = allocTable{"Top services by %s bytes", []string{columnProcesses, display.ColumnService}, (*memory).services}
	allocAttributes = allocTable{"Top attributes of spans by %s bytes", []string{columnKey, columnValue}, (*memory).attributes}
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

func (m *memory) endpoints(*Tables) (rows []allocRow) {
	for _, n := range m.Endpoints {
		row := allocRow{n.Amount, AllocUse{Service: n.Service, Endpoint: n.Name}, []string{display.Name(n.Name)}}
		if m.column != columnLive {
			served := requestsOf(n.Requests, n.Count)
			row.use.RequestCount = requestCount(n.Requests)
			row.cells = append([]string{served.String(), served.eachBytes(n.Amount.Bytes, n.Amount.Samples)}, row.cells...)
		}
		rows = append(rows, row)
	}
	return rows
}

func (m *memory) names(*Tables) (rows []allocRow) {
	for _, n := range m.Names {
		rows = append(rows, allocRow{n.Amount, AllocUse{Service: n.Service, Name: n.Name}, []string{display.Name(n.Name)}})
	}
	return rows
}

func (m *memory) functions(t *Tables) (rows []allocRow) {
	if t.NoFunctions {
		return nil
	}
	for _, f := range m.Functions {
		use := AllocUse{Service: f.Service, Function: f.Function, CumulativeBytes: uint64(math.Round(f.Cumulative.Bytes))}
		rows = append(rows, allocRow{f.Flat, use, []string{display.Bytes(f.Cumulative.Bytes), functionText(f.Function)}})
	}
	return rows
}

func (m *memory) spans(*Tables) (rows []allocRow) {
	for _, u := range m.Spans {
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

func (m *memory) traces(*Tables) (rows []allocRow) {
	for _, u := range m.Traces {
		trace := hex.EncodeToString(u.TraceID[:])
		rows = append(rows, allocRow{u.Amount, AllocUse{Service: u.Service, TraceID: trace}, []string{trace}})
	}
	return rows
}

func (m *memory) processes(*Tables) (rows []allocRow) {
	for _, p := range m.Processes {
		rows = append(rows, allocRow{p.Amount, AllocUse{Service: p.Service, PID: p.PID}, []string{strconv.Itoa(p.PID), display.Key(p.Service)}})
	}
	return rows
}

// allocServices adds up the processes of each service.
func (m *memory) services(*Tables) (rows []allocRow) {
	processes := map[string]int{}
	for _, p := range m.Processes {
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

func (m *memory) attributes(t *Tables) (rows []allocRow) {
	for _, a := range m.Attributes {
		if t.Group.has(a.Key) {
			rows = append(rows, allocRow{a.Amount, AllocUse{Key: a.Key, Value: a.Value}, []string{display.Key(a.Key), display.Value(a.Value)}})
		}
	}
	return rows
}

func (m *memory) lists(t *Tables) AllocLists {
	uses := func(table *allocTable) []AllocUse {
		all := []AllocUse{}
		for _, row := range top(t.Top, table.rows(m, t)) {
			row.use.AllocAmount = allocAmount(row.amount)
			all = append(all, row.use)
		}
		return all
	}
	return AllocLists{
		Endpoints: uses(&allocEndpoints), SpanNames: uses(&allocNames), Functions: uses(&allocFunctions), Spans: uses(&allocSpans),
		Traces: uses(&allocTraces), Processes: uses(&allocProcesses), Attributes: uses(&allocAttributes),
	}
}

func (r *Recording) allocDocument(t *Tables) AllocDocument {
	a := r.Alloc
	d := AllocDocument{
		PID: r.PID, StartTimeUnixNano: a.Start.UnixNano(), DurationNano: int64(a.End.Sub(a.Start)),
		Samples: a.Allocated.Total.Samples, Lost: a.Lost, LeftOut: a.Allocated.Unweighed, Unproven: a.Unproven, Filtered: a.Filtered, Ended: a.Ended,
		Sent: r.Delivery.Sent, SendFailed: r.Delivery.Dropped, Queued: r.Delivery.Waiting,
		Allocated: allocAmount(a.Allocated.Total), InSpans: allocAmount(a.Allocated.Attributed), AllocLists: r.allocated().lists(t),
	}
	if l := a.Live; l != nil {
		d.Live = &LiveDocument{
			Collections: l.Collections, LostFrees: l.LostFrees, LeftOut: l.LeftOut,
			Total: allocAmount(l.Total), InSpans: allocAmount(l.Attributed), AllocLists: r.live().lists(t),
		}
	}
	return d
}

// allocText returns the text report of allocations. With --live, the tables are those of what is in use.
func (r *Recording) allocText(l display.Layout, t *Tables) []byte {
	a := r.Alloc
	subject := r.Subject
	processes := a.Allocated.Processes
	if r.PID != 0 && len(processes) > 0 {
		subject += ", " + serviceText(processes[0].Service, processes[0].Source)
	}
	took := a.End.Sub(a.Start)
	total, inSpans := a.Allocated.Total, a.Allocated.Attributed
	out := fmt.Appendf(nil, "Recorded the allocations of %s for %v\n", l.Styled(display.Bold, subject), took.Round(10*time.Millisecond))
	lines := [][]string{
		{"  Allocated", display.Bytes(total.Bytes), "± " + display.Bytes(total.Error())},
		{"  In spans", display.Bytes(inSpans.Bytes), display.Share(inSpans.Weight(), total.Weight())},
		{"  Samples", display.Digits(total.Samples)},
	}
	shown := r.allocated()
	if live := a.Live; live != nil {
		shown = r.live()
		lines = append(lines,
			[]string{"  Live", display.Bytes(live.Total.Bytes), "± " + display.Bytes(live.Total.Error())},
			[]string{"  Live, in spans", display.Bytes(live.Attributed.Bytes), display.Share(live.Attributed.Weight(), live.Total.Weight())},
			[]string{"  Collections", display.Digits(live.Collections)},
		)
	}
	out = append(out, l.Table(make([]display.Column, 3), lines)...)
	if a.Live != nil && a.Live.Collections == 0 {
		return append(out, "\nNothing is known to be live until a garbage collection that began during the recording is complete.\n"...)
	}
	return append(out, r.allocTables(l, t, shown, took)...)
}

// allocTables returns the tables of allocations or of what is in use, and explains their columns.
func (r *Recording) allocTables(l display.Layout, t *Tables, m *memory, took time.Duration) (out []byte) {
	several := slices.ContainsFunc(m.Processes, func(p tally.Process[allocations.Amount]) bool { return p.Service != m.Processes[0].Service })
	shown, columns := 0, map[string]bool{}
	for _, table := range allocTables[t.Group.Kind] {
		rows := top(t.Top, table.rows(m, t))
		if len(rows) == 0 || table == &allocProcesses && r.PID != 0 && len(rows) == 1 {
			continue
		}
		shown++
		heads, lines := allocLines(table, rows, m, took, several)
		heads[0].Style = func(row int) display.Style { return heat(rows[row].amount.Weight(), m.total.Weight()) }
		out = append(fmt.Appendf(out, "\n%s\n", l.Styled(display.Bold, fmt.Sprintf(table.title, m.verb))), l.Table(heads, lines)...)
		for _, head := range l.Heads(heads, lines) {
			columns[head] = true
		}
	}
	if shown == 0 {
		if t.Group.Kind != "" {
			out = fmt.Appendf(out, "\nNo samples to group by %s\n", display.Key(t.Group.String()))
		}
		return out
	}
	terms := [][2]string{
		{columnError, "standard error of " + m.column + ": in about 1 of 20 rows, the true number is off by more than twice this"},
		{columnShare, "of the bytes of all allocations"},
		{columnRate, "bytes allocated in a second of the recording"},
	}
	if columns[columnRequests] {
		terms = append(terms, [2]string{columnRequests, requestsText})
	}
	if columns[columnEach] {
		terms = append(terms, [2]string{columnEach, "average of one request; ≤ marks an upper bound"})
	}
	with := "bytes allocated by the function and by what it calls"
	if m.column == columnLive {
		terms = append([][2]string{
			{columnLive, "bytes of objects allocated since the recording began, and still in use after the last garbage collection"},
		}, terms[0], [2]string{columnShare, "of all live bytes"})
		with = "live bytes allocated by the function and by what it calls"
	}
	if columns[columnWith] {
		terms = append(terms, [2]string{columnWith, with})
	}
	return append(append(out, '\n'), l.Explain(terms)...)
}

// allocLines returns the columns and the cells of a table.
func allocLines(table *allocTable, rows []allocRow, m *memory, took time.Duration, several bool) ([]display.Column, [][]string) {
	heads := []string{"  " + m.column, columnError, columnShare}
	withRate := m.column == columnAllocated
	if withRate {
		heads = append(heads, columnRate)
	}
	withService := several && rows[0].use.Service != "" && !slices.Contains(table.heads, display.ColumnService)
	if withService {
		heads = append(heads, display.ColumnService)
	}
	if withRate && table == &allocEndpoints {
		heads = append(heads, columnRequests, columnEach)
	}
	var lines [][]string
	for _, row := range rows {
		line := []string{
			"  " + display.Bytes(row.amount.Bytes), display.Bytes(row.amount.Error()), display.Share(row.amount.Weight(), m.total.Weight()),
		}
		if withRate {
			line = append(line, display.Bytes(row.amount.Bytes/max(took.Seconds(), math.SmallestNonzeroFloat32))+"/s")
		}
		if withService {
			line = append(line, display.Key(row.use.Service))
		}
		lines = append(lines, append(line, row.cells...))
	}
	return columnsOf(append(heads, table.heads...)), lines
}
