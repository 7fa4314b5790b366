// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// BothDocument is the output of record --cpu --json with --wall or --alloc.
type BothDocument struct {
	CPU   Document       `json:"cpu"`
	Alloc *AllocDocument `json:"alloc,omitempty"`
	Wall  *WallDocument  `json:"wall,omitempty"`
}

// WallDocument is the output of record --wall --json. Its schema is as stable as that of [document.Process].
type WallDocument struct {
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Frequency is the intended number of snapshots per second. Snapshots is the number of snapshots taken.
	Frequency int    `json:"frequency"`
	Snapshots uint64 `json:"snapshots"`
	// Skipped is the number of snapshots that were not taken, because the previous one took too long or the process
	// could not be read. The next snapshot counts for their time too.
	Skipped uint64 `json:"skipped"`
	// MeanDelayNano is the average delay of the snapshots, and MaxDelayNano the largest delay.
	MeanDelayNano int64 `json:"mean_delay_nano"`
	MaxDelayNano  int64 `json:"max_delay_nano"`
	// Overloaded reports whether the delays make the times less accurate than their standard errors suggest.
	Overloaded bool `json:"overloaded"`
	// Goroutines is the number of goroutines in all snapshots. Subsampled reports whether some snapshots contain
	// only a random part of the goroutines.
	Goroutines uint64 `json:"goroutines"`
	Subsampled bool   `json:"subsampled"`
	Torn       uint64 `json:"torn"`
	Lost       uint64 `json:"lost"`
	// Filtered counts the goroutines that --filter left out.
	Filtered uint64 `json:"filtered"`
	Ended    bool   `json:"ended"`
	// SpanNames holds the times of spans by name, and Functions the times of waits by function. Each has at
	// most --top elements, the largest times first.
	SpanNames []WallName     `json:"span_names"`
	Functions []WallFunction `json:"functions"`
	// The following lists are sorted like SpanNames. Endpoints is empty if no endpoint is known, and Attributes unless
	// --group-by asks for them.
	Endpoints  []WallUse `json:"endpoints"`
	Spans      []WallUse `json:"spans"`
	Traces     []WallUse `json:"traces"`
	Processes  []WallUse `json:"processes"`
	Attributes []WallUse `json:"attributes"`
}

// WallUse is the wall-clock time of an endpoint, a span, a trace, a process or an attribute. Fields that do not apply
// are left out.
type WallUse struct {
	PID      int    `json:"pid,omitempty"`
	Service  string `json:"service,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Name     string `json:"name,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
	SpanID   string `json:"span_id,omitempty"`
	Key      string `json:"key,omitempty"`
	Value    string `json:"value,omitempty"`
	// Count is the number of requests or spans that were seen.
	Count    int   `json:"count,omitempty"`
	WallNano int64 `json:"wall_nano"`
	// CPUNano is the CPU time according to the CPU samples. It is left out without --cpu.
	CPUNano *int64 `json:"cpu_nano,omitempty"`
	// WaitingNano is the part of WallNano spent blocked or in system calls.
	WaitingNano int64 `json:"waiting_nano"`

	RequestCount
}

// WallName is the wall-clock time of the spans with one name in the requests to one endpoint.
type WallName struct {
	Service  string `json:"service"`
	Endpoint string `json:"endpoint"`
	Name     string `json:"name"`
	// Spans counts the spans that were seen in snapshots.
	Spans int `json:"spans"`
	// WallNano is the sum of RunningNano, RunnableNano, UnknownNano and WaitsNano. ErrorNano is an upper
	// bound of its standard error.
	WallNano  int64 `json:"wall_nano"`
	ErrorNano int64 `json:"error_nano"`
	// CPUNano is the CPU time according to the CPU samples. It is left out without --cpu.
	CPUNano     *int64 `json:"cpu_nano,omitempty"`
	RunningNano int64  `json:"running_nano"`
	// QueuedNano is the part of RunningNano in which the goroutine's thread waited for a processor.
	QueuedNano   int64 `json:"queued_nano"`
	RunnableNano int64 `json:"runnable_nano"`
	UnknownNano  int64 `json:"unknown_nano"`
	// WaitsNano is the waiting time by kind of wait.
	WaitsNano map[string]int64 `json:"waits_nano"`
	Snapshots uint64           `json:"snapshots"`
}

// WallFunction is the time of waits of one kind in a function.
type WallFunction struct {
	Service    string `json:"service"`
	Function   string `json:"function"`
	WaitingFor string `json:"waiting_for"`
	WallNano   int64  `json:"wall_nano"`
}

// wallRow is a row of a table of wall-clock time. cpu is the CPU time according to the CPU samples.
type wallRow struct {
	service string
	wall.Times

	cpu time.Duration
	// count is the number of spans or requests that were seen, 0 if the row does not have it. requests is the true number
	// of requests, or nil.
	count    int
	requests *tally.Requests
	// cells are the last cells of the row. use is the row for --json.
	cells []string
	use   WallUse
}

// cpuOf returns the CPU time of rows by their keys.
func cpuOf[R any, K comparable](r *Recording, rows func(*recording.Result) []R, key func(*R) K, count func(*R) tally.Count) map[K]time.Duration {
	times := map[K]time.Duration{}
	if r.CPU == nil {
		return times
	}
	for _, row := range rows(r.CPU) {
		times[key(&row)] += r.cpu(uint64(count(&row)))
	}
	return times
}

type spanNameKey struct{ service, endpoint, name string }

// wallNames returns the rows of span names. Rows without wall-clock time are last.
func (r *Recording) wallNames() (rows []wallRow) {
	key := func(n *tally.SpanName[tally.Count]) spanNameKey { return spanNameKey{n.Service, n.Endpoint, n.Name} }
	cpu := cpuOf(r, func(c *recording.Result) []tally.SpanName[tally.Count] { return c.SpanNames }, key,
		func(n *tally.SpanName[tally.Count]) tally.Count { return n.Amount })
	add := func(k spanNameKey, t wall.Times, count int) {
		rows = append(rows, wallRow{
			service: k.service, Times: t, cpu: cpu[k], count: count, cells: []string{display.Name(k.name), display.Name(k.endpoint)},
			use: WallUse{Service: k.service, Name: k.name, Endpoint: k.endpoint},
		})
		delete(cpu, k)
	}
	for _, n := range r.Wall.SpanNames {
		add(spanNameKey{n.Service, n.Endpoint, n.Name}, n.Amount, n.Count)
	}
	if r.CPU != nil {
		for _, n := range r.CPU.SpanNames {
			if _, left := cpu[key(&n)]; left { // Spans that were too short for any snapshot have only CPU time.
				add(key(&n), wall.Times{}, 0)
			}
		}
	}
	return rows
}

type nameKey struct{ service, name string }

func (r *Recording) wallEndpoints() (rows []wallRow) {
	cpu := cpuOf(r, func(c *recording.Result) []name { return c.Endpoints },
		func(n *name) nameKey { return nameKey{n.Service, n.Name} }, func(n *name) tally.Count { return n.Amount })
	for _, n := range r.Wall.Endpoints {
		rows = append(rows, wallRow{
			service: n.Service, Times: n.Amount, cpu: cpu[nameKey{n.Service, n.Name}], count: n.Count, requests: n.Requests, cells: []string{display.Name(n.Name)},
			use: WallUse{Service: n.Service, Endpoint: n.Name, Count: n.Count, RequestCount: requestCount(n.Requests)},
		})
	}
	return rows
}

type idKey struct {
	service string
	trace   [16]byte
	span    [8]byte
}

func (r *Recording) wallSpans(l display.Layout) (rows []wallRow) {
	cpu := cpuOf(r, func(c *recording.Result) []span { return c.Spans },
		func(u *span) idKey { return idKey{u.Service, u.TraceID, u.SpanID} }, func(u *span) tally.Count { return u.Amount })
	for _, u := range r.Wall.Spans {
		id, trace := hex.EncodeToString(u.SpanID[:]), hex.EncodeToString(u.TraceID[:])
		rows = append(rows, wallRow{
			service: u.Service, Times: u.Amount, cpu: cpu[idKey{u.Service, u.TraceID, u.SpanID}],
			cells: []string{display.Name(u.Name), l.ID(id), l.ID(trace), display.Attributes(document.Attributes(u.Attributes))},
			use:   WallUse{Service: u.Service, Name: u.Name, SpanID: id, TraceID: trace},
		})
	}
	return rows
}

func (r *Recording) wallTraces(l display.Layout) (rows []wallRow) {
	cpu := cpuOf(r, func(c *recording.Result) []tally.Trace[tally.Count] { return c.Traces },
		func(u *tally.Trace[tally.Count]) idKey { return idKey{service: u.Service, trace: u.TraceID} },
		func(u *tally.Trace[tally.Count]) tally.Count { return u.Amount })
	for _, u := range r.Wall.Traces {
		trace := hex.EncodeToString(u.TraceID[:])
		rows = append(rows, wallRow{
			service: u.Service, Times: u.Amount, cpu: cpu[idKey{service: u.Service, trace: u.TraceID}], count: u.Spans, cells: []string{l.ID(trace)},
			use: WallUse{Service: u.Service, TraceID: trace, Count: u.Spans},
		})
	}
	return rows
}

func (r *Recording) wallProcesses() (rows []wallRow) {
	cpu := cpuOf(r, func(c *recording.Result) []process { return c.Processes },
		func(p *process) int { return p.PID }, func(p *process) tally.Count { return p.Attributed })
	for _, p := range r.Wall.Processes {
		rows = append(rows, wallRow{
			service: p.Service, Times: p.Attributed, cpu: cpu[p.PID], cells: []string{strconv.Itoa(p.PID)},
			use: WallUse{Service: p.Service, PID: p.PID},
		})
	}
	return rows
}

// wallServices adds up the processes of each service.
func (r *Recording) wallServices() (rows []wallRow) {
	processes := map[string]int{}
	for _, p := range r.wallProcesses() {
		i := slices.IndexFunc(rows, func(row wallRow) bool { return row.service == p.service })
		if processes[p.service]++; i < 0 {
			rows = append(rows, wallRow{service: p.service, Times: wall.Times{}.Add(p.Times), cpu: p.cpu})
			continue
		}
		rows[i].Times, rows[i].cpu = rows[i].Add(p.Times), rows[i].cpu+p.cpu
	}
	for i := range rows {
		rows[i].cells = []string{strconv.Itoa(processes[rows[i].service]), display.Key(rows[i].service)}
	}
	slices.SortStableFunc(rows, func(a, b wallRow) int { return tally.Heavier(a.Times, b.Times) })
	return rows
}

func (r *Recording) wallAttributes(t *Tables) (rows []wallRow) {
	cpu := cpuOf(r, func(c *recording.Result) []attribute { return c.Attributes },
		func(a *attribute) nameKey { return nameKey{a.Key, a.Value} }, func(a *attribute) tally.Count { return a.Amount })
	for _, a := range r.Wall.Attributes {
		if t.Group.has(a.Key) {
			rows = append(rows, wallRow{
				Times: a.Amount, cpu: cpu[nameKey{a.Key, a.Value}], cells: []string{display.Key(a.Key), display.Value(a.Value)},
				use: WallUse{Key: a.Key, Value: a.Value},
			})
		}
	}
	return rows
}

func (r *Recording) wallDocument(t *Tables) WallDocument {
	w := r.Wall
	d := WallDocument{
		StartTimeUnixNano: w.Start.UnixNano(), DurationNano: int64(w.End.Sub(w.Start)), Frequency: r.Snapshots, Snapshots: w.Snapshots,
		MeanDelayNano: int64(w.Late), MaxDelayNano: int64(w.Latest), Overloaded: w.Overloaded, Goroutines: w.Goroutines, Subsampled: w.Sampled, Torn: w.Torn, Lost: w.Lost,
		Filtered: w.Filtered, Skipped: w.Skipped, Ended: w.Ended,
		SpanNames: []WallName{}, Functions: []WallFunction{},
	}
	for _, row := range top(t.Top, r.wallNames()) {
		name := WallName{
			Service: row.service, Endpoint: row.use.Endpoint, Name: row.use.Name, Spans: row.count, WallNano: int64(row.Total), ErrorNano: int64(row.Error()),
			RunningNano: int64(row.Running), QueuedNano: int64(row.Queued), RunnableNano: int64(row.Runnable), UnknownNano: int64(row.Unknown),
			WaitsNano: map[string]int64{}, Snapshots: row.Snapshots,
		}
		for _, w := range row.Waits {
			name.WaitsNano[w.Kind] = int64(w.Time)
		}
		if r.CPU != nil {
			name.CPUNano = new(int64(row.cpu))
		}
		d.SpanNames = append(d.SpanNames, name)
	}
	for _, f := range top(t.Top, w.Waits) {
		d.Functions = append(d.Functions, WallFunction{f.Service, f.Function, f.Kind, int64(f.Time)})
	}
	uses := func(rows []wallRow) []WallUse {
		all := []WallUse{}
		for _, row := range top(t.Top, rows) {
			row.use.WallNano, row.use.WaitingNano = int64(row.Total), int64(row.Waiting())
			if r.CPU != nil {
				row.use.CPUNano = new(int64(row.cpu))
			}
			all = append(all, row.use)
		}
		return all
	}
	d.Endpoints, d.Spans, d.Traces = uses(r.wallEndpoints()), uses(r.wallSpans(display.Layout{})), uses(r.wallTraces(display.Layout{}))
	d.Processes, d.Attributes = uses(r.wallProcesses()), uses(r.wallAttributes(t))
	return d
}

// wallReport is the text report of wall-clock time.
type wallReport struct {
	*Recording
	*Tables

	layout  display.Layout
	out     []byte
	several bool
	// columns holds the columns of the tables printed so far.
	columns map[string]bool
	total   wall.Times
}

// wallTables lists the tables of wall-clock time for each kind of group. "" is the default.
var wallTables = map[string][]func(*wallReport){
	"":             {(*wallReport).names, (*wallReport).kinds, (*wallReport).functions},
	GroupSpan:      {(*wallReport).names, (*wallReport).spans},
	GroupEndpoint:  {(*wallReport).endpoints},
	GroupTrace:     {(*wallReport).traces},
	GroupService:   {(*wallReport).services},
	GroupFunction:  {(*wallReport).functions},
	GroupAttribute: {(*wallReport).attributes},
}

func (r *Recording) newWallReport(l display.Layout, t *Tables) *wallReport {
	s := &wallReport{Recording: r, Tables: t, layout: l, columns: map[string]bool{}}
	for _, n := range r.Wall.SpanNames {
		s.total = s.total.Add(n.Amount)
	}
	return s
}

// wallText returns the text report of wall-clock time.
func (r *Recording) wallText(l display.Layout, t *Tables) []byte {
	w := r.Wall
	s := r.newWallReport(l, t)
	processes := ""
	if w.Recorded > 1 {
		processes = fmt.Sprintf(" of %d processes", w.Recorded)
	}
	s.linef("Took %d snapshots of goroutines in spans%s in %v: %s of wall-clock time, %s of it waiting",
		w.Snapshots, processes, w.End.Sub(w.Start).Round(time.Millisecond), display.Seconds(s.total.Total), shareOf(s.total.Waiting(), s.total.Total))
	s.linef("Snapshots were late by %v on average, %v at most", w.Late.Round(10*time.Microsecond), w.Latest.Round(10*time.Microsecond))
	if w.Skipped > 0 {
		s.linef("Skipped %d snapshots: the time between two snapshots was longer than intended", w.Skipped)
	}
	if w.Overloaded {
		s.linef("The machine is overloaded: times are less exact than they seem")
	}
	if w.Sampled {
		s.linef("There were too many goroutines to read all: each snapshot has a random part of them")
	}
	names := r.wallNames()
	if len(names) == 0 {
		return append(s.out, "No goroutine was in a span\n"...)
	}
	s.several = slices.ContainsFunc(names, func(row wallRow) bool { return row.service != names[0].service })
	header := len(s.out)
	for _, show := range wallTables[t.Group.Kind] {
		show(s)
	}
	if len(s.out) == header {
		return fmt.Appendf(s.out, "\nNothing to group by %s\n", display.Key(t.Group.String()))
	}
	return s.explain()
}

// linef appends a line, broken if it does not fit.
func (s *wallReport) linef(format string, args ...any) {
	s.out = append(s.out, strings.Join(s.layout.Hang("", fmt.Sprintf(format, args...)), "\n")+"\n"...)
}

// explain explains the columns of all tables printed so far.
func (s *wallReport) explain() []byte {
	busy, busyText := columnRunning, "executing on a processor; it comes out too low: see otelctx man"
	waits, waitsText := columnMainWait, "what the spans waited for longest"
	if s.CPU != nil {
		busy, busyText = columnCPU, "CPU time inside the spans, according to the samples"
		waits, waitsText = display.ColumnWaitingFor, "what the spans waited for, and for how long"
	}
	terms := [][2]string{{columnWall, "time inside the spans, without their children, all goroutines added up"}}
	for _, c := range []struct{ column, text string }{
		{columnError, "standard error of WALL"},
		{busy, busyText},
		{columnCPUWait, "ready to execute, but its thread waits for a processor, also while a control group is throttled"},
		{columnRunnable, "ready, but waiting for a processor of the Go scheduler (GOMAXPROCS)"},
		{columnWaiting, "blocked, or in a system call"},
		{waits, waitsText},
		{columnSpansSeen, "spans that were in a snapshot; short ones may not be"},
		{columnWallSpan, "average time of one, without its children; ≤ marks an upper bound"},
		{columnRequests, requestsText},
		{columnWallRequest, "average time of one, all its goroutines added up; ≤ marks an upper bound"},
		{columnShare, "of the wall-clock time of all spans"},
	} {
		if s.columns[c.column] {
			terms = append(terms, [2]string{c.column, c.text})
		}
	}
	return append(append(s.out, '\n'), s.layout.Explain(terms)...)
}

// table appends a table of rows, whose last columns have the given heads. each is the head of the average of count, or "".
func (s *wallReport) table(title string, rows []wallRow, counted, each string, heads ...string) {
	if len(rows) == 0 {
		return
	}
	busy, waits := columnRunning, columnMainWait
	if s.CPU != nil {
		busy, waits = columnCPU, display.ColumnWaitingFor
	}
	head := []string{columnError, busy, columnCPUWait, columnRunnable, columnWaiting, waits}
	withService := s.several && rows[0].service != "" && heads[len(heads)-1] != display.ColumnService
	if withService {
		head = append(head, display.ColumnService)
	}
	if counted != "" {
		head = append(head, counted)
	}
	if each != "" {
		head = append(head, each)
	}
	head = append(head, heads...)
	var lines [][]string
	for _, row := range top(s.Top, rows) {
		running, waited := shareOf(row.Running-row.Queued, row.Total), mainWait(row.Waits)
		if s.CPU != nil {
			running, waited = display.Seconds(row.cpu), allWaits(row.Waits)
		}
		line := []string{
			"  " + display.Seconds(row.Total), display.Seconds(row.Error()), running, shareOf(row.Queued, row.Total), shareOf(row.Runnable, row.Total),
			shareOf(row.Waiting(), row.Total), waited,
		}
		if withService {
			line = append(line, display.Key(row.service))
		}
		if counted != "" {
			line = append(line, row.counted(counted))
		}
		if each != "" {
			line = append(line, row.number(counted).each(row.Total, row.Seen))
		}
		lines = append(lines, append(line, row.cells...))
	}
	s.write(title, head, lines, s.heat(func(row int) time.Duration { return rows[row].Total }))
}

// write appends a title and a table. The first column has the time in each row.
func (s *wallReport) write(title string, heads []string, lines [][]string, style func(row int) display.Style) {
	columns := append([]display.Column{{Head: "  " + columnWall, Style: style}}, columnsOf(heads)...)
	s.out = append(fmt.Appendf(s.out, "\n%s\n", s.layout.Styled(display.Bold, title)), s.layout.Table(columns, lines)...)
	for _, head := range s.layout.Heads(columns, lines) {
		s.columns[head] = true
	}
}

// heat returns the style of the first number in each row.
func (s *wallReport) heat(times func(row int) time.Duration) func(row int) display.Style {
	return func(row int) display.Style { return heat(uint64(max(times(row), 0)), uint64(max(s.total.Total, 0))) }
}

// number returns the number of spans or requests. head is the head of its column.
func (r *wallRow) number(head string) number {
	if head == columnRequests {
		return requestsOf(r.requests, r.count)
	}
	return number{count: uint64(r.count), seen: true}
}

// counted returns the cell of the number of spans or requests.
func (r *wallRow) counted(head string) string {
	if head == columnRequests {
		return r.number(head).String()
	}
	return display.Digits(uint64(r.count))
}

func (s *wallReport) names() {
	s.table("Top span names by wall-clock time, without their children", s.wallNames(), columnSpansSeen, columnWallSpan, display.ColumnName, display.ColumnEndpoint)
}

func (s *wallReport) endpoints() {
	s.table("Top endpoints by wall-clock time", s.wallEndpoints(), columnRequests, columnWallRequest, display.ColumnEndpoint)
}

func (s *wallReport) spans() {
	s.table("Top spans by wall-clock time", s.wallSpans(s.layout), "", "", display.ColumnName, display.ColumnSpanID, display.ColumnTraceID, display.ColumnAttributes)
}

func (s *wallReport) traces() {
	s.table("Top traces by wall-clock time", s.wallTraces(s.layout), columnSpansSeen, "", display.ColumnTraceID)
}

func (s *wallReport) services() {
	s.table("Top services by wall-clock time", s.wallServices(), "", "", columnProcesses, display.ColumnService)
}

func (s *wallReport) attributes() {
	s.table("Top attributes of spans by wall-clock time", s.wallAttributes(s.Tables), "", "", columnKey, columnValue)
}

// kinds appends the table of kinds of wait.
func (s *wallReport) kinds() {
	var lines [][]string
	var times []time.Duration
	for _, w := range byTime(s.total.Waits) {
		times = append(times, w.Time)
		lines = append(lines, []string{"  " + display.Seconds(w.Time), shareOf(w.Time, s.total.Total), display.Escape(w.Kind)})
	}
	s.lines("What spans wait for", times, []string{columnShare, display.ColumnWaitingFor}, lines)
}

// functions appends the table of functions that wait.
func (s *wallReport) functions() {
	head := []string{columnShare, display.ColumnWaitingFor}
	if s.several {
		head = append(head, display.ColumnService)
	}
	var lines [][]string
	var times []time.Duration
	for _, f := range top(s.Top, s.Wall.Waits) {
		times = append(times, f.Time)
		line := []string{"  " + display.Seconds(f.Time), shareOf(f.Time, s.total.Total), display.Escape(f.Kind)}
		if s.several {
			line = append(line, display.Key(f.Service))
		}
		lines = append(lines, append(line, functionText(f.Function)))
	}
	s.lines("Top functions by time waited", times, append(head, columnFunction), lines)
}

// lines appends a table, or nothing if it has no rows. times has the time of each row.
func (s *wallReport) lines(title string, times []time.Duration, heads []string, lines [][]string) {
	if len(lines) > 0 {
		s.write(title, heads, lines, s.heat(func(row int) time.Duration { return times[row] }))
	}
}

func shareOf(part, whole time.Duration) string {
	return display.Share(uint64(max(part, 0)), uint64(max(whole, 0)))
}

// byTime returns the kinds of waits, the longest first.
func byTime(waits []wall.Wait) []wall.Wait {
	return slices.SortedFunc(slices.Values(waits), func(a, b wall.Wait) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), strings.Compare(a.Kind, b.Kind))
	})
}

// allWaits returns the three longest kinds of wait with their times, or "-".
func allWaits(waits []wall.Wait) string {
	const most = 3
	var all []string
	for _, w := range byTime(waits) {
		all = append(all, display.Escape(w.Kind)+" "+display.Seconds(w.Time))
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all[:min(len(all), most)], ", ")
}

// mainWait returns the longest kind of wait, or "-".
func mainWait(waits []wall.Wait) string {
	if len(waits) == 0 {
		return "-"
	}
	return display.Escape(byTime(waits)[0].Kind)
}
