// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/version"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// validateWall rejects options that --wall does not support.
func (c *recordCommand) validateWall() error {
	const most = 1000 // At a higher frequency, a snapshot takes longer than the interval.
	switch {
	case c.Command != nil:
		return errors.New("--wall cannot start a command: start it first, and select it by --name or its process id")
	case c.Snapshots > most:
		return fmt.Errorf("--wall: --freq %d is more than %d: a snapshot would take longer than the time until the next", c.Snapshots, most)
	case c.Repeat, c.NoSymbols, c.IDs, c.GroupBy != "", len(c.Filters) > 0:
		return errors.New("--wall cannot be used with --repeat, --no-symbols, --id-attributes, --group-by or --filter")
	case !c.CPU && (c.Kernel || c.Carrier != ""):
		return errors.New("--wall cannot be used with --kernel or --carrier, unless --cpu records CPU time as well")
	}
	return nil
}

// kinds returns the kinds of time that the profile contains.
func (c *recordCommand) kinds() []string {
	switch {
	case c.Wall && c.CPU:
		return []string{profile.TypeCPU, profile.TypeWall}
	case c.Wall:
		return []string{profile.TypeWall}
	default:
		return []string{profile.TypeCPU}
	}
}

// recordWall records wall-clock time, and with --cpu CPU time at the same time.
func (c *recordCommand) recordWall(s terminal.Streams) error {
	const less = 400 // Snapshots leave much garbage. Collecting it less often costs little memory.
	debug.SetGCPercent(less)
	ctx, release := terminal.UntilInterrupted()
	defer release()
	out, err := c.openOutputs(ctx, s)
	if err != nil {
		return err
	}
	config := wall.Config{PIDs: c.PIDs, Frequency: c.Snapshots, Duration: c.duration(), Version: version.Module()}
	if selection := c.selection(); len(c.PIDs) == 0 {
		config.Select = selection.SelectsPublisher
	}
	if c.Output != "" || c.Endpoint != nil {
		config.Part = out.add
	}
	if terminal.IsTerminal(s.Stderr) && !c.CPU {
		bar := newProgress(s.Stderr, config.Duration)
		defer bar.done()
		config.Progress = bar.show
	}
	recorder, err := wall.Open(ctx, config)
	var (
		cpu    *recording.Result
		result *wall.Result
	)
	switch {
	case err != nil:
	case c.CPU:
		cpu, result, err = c.recordBoth(ctx, s, out, recorder)
	default:
		result, err = recorder.Record(ctx)
	}
	if err != nil {
		out.discard()
		return err
	}
	written, err := out.close()
	delivery := out.delivery()
	err = errors.Join(err, deliveryError(delivery))
	if cpu != nil {
		c.complain(s, cpu)
	} else if result.Ended {
		s.Complainf("%v has ended", &c.recordTargets)
	}
	for _, m := range result.Missing {
		s.Complainf("incomplete: %v", m)
	}
	err = errors.Join(err, c.showWall(s, cpu, result, delivery))
	c.showWritten(s, written)
	if result.Processes == 0 {
		err = errors.Join(err, c.noSpans())
	}
	return err
}

// noSpans returns the error of a recording without processes.
func (c *recordCommand) noSpans() error {
	reason := "no process publishes its live spans, or can be read"
	if c.selecting() {
		reason = fmt.Sprintf("there were no %v that publish their live spans and can be read", &c.recordTargets)
	}
	return &noSamplesError{reason, "Run otelctx list to see the processes that publish. otelctx inspect PID shows why the spans of one cannot be read."}
}

// recordBoth records CPU time with the sampler and wall-clock time with recorder. Both recordings begin when
// the sampler is ready. recordBoth closes the recorder.
func (c *recordCommand) recordBoth(ctx context.Context, s terminal.Streams, out *outputs, recorder *wall.Recorder) (*recording.Result, *wall.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		result   *wall.Result
		failed   error
		wallDone sync.WaitGroup
	)
	cpu, err := c.run(ctx, s, out, c.selection(), func() error {
		wallDone.Go(func() {
			if result, failed = recorder.Record(ctx); failed != nil {
				cancel()
			}
		})
		return nil
	})
	if err != nil {
		cancel()
	}
	wallDone.Wait()
	recorder.Close(ctx) // Needed if the sampler failed to start, because Record was not called.
	if errors.Is(err, sampler.ErrNotPermitted) {
		err = fmt.Errorf("%w; without --cpu, --wall needs only permission to read the processes", err)
	}
	return cpu, result, errors.Join(err, failed)
}

// showWall prints the result of a recording. cpu is nil if only wall-clock time was recorded.
func (c *recordCommand) showWall(s terminal.Streams, cpu *recording.Result, result *wall.Result, d export.Delivery) error {
	w := c.reportTo(s)
	switch {
	case c.JSON && cpu == nil:
		return display.WriteJSON(w, c.wallDocument(result, nil))
	case c.JSON:
		return display.WriteJSON(w, bothDocument{c.deliveredDocument(cpu, d), c.wallDocument(result, cpu)})
	case cpu != nil:
		if err := c.writeText(w, cpu); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(w)
	}
	_, err := w.Write(c.wallText(result, cpu))
	return err
}

// Heads of columns.
const (
	columnWall     = "  WALL"
	columnRunning  = "RUNNING"
	columnMainWait = "MAIN WAIT"
)

// bothDocument is the output of record --wall --cpu --json.
type bothDocument struct {
	CPU  recordDocument `json:"cpu"`
	Wall wallDocument   `json:"wall"`
}

// wallDocument is the output of record --wall --json. Its schema is as stable as that of [document].
type wallDocument struct {
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Frequency is the intended number of snapshots per second. Snapshots is the number of snapshots taken.
	Frequency int    `json:"frequency"`
	Snapshots uint64 `json:"snapshots"`
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
	SpanNames []wallNameDocument     `json:"span_names"`
	Functions []wallFunctionDocument `json:"functions"`
}

type wallNameDocument struct {
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

type wallFunctionDocument struct {
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
func (c *recordCommand) wallRows(r *wall.Result, cpu *recording.Result) (rows []wallRow) {
	samples := map[recording.SpanName]uint64{}
	if cpu != nil {
		samples = maps.Clone(cpu.SpanNames)
	}
	for _, row := range r.Rows {
		key := recording.SpanName{Service: row.Service, Endpoint: row.Endpoint, Name: row.Name}
		rows = append(rows, wallRow{row, c.cpu(samples[key])})
		delete(samples, key)
	}
	// Spans that were too short for any snapshot have only CPU time.
	for _, key := range slices.SortedFunc(maps.Keys(samples), func(a, b recording.SpanName) int {
		return cmp.Or(cmp.Compare(samples[b], samples[a]), strings.Compare(a.Service, b.Service), strings.Compare(a.Endpoint, b.Endpoint), strings.Compare(a.Name, b.Name))
	}) {
		rows = append(rows, wallRow{wall.Row{Service: key.Service, Endpoint: key.Endpoint, Name: key.Name}, c.cpu(samples[key])})
	}
	return rows
}

// wallDocument returns the document of a recording. cpu is nil if only wall-clock time was recorded.
func (c *recordCommand) wallDocument(r *wall.Result, cpu *recording.Result) wallDocument {
	d := wallDocument{
		StartTimeUnixNano: r.Start.UnixNano(), DurationNano: int64(r.End.Sub(r.Start)), Frequency: c.Snapshots, Snapshots: r.Snapshots,
		MeanDelayNano: int64(r.Late), MaxDelayNano: int64(r.Latest), Overloaded: r.Overloaded, Goroutines: r.Goroutines, Subsampled: r.Sampled, Torn: r.Torn, Lost: r.Lost, Ended: r.Ended,
		SpanNames: []wallNameDocument{}, Functions: []wallFunctionDocument{},
	}
	for _, row := range top(c, c.wallRows(r, cpu)) {
		name := wallNameDocument{
			Service: row.Service, Endpoint: row.Endpoint, Name: row.Name, WallNano: int64(row.Total), ErrorNano: int64(row.Error()),
			RunningNano: int64(row.Running), RunnableNano: int64(row.Runnable), UnknownNano: int64(row.Unknown), WaitsNano: map[string]int64{}, Snapshots: row.Snapshots,
		}
		for kind, t := range row.Waits {
			name.WaitsNano[kind] = int64(t)
		}
		if cpu != nil {
			name.CPUNano = new(int64(row.cpu))
		}
		d.SpanNames = append(d.SpanNames, name)
	}
	for _, f := range top(c, r.Functions) {
		d.Functions = append(d.Functions, wallFunctionDocument{f.Service, f.Function, f.Kind, int64(f.Time)})
	}
	return d
}

// wallText returns the report as text. cpu is nil if only wall-clock time was recorded.
func (c *recordCommand) wallText(r *wall.Result, cpu *recording.Result) []byte {
	var total wall.Times
	kinds := map[string]time.Duration{}
	for _, row := range r.Rows {
		total.Total, total.Running, total.Runnable, total.Unknown = total.Total+row.Total, total.Running+row.Running, total.Runnable+row.Runnable, total.Unknown+row.Unknown
		for kind, t := range row.Waits {
			kinds[kind] += t
		}
	}
	processes := ""
	if r.Processes > 1 {
		processes = fmt.Sprintf(" of %d processes", r.Processes)
	}
	out := fmt.Appendf(nil, "Took %d snapshots of goroutines in spans%s in %v: %s of wall-clock time, %s of it waiting\n",
		r.Snapshots, processes, r.End.Sub(r.Start).Round(time.Millisecond), display.Seconds(total.Total), shareOf(total.Waiting(), total.Total))
	out = fmt.Appendf(out, "Snapshots were late by %v on average, %v at most\n", r.Late.Round(10*time.Microsecond), r.Latest.Round(10*time.Microsecond))
	if r.Overloaded {
		out = append(out, "The machine is overloaded: times are less exact than they seem\n"...)
	}
	if r.Sampled {
		out = append(out, "There were too many goroutines to read all: each snapshot has a random part of them\n"...)
	}
	all := c.wallRows(r, cpu)
	if len(all) == 0 {
		return append(out, "No goroutine was in a span\n"...)
	}
	busy, busyText := columnRunning, "executing on a processor; it comes out too low: see otelctx man"
	waits, waitsText := columnMainWait, "what the spans waited for longest"
	if cpu != nil {
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
	for _, row := range top(c, all) {
		running, waited := shareOf(row.Running, row.Total), mainWait(row.Waits)
		if cpu != nil {
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
	for _, f := range top(c, r.Functions) {
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
