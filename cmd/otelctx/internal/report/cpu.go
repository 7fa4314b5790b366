// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
)

// cpuTables lists the tables of CPU time for each kind of group. "" is the default.
var cpuTables = map[string][]func(*summary){
	"":             {(*summary).work, (*summary).processes, (*summary).functions, (*summary).endpoints, (*summary).names, (*summary).spans},
	GroupSpan:      {(*summary).names, (*summary).spans},
	GroupEndpoint:  {(*summary).endpoints},
	GroupTrace:     {(*summary).traces},
	GroupService:   {(*summary).services},
	GroupFunction:  {(*summary).functions, (*summary).callers},
	GroupAttribute: {(*summary).attributes},
}

// summary is the text report of CPU time.
type summary struct {
	*Recording
	*Tables
	*recording.Result

	layout display.Layout
	out    bytes.Buffer
	// columns holds the columns of the tables printed so far.
	columns map[string]bool
	// several reports whether several services were recorded.
	several bool
}

// cpuText returns the text report of CPU time.
func (r *Recording) cpuText(l display.Layout, t *Tables) []byte {
	s := &summary{
		Recording: r, Tables: t, Result: r.CPU, layout: l, columns: map[string]bool{},
		several: slices.ContainsFunc(r.CPU.Processes, func(p process) bool { return p.Service != r.CPU.Processes[0].Service }),
	}
	subject := r.Subject
	if r.PID != 0 && len(s.Processes) > 0 {
		subject += ", " + serviceText(s.Processes[0].Service, s.Processes[0].Source)
	}
	lost := []string{"  Lost", display.Seconds(r.cpu(s.Lost)), display.Digits(s.Lost) + " samples"}
	if r.Alloc != nil && s.Lost > 0 { // The counter does not tell lost samples of CPU time from those of allocations.
		lost = []string{"  Lost", "-", display.Digits(s.Lost) + " samples, including those of allocations"}
	}
	fmt.Fprintf(&s.out, "Recorded %s for %v at %d Hz\n", l.Styled(display.Bold, subject), s.End.Sub(s.Start).Round(10*time.Millisecond), r.Frequency)
	s.out.Write(l.Table(make([]display.Column, 3), [][]string{
		{"  CPU time", display.Seconds(r.cpu(s.Samples)), display.Digits(s.Samples) + " samples"},
		{"  In spans", display.Seconds(r.cpu(s.Attributed)), display.Share(s.Attributed, s.Samples)},
		lost,
	}))
	header := s.out.Len()
	group := t.Group.Kind
	shown := cpuTables[group]
	if r.Wall != nil { // The times of spans are printed later, in their own table.
		shown = []func(*summary){(*summary).work, (*summary).processes, (*summary).functions}
	}
	for _, show := range shown {
		show(s)
	}
	s.explainColumns()
	if group == "" && s.Attributed > 0 && len(s.Names) == 0 && !t.NoSpanNames {
		s.note("The spans have no names: the service uses spanctx.WithSpanNames(false) or OTELCTX_SPAN_NAMES=false, or has too many names.")
	}
	if len(s.Endpoints) > 0 && (group == "" || group == GroupEndpoint) && isMethod(s.Endpoints[0].Name) {
		s.note("The endpoint has no route. Around a whole mux otelhttp learns it too late: put otelhttp around each handler.")
	}
	if group != "" && s.out.Len() == header {
		fmt.Fprintf(&s.out, "\nNo samples to group by %s\n", display.Key(t.Group.String()))
	}
	return s.out.Bytes()
}

// note writes a paragraph.
func (s *summary) note(text string) {
	s.out.WriteString("\n" + strings.Join(s.layout.Hang("", text), "\n") + "\n")
}

// explainColumns explains the columns of all tables printed so far.
func (s *summary) explainColumns() {
	if len(s.columns) == 0 {
		return
	}
	terms := [][2]string{{columnCPU, fmt.Sprintf("%v for each sample", s.cpu(1).Round(time.Microsecond))}}
	for _, c := range columnTexts {
		if s.columns[c.column] {
			terms = append(terms, [2]string{c.column, c.text})
		}
	}
	s.out.WriteByte('\n')
	s.out.Write(s.layout.Explain(terms))
}

// isMethod reports whether a name is only an HTTP method.
func isMethod(name string) bool {
	switch name {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	default:
		return false
	}
}

// rows holds the rows of a table. The first two columns show the samples as CPU time and share. cells holds the
// other columns.
type rows struct {
	samples []tally.Count
	cells   [][]string
}

func (r *rows) add(samples tally.Count, cells ...string) {
	r.samples = append(r.samples, samples)
	r.cells = append(r.cells, cells)
}

// table writes a table, or nothing if it has no rows.
func (s *summary) table(title string, heads []string, r rows) {
	if len(r.cells) == 0 {
		return
	}
	columns := append([]display.Column{
		{Head: "  " + columnCPU, Style: func(row int) display.Style { return heat(uint64(r.samples[row]), s.Samples) }},
		{Head: columnShare},
	}, columnsOf(heads)...)
	var lines [][]string
	for i, cells := range r.cells {
		lines = append(lines, append([]string{"  " + display.Seconds(s.cpu(uint64(r.samples[i]))), display.Share(uint64(r.samples[i]), s.Samples)}, cells...))
	}
	fmt.Fprintf(&s.out, "\n%s\n", s.layout.Styled(display.Bold, title))
	s.out.Write(s.layout.Table(columns, lines))
	for _, head := range s.layout.Heads(columns, lines) {
		s.columns[head] = true
	}
}

// service prepends the service to cells or heads if there are several services.
func (s *summary) service(service string, cells ...string) []string {
	if !s.several {
		return cells
	}
	return append([]string{service}, cells...)
}

func (s *summary) work() {
	if s.NoFunctions {
		return
	}
	var r rows
	for _, u := range s.Work {
		if u.Samples > 0 {
			r.add(tally.Count(u.Samples), display.Share(u.Attributed, u.Samples), workText(u.Work))
		}
	}
	s.table("What the CPU time was used for", []string{columnInSpans, "WORK"}, r)
}

func workText(w recording.Work) string {
	if w == recording.Idle {
		return "scheduler, looking for work"
	}
	return strings.ReplaceAll(w.String(), "_", " ")
}

func (s *summary) processes() {
	var r rows
	for _, p := range top(s.Top, s.Processes) {
		r.add(p.Amount, display.Share(p.Attributed, p.Amount), strconv.Itoa(p.PID), serviceText(p.Service, p.Source))
	}
	if s.PID == 0 || s.Started && len(r.cells) > 1 {
		s.table("Top processes by CPU time", []string{columnInSpans, "PID", display.ColumnService}, r)
	}
}

// serviceText returns the service of a process, and marks a name that is not published.
func serviceText(service, source string) string {
	if source == recording.FromEnvironment {
		return display.Key(service) + " (from its environment)"
	}
	return display.Key(service)
}

func (s *summary) services() {
	var all []*process
	processes := map[string]int{}
	for _, p := range s.Processes {
		if processes[p.Service]++; processes[p.Service] == 1 {
			all = append(all, &process{Service: p.Service})
		}
		u := all[slices.IndexFunc(all, func(u *process) bool { return u.Service == p.Service })]
		u.Amount += p.Amount
		u.Attributed += p.Attributed
	}
	slices.SortStableFunc(all, func(a, b *process) int { return tally.Heavier(a.Amount, b.Amount) })
	var r rows
	for _, u := range top(s.Top, all) {
		r.add(u.Amount, display.Share(u.Attributed, u.Amount), strconv.Itoa(processes[u.Service]), display.Key(u.Service))
	}
	s.table("Top services by CPU time", []string{columnInSpans, columnProcesses, display.ColumnService}, r)
}

func (s *summary) functions() {
	var r rows
	for _, u := range top(s.Top, s.Functions) {
		r.add(u.Flat, s.service(display.Key(u.Service), display.Seconds(s.cpu(uint64(u.Cumulative))), display.Share(uint64(u.Cumulative), s.Samples), functionText(u.Function))...)
	}
	s.functionTable("Top functions by their own CPU time", r, columnCum, columnShare)
}

// callers writes the table of functions by cumulative CPU time.
func (s *summary) callers() {
	all := slices.Clone(s.Functions)
	slices.SortStableFunc(all, func(a, b function) int { return tally.Heavier(a.Cumulative, b.Cumulative) })
	var r rows
	for _, u := range top(s.Top, all) {
		r.add(u.Cumulative, s.service(display.Key(u.Service), display.Seconds(s.cpu(uint64(u.Flat))), display.Share(uint64(u.Flat), s.Samples), functionText(u.Function))...)
	}
	s.functionTable("Top functions by CPU time with what they call", r, columnFlat, columnShare)
}

func (s *summary) functionTable(title string, r rows, heads ...string) {
	if !s.NoFunctions {
		s.table(title, s.service(display.ColumnService, append(heads, columnFunction)...), r)
	}
}

func functionText(name string) string { return display.Cut(display.String(name), display.MaxValue) }

func (s *summary) endpoints() {
	var r rows
	for _, u := range top(s.Top, s.Endpoints) {
		served := requestsOf(u.Requests, u.Count)
		r.add(u.Amount, s.service(display.Key(u.Service), served.String(), served.each(s.cpu(uint64(u.Amount)), uint64(u.Amount)), display.Name(u.Name))...)
	}
	s.table("Top endpoints by CPU time", s.service(display.ColumnService, columnRequests, columnCPURequest, display.ColumnEndpoint), r)
}

func (s *summary) names() {
	var r rows
	for _, u := range top(s.Top, s.Names) {
		seen := number{count: uint64(u.Count), seen: true}
		r.add(u.Amount, s.service(display.Key(u.Service), display.Digits(seen.count), seen.each(s.cpu(uint64(u.Amount)), uint64(u.Amount)), display.Name(u.Name))...)
	}
	s.table("Top span names by CPU time", s.service(display.ColumnService, columnSpansSeen, columnCPUSpan, display.ColumnName), r)
}

func (s *summary) spans() {
	shown := top(s.Top, s.Spans)
	// Leave out columns that would be empty: many services publish neither names nor endpoints.
	named := slices.ContainsFunc(shown, func(u span) bool { return u.Name != "" })
	attributes := slices.ContainsFunc(shown, func(u span) bool { return len(u.Attributes) > 0 })
	cells := func(service, name, id, trace, others string) []string {
		var c []string
		if named {
			c = append(c, name)
		}
		c = append(c, id, trace)
		if attributes {
			c = append(c, others)
		}
		return s.service(service, c...)
	}
	var r rows
	for _, u := range shown {
		id := s.layout.ID(hex.EncodeToString(u.SpanID[:]))
		if u.Unproven > 0 {
			id += ", unproven"
		}
		r.add(u.Amount, cells(display.Key(u.Service), display.Name(u.Name), id, s.layout.ID(hex.EncodeToString(u.TraceID[:])),
			display.Attributes(document.Attributes(u.Attributes)))...)
	}
	s.table("Top spans by CPU time", cells(display.ColumnService, display.ColumnName, display.ColumnSpanID, display.ColumnTraceID, display.ColumnAttributes), r)
}

func (s *summary) traces() {
	var r rows
	for _, u := range top(s.Top, s.Traces) {
		r.add(u.Amount, s.service(display.Key(u.Service), strconv.Itoa(u.Spans), s.layout.ID(hex.EncodeToString(u.TraceID[:])))...)
	}
	s.table("Top traces by CPU time", s.service(display.ColumnService, columnSpansSeen, display.ColumnTraceID), r)
}

func (s *summary) attributes() {
	var r rows
	for _, u := range top(s.Top, s.attributesAsked(s.Tables)) {
		r.add(u.Amount, display.Key(u.Key), display.Value(u.Value))
	}
	s.table("Top attributes of spans by CPU time", []string{columnKey, columnValue}, r)
}
