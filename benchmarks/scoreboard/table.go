// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/benchmarks/internal/measured"
)

// text returns the tables for the publication that was measured last. looked lists its observers.
func (b *board) text(patterns []pattern, looked []observer) string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "\n-publish %s\n", b.publication.name)
	_, _ = text.WriteString("\n| Observer | patterns | without fault | with a wrong sample | samples | right | none | wrong | precision | recall | false positives | CPU | memory |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, o := range looked {
		var sum tally
		judged, perfect, wrong := 0, 0, 0
		for _, p := range patterns {
			if !o.judges(&p) {
				continue
			}
			judged++
			t := b.rows[p.name()].Tallies[o.name]
			sum.Right, sum.None, sum.Wrong = sum.Right+t.Right, sum.None+t.None, sum.Wrong+t.Wrong
			sum.Shown, sum.Outside = sum.Shown+t.Shown, sum.Outside+t.Outside
			if t.None+t.Wrong == 0 {
				perfect++
			}
			if t.Wrong > 0 {
				wrong++
			}
		}
		_, _ = fmt.Fprintf(&text, "| %s | %d | %d | %d | %d | %d | %d | %d | %s | %s | %s | %s |\n", o.title, judged, perfect, wrong, sum.samples(), sum.Right, sum.None, sum.Wrong,
			share(sum.Shown, sum.Shown+sum.Wrong), share(sum.Shown, sum.Shown+sum.None+sum.Wrong-sum.Outside),
			share(sum.Outside, sum.samples()-sum.Shown-sum.None-sum.Wrong+sum.Outside), b.costs[o.name])
	}
	_, _ = text.WriteString("\nEach observer's column: samples: right / none / wrong.\n\n| Pattern | Where it works | contract |")
	for _, o := range looked {
		_, _ = fmt.Fprintf(&text, " %s |", o.title)
	}
	_, _ = fmt.Fprintf(&text, "\n|---|---|---|%s\n", strings.Repeat("--:|", len(looked)))
	for _, p := range patterns {
		row := b.rows[p.name()]
		_, _ = fmt.Fprintf(&text, "| %s | %s | %s |", p.name(), p.about, row.says())
		for _, o := range looked {
			cell := ""
			if o.judges(&p) {
				cell = row.Tallies[o.name].String()
			}
			_, _ = fmt.Fprintf(&text, " %s |", cell)
		}
		_, _ = fmt.Fprintln(&text)
	}
	_, _ = fmt.Fprintln(&text)
	return text.String()
}

// says lists the values in r.Kinds.
func (r *row) says() string {
	return strings.Join(slices.DeleteFunc([]string{"shown", "nothing", "either"}, func(kind string) bool { return !r.Kinds[kind] }), ", ")
}

// share formats n as a percentage of total, or returns "-" if total is 0.
func share(n, total int) string {
	if total == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(total))
}

// String returns two table cells: CPU time as a percentage of the service's, and memory.
func (c *cost) String() string {
	if c == nil || c.Service == 0 {
		return "- | -"
	}
	return fmt.Sprintf("%.1f %% | %d MB", 100*c.Used.Seconds()/c.Service.Seconds(), c.Memory>>20)
}

// String formats t as a table cell, "samples: right / none / wrong".
func (t *tally) String() string {
	short := ""
	if t.samples() < wanted {
		short = " (few)"
	}
	wrong := strconv.Itoa(t.Wrong)
	if t.Wrong > 0 {
		wrong = "**" + wrong + "**"
	}
	return fmt.Sprintf("%d: %d / %d / %s%s", t.samples(), t.Right, t.None, wrong, short)
}

// libraries lists the libraries that the patterns use, with their versions.
func libraries() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var list []string
	for _, m := range info.Deps {
		for _, name := range patternLibraries {
			if strings.HasSuffix(m.Path, name) {
				list = append(list, m.Path+" "+m.Version)
			}
		}
	}
	return strings.Join(list, ", ")
}

// patternLibraries lists the libraries that the patterns use, as suffixes of module paths.
var patternLibraries = []string{
	"otel/sdk", "otelhttp", "otelgrpc", "otelslog", "otelsql", "modernc.org/sqlite", "google.golang.org/grpc", "otel-profiling-go",
	"dd-trace-go/v2", "golang.org/x/sync", "twmb/franz-go", "plugin/kotel", "quic-go/quic-go", "coder/websocket", "nats-server/v2",
	"go-redis/v9", "connectrpc.com/connect", "otelconnect", "go-chi/chi/v5", "gin-gonic/gin", "echo/v4", "fiber/v2", "graphql-go",
	"gorm.io/gorm", "cron/v3", "failsafe-go", "ants/v2", "pond/v2", "sourcegraph/conc",
}

// csvDocument is the content of the CSV file, with a row for each publication, pattern and observer. Command results
// turns the file into a page.
type csvDocument struct {
	costs []string
	rows  [][]string
}

// add adds rows for the publication that the board measured last. looked lists its observers.
func (d *csvDocument) add(b *board, patterns []pattern, looked []observer) {
	for _, o := range looked {
		if c := b.costs[o.name]; c != nil && c.Service > 0 {
			d.costs = append(d.costs, fmt.Sprintf("cost of %s, %s: %.1f %% of the service's CPU time, %d MB",
				o.title, b.publication.name, 100*c.Used.Seconds()/c.Service.Seconds(), c.Memory>>20))
		}
	}
	for _, p := range patterns {
		row := b.rows[p.name()]
		for _, o := range looked {
			if !o.judges(&p) {
				continue
			}
			t := row.Tallies[o.name]
			cells := []string{b.publication.name, p.name(), p.about, row.says(), o.title}
			for _, n := range []int{t.samples(), t.Right, t.None, t.Wrong, t.Shown, t.Outside} {
				cells = append(cells, strconv.Itoa(n))
			}
			d.rows = append(d.rows, cells)
		}
	}
}

func (d *csvDocument) write(b *board) error {
	columns := []string{"publish", "pattern", "about", "contract", "observer", "samples", "right", "none", "wrong", "shown", "outside"}
	arguments := fmt.Sprintf("arguments: -publish %s -parallel %d -cpu %v", b.publish, b.parallel, b.cpu)
	return measured.Write(b.csv, append([]string{arguments, "libraries: " + libraries()}, d.costs...), append([][]string{columns}, d.rows...))
}
