// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// Heads of columns.
const (
	columnWall     = "  WALL"
	columnRunning  = "RUNNING"
	columnMainWait = "MAIN WAIT"
)

// BothDocument is the output of record --wall --cpu --json.
type BothDocument struct {
	CPU  Document     `json:"cpu"`
	Wall WallDocument `json:"wall"`
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
	Ended      bool   `json:"ended"`
	// SpanNames holds the times of spans by name, and Functions the times of waits by function. Each has at
	// most --top elements, the largest times first.
	SpanNames []WallName     `json:"span_names"`
	Functions []WallFunction `json:"functions"`
}

type WallName struct {
	Service  string `json:"service"`
	Endpoint string `json:"endpoint"`
	Name     string `json:"name"`
	// WallNano is the sum of RunningNano, RunnableNano, UnknownNano and WaitsNano. ErrorNano is an upper
	// bound of its standard error.
	WallNano  int64 `json:"wall_nano"`
	ErrorNano int64 `json:"error_nano"`
	// CPUNano is the CPU time according to the CPU samples. It is left out without --cpu.
	CPUNano      *int64 `json:"cpu_nano,omitempty"`
	RunningNano  int64  `json:"running_nano"`
	RunnableNano int64  `json:"runnable_nano"`
	UnknownNano  int64  `json:"unknown_nano"`
	// WaitsNano is the waiting time by kind of wait.
	WaitsNano map[string]int64 `json:"waits_nano"`
	Snapshots uint64           `json:"snapshots"`
}

type WallFunction struct {
	Service    string `json:"service"`
	Function   string `json:"function"`
	WaitingFor string `json:"waiting_for"`
	WallNano   int64  `json:"wall_nano"`
}

// wallRow is the time of spans with one name. cpu is the CPU time according to the CPU samples.
type wallRow struct {
	wall.Row

	cpu time.Duration
}

// wallRows returns the rows of a recording. Rows without wall-clock time are last.
func (r *Recording) wallRows() (rows []wallRow) {
	type key struct{ service, endpoint, name string }
	samples := map[key]uint64{}
	var names []tally.SpanName[tally.Count]
	if r.CPU != nil {
		names = r.CPU.SpanNames
	}
	for _, n := range names {
		samples[key{n.Service, n.Endpoint, n.Name}] = uint64(n.Amount)
	}
	for _, row := range r.Wall.Rows {
		key := key{row.Service, row.Endpoint, row.Name}
		rows = append(rows, wallRow{row, r.cpu(samples[key])})
		delete(samples, key)
	}
	// Spans that were too short for any snapshot have only CPU time.
	for _, n := range names {
		if left, ok := samples[key{n.Service, n.Endpoint, n.Name}]; ok {
			rows = append(rows, wallRow{wall.Row{Service: n.Service, Endpoint: n.Endpoint, Name: n.Name}, r.cpu(left)})
		}
	}
	return rows
}

func (r *Recording) wallDocument(t *Tables) WallDocument {
	w := r.Wall
	d := WallDocument{
		StartTimeUnixNano: w.Start.UnixNano(), DurationNano: int64(w.End.Sub(w.Start)), Frequency: r.Snapshots, Snapshots: w.Snapshots, Skipped: w.Skipped,
		MeanDelayNano: int64(w.Late), MaxDelayNano: int64(w.Latest), Overloaded: w.Overloaded, Goroutines: w.Goroutines, Subsampled: w.Sampled, Torn: w.Torn, Lost: w.Lost, Ended: w.Ended,
		SpanNames: []WallName{}, Functions: []WallFunction{},
	}
	for _, row := range top(t.Top, r.wallRows()) {
		name := WallName{
			Service: row.Service, Endpoint: row.Endpoint, Name: row.Name, WallNano: int64(row.Total), ErrorNano: int64(row.Error()),
			RunningNano: int64(row.Running), RunnableNano: int64(row.Runnable), UnknownNano: int64(row.Unknown), WaitsNano: map[string]int64{}, Snapshots: row.Snapshots,
		}
		for kind, d := range row.Waits {
			name.WaitsNano[kind] = int64(d)
		}
		if r.CPU != nil {
			name.CPUNano = new(int64(row.cpu))
		}
		d.SpanNames = append(d.SpanNames, name)
	}
	for _, f := range top(t.Top, w.Functions) {
		d.Functions = append(d.Functions, WallFunction{f.Service, f.Function, f.Kind, int64(f.Time)})
	}
	return d
}

// wallText returns the text report of wall-clock time.
func (r *Recording) wallText(t *Tables) []byte {
	w := r.Wall
	var total wall.Times
	kinds := map[string]time.Duration{}
	for _, row := range w.Rows {
		total.Total, total.Running, total.Runnable, total.Unknown = total.Total+row.Total, total.Running+row.Running, total.Runnable+row.Runnable, total.Unknown+row.Unknown
		for kind, d := range row.Waits {
			kinds[kind] += d
		}
	}
	processes := ""
	if w.Processes > 1 {
		processes = fmt.Sprintf(" of %d processes", w.Processes)
	}
	out := fmt.Appendf(nil, "Took %d snapshots of goroutines in spans%s in %v: %s of wall-clock time, %s of it waiting\n",
		w.Snapshots, processes, w.End.Sub(w.Start).Round(time.Millisecond), display.Seconds(total.Total), shareOf(total.Waiting(), total.Total))
	out = fmt.Appendf(out, "Snapshots were late by %v on average, %v at most\n", w.Late.Round(10*time.Microsecond), w.Latest.Round(10*time.Microsecond))
	if w.Skipped > 0 {
		out = fmt.Appendf(out, "Skipped %d snapshots: the time between two snapshots was longer than intended\n", w.Skipped)
	}
	if w.Overloaded {
		out = append(out, "The machine is overloaded: times are less exact than they seem\n"...)
	}
	if w.Sampled {
		out = append(out, "There were too many goroutines to read all: each snapshot has a random part of them\n"...)
	}
	all := r.wallRows()
	if len(all) == 0 {
		return append(out, "No goroutine was in a span\n"...)
	}
	busy, busyText := columnRunning, "executing on a processor; it comes out too low: see otelctx man"
	waits, waitsText := columnMainWait, "what the spans waited for longest"
	if r.CPU != nil {
		busy, busyText = columnCPU, "CPU time inside the spans, according to the samples"
		waits, waitsText = display.ColumnWaitingFor, "what the spans waited for, and for how long"
	}
	several := slices.ContainsFunc(all, func(row wallRow) bool { return row.Service != all[0].Service })
	// withService inserts a cell before the last columns of a row.
	withService := func(service string, row []string, last ...string) []string {
		if several {
			row = append(row, service)
		}
		return append(row, last...)
	}
	rows := [][]string{withService(display.ColumnService, []string{columnWall, "±", busy, "RUNNABLE", "WAITING", waits}, display.ColumnName, display.ColumnEndpoint)}
	for _, row := range top(t.Top, all) {
		running, waited := shareOf(row.Running, row.Total), mainWait(row.Waits)
		if r.CPU != nil {
			running, waited = display.Seconds(row.cpu), allWaits(row.Waits)
		}
		rows = append(rows, withService(display.Key(row.Service), []string{
			"  " + display.Seconds(row.Total), display.Seconds(row.Error()), running, shareOf(row.Runnable, row.Total), shareOf(row.Waiting(), row.Total), waited,
		}, display.Name(row.Name), display.Name(row.Endpoint)))
	}
	out = appendWallTable(out, "Top span names by wall-clock time, without their children", rows)
	rows = [][]string{{columnWall, columnShare, display.ColumnWaitingFor}}
	for _, kind := range byTime(kinds) {
		rows = append(rows, []string{"  " + display.Seconds(kinds[kind]), shareOf(kinds[kind], total.Total), display.Escape(kind)})
	}
	out = appendWallTable(out, "What spans wait for", rows)
	rows = [][]string{withService(display.ColumnService, []string{columnWall, columnShare, display.ColumnWaitingFor}, "FUNCTION")}
	for _, f := range top(t.Top, w.Functions) {
		rows = append(rows, withService(display.Key(f.Service), []string{"  " + display.Seconds(f.Time), shareOf(f.Time, total.Total), display.Escape(f.Kind)}, functionText(f.Function)))
	}
	out = appendWallTable(out, "Top functions by time waited", rows)
	return append(append(out, '\n'), display.Table([][]string{
		{columnWall, "time inside the spans, without their children, all goroutines added up"},
		{"  ±", "standard error of WALL"},
		{"  " + busy, busyText},
		{"  RUNNABLE", "ready, but waiting for a processor"},
		{"  WAITING", "blocked, or in a system call"},
		{"  " + waits, waitsText},
		{"  " + columnShare, "of the wall-clock time of all spans"},
	})...)
}

func appendWallTable(out []byte, title string, rows [][]string) []byte {
	if len(rows) == 1 {
		return out
	}
	return append(fmt.Appendf(out, "\n%s\n", title), display.Table(rows)...)
}

func shareOf(part, whole time.Duration) string {
	return display.Share(uint64(max(part, 0)), uint64(max(whole, 0)))
}

// byTime returns the kinds of waits, the longest first.
func byTime(kinds map[string]time.Duration) []string {
	return slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(kinds[b], kinds[a]), strings.Compare(a, b))
	})
}

// allWaits returns the three longest kinds of wait with their times, or "-".
func allWaits(kinds map[string]time.Duration) string {
	const most = 3
	var all []string
	for _, kind := range byTime(kinds) {
		all = append(all, display.Escape(kind)+" "+display.Seconds(kinds[kind]))
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all[:min(len(all), most)], ", ")
}

// mainWait returns the longest kind of wait, or "-".
func mainWait(kinds map[string]time.Duration) string {
	if len(kinds) == 0 {
		return "-"
	}
	return display.Escape(byTime(kinds)[0])
}
