// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// validateWall rejects options that --wall does not support.
func (c *recordCommand) validateWall() error {
	const most = 1000 // Above that snapshots take longer than the time between them.
	switch {
	case len(c.PIDs) == 0:
		return errors.New("--wall needs the ids of the processes to record")
	case c.Frequency > most:
		return fmt.Errorf("--wall: --freq %d is more than %d: a snapshot would take longer than the time until the next", c.Frequency, most)
	case c.Repeat, c.Kernel, c.NoSymbols, c.IDs, c.Carrier != "", c.GroupBy != "", len(c.Filters) > 0:
		return errors.New("--wall cannot be used with --repeat, --kernel, --no-symbols, --id-attributes, --carrier, --group-by or --filter")
	}
	return nil
}

// recordWall records wall-clock time.
func (c *recordCommand) recordWall(s streams) error {
	const less = 400 // Each snapshot leaves garbage, and little else is in memory.
	debug.SetGCPercent(less)
	ctx, release := untilInterrupted()
	defer release()
	out, err := c.openOutputs(ctx, s)
	if err != nil {
		return err
	}
	config := wall.Config{PIDs: c.PIDs, Frequency: c.Frequency, Duration: c.duration(), Version: moduleVersion()}
	if c.Output != "" || c.Endpoint != nil {
		config.Part = out.add
	}
	if isTerminal(s.stderr) {
		bar := newProgress(s.stderr, config.Duration)
		defer bar.done()
		config.Progress = bar.show
	}
	result, err := wall.Record(ctx, config)
	if err != nil {
		out.discard()
		return err
	}
	written, err := out.close()
	err = errors.Join(err, deliveryError(out.delivery()))
	if result.Ended {
		s.complainf("%v has ended", &c.recordTargets)
	}
	for _, m := range result.Missing {
		s.complainf("not known: %v", m)
	}
	if c.JSON {
		err = errors.Join(err, writeJSON(c.reportTo(s), c.wallDocument(result)))
	} else {
		_, errWrite := c.reportTo(s).Write(c.wallText(result))
		err = errors.Join(err, errWrite)
	}
	if written != "" && written != "-" && !c.JSON {
		_, _ = fmt.Fprint(c.reportTo(s), writtenText(written, c.Format))
	}
	return err
}

// wallDocument is the output of record --wall --json. Its schema is as stable as that of [document].
type wallDocument struct {
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	DurationNano      int64 `json:"duration_nano"`
	// Frequency is the intended number of snapshots per second, Snapshots the number of all.
	// MeanDelayNano is their average delay, MaxDelayNano the largest.
	Frequency int    `json:"frequency"`
	Snapshots uint64 `json:"snapshots"`
	// Overloaded reports that the delay makes times less exact than their errors suggest.
	MeanDelayNano int64 `json:"mean_delay_nano"`
	MaxDelayNano  int64 `json:"max_delay_nano"`
	Overloaded    bool  `json:"overloaded"`
	// Goroutines is the number of goroutines in all snapshots. Subsampled reports that only a random part
	// was read for each snapshot.
	Goroutines uint64 `json:"goroutines"`
	Subsampled bool   `json:"subsampled"`
	Torn       uint64 `json:"torn"`
	Lost       uint64 `json:"lost"`
	Ended      bool   `json:"ended"`
	// SpanNames and Functions are the times of spans by name and of waits by function: at most --top of
	// each, the most first.
	SpanNames []wallNameDocument     `json:"span_names"`
	Functions []wallFunctionDocument `json:"functions"`
}

type wallNameDocument struct {
	Service  string `json:"service"`
	Endpoint string `json:"endpoint"`
	Name     string `json:"name"`
	// WallNano is the sum of the times that follow, and ErrorNano an upper bound of its standard error.
	WallNano     int64 `json:"wall_nano"`
	ErrorNano    int64 `json:"error_nano"`
	RunningNano  int64 `json:"running_nano"`
	RunnableNano int64 `json:"runnable_nano"`
	UnknownNano  int64 `json:"unknown_nano"`
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

func (c *recordCommand) wallDocument(r *wall.Result) wallDocument {
	d := wallDocument{
		StartTimeUnixNano: r.Start.UnixNano(), DurationNano: int64(r.End.Sub(r.Start)), Frequency: c.Frequency, Snapshots: r.Looks,
		MeanDelayNano: int64(r.Late), MaxDelayNano: int64(r.Latest), Overloaded: r.Overloaded, Goroutines: r.Goroutines, Subsampled: r.Sampled, Torn: r.Torn, Lost: r.Lost, Ended: r.Ended,
		SpanNames: []wallNameDocument{}, Functions: []wallFunctionDocument{},
	}
	for _, row := range top(c, r.Rows) {
		name := wallNameDocument{
			Service: row.Service, Endpoint: row.Endpoint, Name: row.Name, WallNano: int64(row.Total), ErrorNano: int64(row.Error()),
			RunningNano: int64(row.Running), RunnableNano: int64(row.Runnable), UnknownNano: int64(row.Unknown), WaitsNano: map[string]int64{}, Snapshots: row.Looks,
		}
		for kind, t := range row.Waits {
			name.WaitsNano[kind] = int64(t)
		}
		d.SpanNames = append(d.SpanNames, name)
	}
	for _, f := range top(c, r.Functions) {
		d.Functions = append(d.Functions, wallFunctionDocument{f.Service, f.Function, f.Kind, int64(f.Time)})
	}
	return d
}

// wallText returns the report as text.
func (c *recordCommand) wallText(r *wall.Result) []byte {
	var total wall.Times
	kinds := map[string]time.Duration{}
	for _, row := range r.Rows {
		total.Total, total.Running, total.Runnable, total.Unknown = total.Total+row.Total, total.Running+row.Running, total.Runnable+row.Runnable, total.Unknown+row.Unknown
		for kind, t := range row.Waits {
			kinds[kind] += t
		}
	}
	out := fmt.Appendf(nil, "Took %d snapshots of goroutines in spans in %v: %s of wall-clock time, %s of it waiting\n",
		r.Looks, r.End.Sub(r.Start).Round(time.Millisecond), cpuText(total.Total), shareOf(total.Waiting(), total.Total))
	out = fmt.Appendf(out, "Snapshots were late by %v on average, %v at most\n", r.Late.Round(10*time.Microsecond), r.Latest.Round(10*time.Microsecond))
	if r.Overloaded {
		out = append(out, "The machine is overloaded: times are less exact than they seem\n"...)
	}
	if r.Sampled {
		out = append(out, "There were too many goroutines to read all: each snapshot has a random part of them\n"...)
	}
	if len(r.Rows) == 0 {
		return append(out, "No goroutine was in a span\n"...)
	}
	rows := [][]string{{columnWall, "±", "RUNNING", "RUNNABLE", "WAITING", "MAIN WAIT", columnName, columnEndpoint}}
	for _, row := range top(c, r.Rows) {
		rows = append(rows, []string{
			"  " + cpuText(row.Total), cpuText(row.Error()), shareOf(row.Running, row.Total), shareOf(row.Runnable, row.Total), shareOf(row.Waiting(), row.Total),
			mainWait(row.Waits), nameText(row.Name), nameText(row.Endpoint),
		})
	}
	out = appendWallTable(out, "Top span names by wall-clock time, without their children", rows)
	rows = [][]string{{columnWall, columnShare, columnWaitingFor}}
	for _, kind := range byTime(kinds) {
		rows = append(rows, []string{"  " + cpuText(kinds[kind]), shareOf(kinds[kind], total.Total), escape(kind)})
	}
	out = appendWallTable(out, "What spans wait for", rows)
	rows = [][]string{{columnWall, columnShare, columnWaitingFor, "FUNCTION"}}
	for _, f := range top(c, r.Functions) {
		rows = append(rows, []string{"  " + cpuText(f.Time), shareOf(f.Time, total.Total), escape(f.Kind), functionText(f.Function)})
	}
	out = appendWallTable(out, "Top functions by time waited", rows)
	return append(out, wallColumnsText...)
}

// wallColumnsText explains the columns of the report.
var wallColumnsText = "\n" + string(table([][]string{
	{columnWall, "time inside the spans, without their children, all goroutines added up"},
	{"  ±", "standard error of WALL"},
	{"  RUNNING", "executing on a processor; it comes out too low: see otelctx man"},
	{"  RUNNABLE", "ready, but waiting for a processor"},
	{"  WAITING", "blocked, or in a system call"},
	{"  MAIN WAIT", "what the spans waited for longest"},
	{"  " + columnShare, "of the wall-clock time of all spans"},
}))

func appendWallTable(out []byte, title string, rows [][]string) []byte {
	if len(rows) == 1 {
		return out
	}
	return append(fmt.Appendf(out, "\n%s\n", title), table(rows)...)
}

func shareOf(part, whole time.Duration) string {
	return shareText(uint64(max(part, 0)), uint64(max(whole, 0)))
}

// byTime returns the kinds of waits, the most time first.
func byTime(kinds map[string]time.Duration) []string {
	return slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		if kinds[a] != kinds[b] {
			return int(min(max(kinds[b]-kinds[a], -1), 1))
		}
		return strings.Compare(a, b)
	})
}

// mainWait returns the kind of wait that took longest, or "-".
func mainWait(kinds map[string]time.Duration) string {
	if len(kinds) == 0 {
		return "-"
	}
	return escape(byTime(kinds)[0])
}
