// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command results generates results.md from the CSV files that benchmarks write. Run it in the directory benchmarks:
//
//	go run ./results
//
// With -bench, it reads the output of go test -bench and writes such a CSV file:
//
//	go test -run '^$' -bench '^BenchmarkService$' -count 3 . | go run ./results -bench >results/service.csv
//
// A CSV file begins with lines of the form "# key: value", which say when and where it was measured. The keys date
// and machine are required. To add a section to results.md, add it to the variable sections.
package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// section is a section of results.md, made from one CSV file.
type section struct {
	file, title, about string
	// render writes the section's table. If it is nil, the section shows all rows of the file.
	render func(w io.Writer, t *table) error
}

var sections = []section{
	{"scoreboard", "Scoreboard", "`make scoreboard` runs patterns of real services with real libraries, and compares what observers say of each sample with " +
		"the span that the code's stack spells.", renderScoreboard},
	{"bench", "Cost of a span", "`processor` says what is published; each shape is a multiple of the same spans with a no-op processor.", renderSpans},
	{
		"carriers", "Carriers", "How often samples get the right span if only one carrier publishes it. Precision is the share of right spans among those " +
			"given; recall is the share of samples in a span that were given it; false positives are the share of samples outside all spans that were given one.",
		func(w io.Writer, t *table) error { renderSummary(w, t); return nil },
	},
	{"before", "Before and after", "What otelctx cost a small service while its tables were on the Go heap, and what it costs now, from the two sections below.", renderBefore},
	{"service", "A real HTTP service", "An otelhttp server and client with six spans per request, each configuration in turns with its baseline.", nil},
	{"collection", "A garbage collection", "Forced collections in an idle process with one P, in turns with the same process without a span processor.", nil},
	{
		"allocations", "Recording allocations", "What it costs an HTTP service to sample its allocations, and to be recorded by `otelctx record --alloc`: " +
			"bursts of 400 requests in turns to two processes, the candidate and its baseline. The service has GOGC=100, a live heap of 32 MiB and three spans per " +
			"request. A row with the same candidate and baseline shows the noise. `otelctx CPU` is the CPU time of a recording from start to end, at 512 KiB mostly for " +
			"function names and the file; `otelctx µs/sample` is how much more it takes for each further sample.",
		nil,
	},
	{"exectrace", "Ids of spans in execution traces", "Package exectrace, as a multiple of the same spans without it: while no execution trace is recorded, and while one is.", nil},
	{"collector", "Three recorders", "`otelctx record`, the Collector receiver of this project and upstream's receiver at the same process.", nil},
	{"equalstacks", "Equal stacks", "Spans whose stacks are equal, one after the other on the same thread.", nil},
	{"other", "Publishing and reading", "", nil},
	{"soak", "Soak", "A service with everything published, while readers come, go, are stopped and killed, and its resource changes every second.", nil},
	{"kernels", "Kernels", "`make kernels` runs the tests on kernels of Debian and Ubuntu in virtual machines.", nil},
}

// table is the content of a CSV file.
type table struct {
	// measured holds the lines at the start of the file, such as "date: 2026-01-02".
	measured []string
	columns  []string
	rows     [][]string
	// files has the tables of all files, by their names without extension.
	files map[string]*table
}

func parse(text []byte) (*table, error) {
	t := new(table)
	for line := range strings.Lines(string(text)) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		t.measured = append(t.measured, strings.TrimSpace(comment))
	}
	for _, key := range []string{"date: ", "machine: "} {
		if !slices.ContainsFunc(t.measured, func(line string) bool { return strings.HasPrefix(line, key) }) {
			return nil, fmt.Errorf("no line %q says when and where it was measured", "# "+key)
		}
	}
	r := csv.NewReader(bytes.NewReader(text))
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("no header")
	}
	t.columns, t.rows = rows[0], rows[1:]
	return t, nil
}

// cell returns the text of a cell, which is empty if the table has no such column, or if row is nil.
func (t *table) cell(row []string, column string) string {
	if i := slices.Index(t.columns, column); i >= 0 && row != nil {
		return row[i]
	}
	return ""
}

// number returns the number at the start of a cell, or 0.
func (t *table) number(row []string, column string) float64 {
	first, _, _ := strings.Cut(t.cell(row, column), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

func (t *table) count(row []string, column string) int {
	n, _ := strconv.Atoi(t.cell(row, column))
	return n
}

// distinct returns the values of a column, in the order of their first appearance.
func (t *table) distinct(column string) (values []string) {
	for _, row := range t.rows {
		if v := t.cell(row, column); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

func main() {
	dir := flag.String("dir", "results", "the folder with the CSV files")
	output := flag.String("o", "results.md", "the document to write")
	bench := flag.Bool("bench", false, "write CSV of the output of go test -bench on the standard input")
	flag.Parse()
	var err error
	if *bench {
		err = convert(os.Stdout, os.Stdin, time.Now(), kernel())
	} else {
		err = generate(*dir, *output)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

// kernel returns the name and version of the operating system.
func kernel() string {
	version, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "Linux " + strings.TrimSpace(string(version))
}

func generate(dir, output string) error {
	var document bytes.Buffer
	_, _ = fmt.Fprint(&document, "# Results\n\nGenerated by `go run ./results` from the CSV files in [results](results), which have all rows.\n")
	files := map[string]*table{}
	for _, s := range sections {
		name := s.file + ".csv"
		text, err := os.ReadFile(filepath.Join(dir, name)) //nolint:gosec // G304: the caller chooses the directory
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		t, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		t.files = files
		files[s.file] = t
	}
	for _, s := range sections {
		t := files[s.file]
		if t == nil {
			continue
		}
		_, _ = fmt.Fprintf(&document, "\n## %s\n\n", s.title)
		if s.about != "" {
			_, _ = fmt.Fprintf(&document, "%s\n\n", s.about)
		}
		for _, m := range t.measured {
			_, _ = fmt.Fprintf(&document, "- %s\n", m)
		}
		render := s.render
		if render == nil {
			render = renderAll
		}
		if err := render(&document, t); err != nil {
			return fmt.Errorf("%s.csv: %w", s.file, err)
		}
	}
	return os.WriteFile(output, document.Bytes(), 0o600)
}

// markdown writes a table in Markdown, with columns of numbers aligned to the right.
func markdown(w io.Writer, columns []string, rows [][]string) {
	line := func(cells []string) { _, _ = fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	_, _ = fmt.Fprintln(w)
	line(columns)
	align := make([]string, len(columns))
	for i := range align {
		align[i] = "---"
		if len(rows) > 0 && rows[0][i] != "" && rows[0][i][0] >= '0' && rows[0][i][0] <= '9' {
			align[i] = "--:"
		}
	}
	line(align)
	for _, row := range rows {
		line(row)
	}
}

func renderAll(w io.Writer, t *table) error {
	markdown(w, t.columns, t.rows)
	return nil
}

// find returns the row whose cells have these values, such as "gogc=100 processor=noop", or nil.
func (t *table) find(values string) []string {
	differs := func(row []string) bool {
		for v := range strings.FieldsSeq(values) {
			if column, value, _ := strings.Cut(v, "="); t.cell(row, column) != value {
				return true
			}
		}
		return false
	}
	for _, row := range t.rows {
		if !differs(row) {
			return row
		}
	}
	return nil
}

// renderBefore writes a table with figures of an earlier version beside those of other files. The
// columns file, row and column say where the latter are, and per names the row with the baseline if
// the figure is a quotient. A cell is empty if there is no such row yet.
func renderBefore(w io.Writer, t *table) error {
	var rows [][]string
	for _, row := range t.rows {
		after := ""
		if other := t.files[t.cell(row, "file")]; other != nil {
			found, column := other.find(t.cell(row, "row")), t.cell(row, "column")
			after = other.cell(found, column)
			if low := other.cell(found, "x-low"); column == "x-base" && low != "" {
				after += fmt.Sprintf(" [%s %s]", low, other.cell(found, "x-high"))
			}
			if baseline := other.find(t.cell(row, "per")); t.cell(row, "per") != "" && baseline != nil && found != nil {
				after = digits(other.number(found, column) / other.number(baseline, column))
			}
		}
		rows = append(rows, []string{t.cell(row, "what"), t.cell(row, "before"), after, t.cell(row, "aim")})
	}
	markdown(w, []string{"What", "before", "after", "aim"}, rows)
	return nil
}

// processors describes the processors of BenchmarkSpan.
var processors = map[string]string{
	none: "no processor, so nothing is recorded", noop: "a no-op processor", "publisher": "the resource only",
	"slots": "thread slots and the goroutine table", "slots1": "the same with layout 1", "gslots": "the goroutine table alone",
	"record": "goroutine record and the goroutine table", "default": "thread slots, goroutine table, goroutine record and names",
	"unnamed": "the default without names", "datadog-labels": "the default and the labels of dd-trace-go",
	"keys3":     "unnamed, and three attributes of the context, short values",
	"universal": "Universal Profiling, published only", "universal-kept": "and each transaction kept for its export", "grafana": "otel-profiling-go",
}

// renderSpans writes a table with a row for each processor and a column for each shape.
func renderSpans(w io.Writer, t *table) error {
	shapes := t.distinct("shape")
	var rows [][]string
	for _, processor := range t.distinct("processor") {
		cells := []string{processor + ": " + processors[processor]}
		for _, shape := range shapes {
			cells = append(cells, t.cell(t.find("shape="+shape+" processor="+processor), "x-base"))
		}
		row, baseline := t.find("shape="+shapes[0]+" processor="+processor), t.find("shape="+shapes[0]+" processor="+noop)
		for _, column := range []string{"allocs/op", "B/op"} {
			more := ""
			if t.cell(row, column) != "" {
				more = strconv.FormatFloat(t.number(row, column)-t.number(baseline, column), 'f', 0, 64)
			}
			cells = append(cells, more)
		}
		rows = append(rows, cells)
	}
	markdown(w, slices.Concat([]string{"processor"}, shapes, []string{"allocations more", "bytes more"}), rows)
	return nil
}

// goroutineProfile is the name of an observer that reads the labels some milliseconds after it has
// collected the goroutines, so some of its samples have the labels of a later moment. The page does
// not list patterns in which only this observer has faults.
const goroutineProfile = "goroutine profile"

// renderSummary writes a table with a row for each publication and observer.
func renderSummary(w io.Writer, t *table) {
	var summary [][]string
	columns := []string{"Published", "Observer", "patterns", "without fault", "with a wrong sample", "samples", "precision", "recall", "false positives"}
	for _, publish := range t.distinct("publish") {
		for _, o := range t.distinct("observer") {
			sums := map[string]int{}
			patterns, perfect, wrong := 0, 0, 0
			for _, row := range t.rows {
				if t.cell(row, "observer") != o || t.cell(row, "publish") != publish {
					continue
				}
				for _, column := range []string{"samples", "right", "none", "wrong", "shown", "outside"} {
					sums[column] += t.count(row, column)
				}
				patterns++
				if t.count(row, "none")+t.count(row, "wrong") == 0 {
					perfect++
				}
				if t.count(row, "wrong") > 0 {
					wrong++
				}
			}
			if patterns == 0 {
				continue // the observer was not measured with this publication
			}
			due := sums["shown"] + sums["none"] + sums["wrong"] - sums["outside"]
			summary = append(summary, []string{
				publish, o, strconv.Itoa(patterns), strconv.Itoa(perfect), strconv.Itoa(wrong), strconv.Itoa(sums["samples"]),
				share(sums["shown"], sums["shown"]+sums["wrong"]), share(sums["shown"], due), share(sums["outside"], sums["samples"]-due),
			})
		}
	}
	markdown(w, columns, summary)
}

// renderScoreboard writes the summary, and a list of the patterns with a fault.
func renderScoreboard(w io.Writer, t *table) error {
	renderSummary(w, t)
	observers := t.distinct("observer")
	var faulty [][]string
	for _, pattern := range t.distinct("pattern") {
		cells := []string{pattern, "", ""}
		fault := false
		for _, o := range observers {
			cell := ""
			for _, row := range t.rows {
				if t.cell(row, "pattern") != pattern || t.cell(row, "observer") != o {
					continue
				}
				cells[1], cells[2] = t.cell(row, "about"), t.cell(row, "contract")
				none, wrong := t.count(row, "none"), t.count(row, "wrong")
				if none+wrong > 0 {
					cell = fmt.Sprintf("%s: %d none, %s", t.cell(row, "samples"), none, bold(wrong))
					fault = fault || o != goroutineProfile
				}
			}
			cells = append(cells, cell)
		}
		if fault {
			faulty = append(faulty, cells)
		}
	}
	_, _ = fmt.Fprintf(w, "\nPatterns with a fault outside the goroutine profile: %d of %d. An empty cell has none.\n", len(faulty), len(t.distinct("pattern")))
	if len(faulty) > 0 {
		markdown(w, append([]string{"Pattern", "where it works", "contract"}, observers...), faulty)
	}
	return nil
}

func bold(wrong int) string {
	if wrong == 0 {
		return "0 wrong"
	}
	return fmt.Sprintf("**%d wrong**", wrong)
}

// share formats n as a percentage of total, or returns "-" if total is 0.
func share(n, total int) string {
	if total == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(total))
}
