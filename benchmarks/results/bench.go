// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// convert writes the output of go test -bench as CSV. There is a column for each key in the
// benchmarks' names and for each unit. If a benchmark ran several times, a cell has the median and
// half the range. The lines at the start say where and how it was measured; kernel is the operating system.
func convert(w io.Writer, output io.Reader, now time.Time, kernel string) error {
	var keys, units, rounds []string
	var names [][]string
	values := map[string]map[string][]float64{} // by benchmark and unit
	add := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	cpu := runtime.GOARCH
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if model, ok := strings.CutPrefix(lines.Text(), "cpu: "); ok {
			cpu = strings.TrimSpace(model)
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || len(fields)%2 != 0 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		add(&rounds, fields[1])
		name := strings.TrimSuffix(fields[0], fmt.Sprintf("-%d", runtime.GOMAXPROCS(0)))
		if values[name] == nil {
			values[name] = map[string][]float64{}
			var row []string
			for _, part := range strings.Split(name, "/")[1:] {
				key, value, _ := strings.Cut(part, "=")
				add(&keys, key)
				row = append(row, value)
			}
			names = append(names, append(row, name))
		}
		for i := 2; i < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			add(&units, fields[i+1])
			values[name][fields[i+1]] = append(values[name][fields[i+1]], v)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no benchmark in the input")
	}
	for _, row := range names {
		if len(row) != len(keys)+1 {
			return fmt.Errorf("%s: its keys differ from those of the other benchmarks", row[len(row)-1])
		}
	}
	command := "go -C benchmarks test -bench " + strings.Split(names[0][len(keys)], "/")[0]
	if len(rounds) == 1 { // otherwise the time was the same instead
		command += " -benchtime " + rounds[0] + "x"
	}
	if runs := len(slices.Collect(maps.Values(values[names[0][len(keys)]]))[0]); runs > 1 {
		command += fmt.Sprintf(" -count %d", runs)
	}
	if _, err := fmt.Fprintf(w, "# date: %s\n# machine: %d processors, %s, GOMAXPROCS=%d, %s, %s\n# by: %s\n",
		now.Format(time.DateOnly), runtime.NumCPU(), cpu, runtime.GOMAXPROCS(0), kernel, runtime.Version(), command); err != nil {
		return err
	}
	for _, line := range noise(keys, names, values) {
		if _, err := fmt.Fprintln(w, "# noise: "+line); err != nil {
			return err
		}
	}
	out := csv.NewWriter(w)
	_ = out.Write(slices.Concat(keys, units))
	for _, row := range names {
		cells := slices.Clone(row[:len(keys)])
		for _, unit := range units {
			cells = append(cells, cell(values[row[len(keys)]][unit], unit))
		}
		_ = out.Write(cells)
	}
	out.Flush()
	return out.Error()
}

// The baselines of benchmarks: no span processor, and one that does nothing.
const none, noop = "none", "noop"

// baselines maps units that compare a processor with a baseline to that baseline.
var baselines = map[string]string{"x-base": noop, "more-ns": none, "more-live-KiB": none, "more-resident-KiB": none}

// noise describes the results of baselines that were compared with themselves.
func noise(keys []string, names [][]string, values map[string]map[string][]float64) (lines []string) {
	processor := slices.Index(keys, "processor")
	if processor < 0 {
		return nil
	}
	for _, unit := range slices.Sorted(maps.Keys(baselines)) {
		var results []float64
		for _, row := range names {
			if row[processor] == baselines[unit] {
				results = append(results, values[row[len(keys)]][unit]...)
			}
		}
		if len(results) > 0 {
			lines = append(lines, fmt.Sprintf("%s against itself: %s from %s to %s in %d comparisons", baselines[unit], unit,
				cell([]float64{slices.Min(results)}, unit), cell([]float64{slices.Max(results)}, unit), len(results)))
		}
	}
	return lines
}

// cell formats the values that several runs of a benchmark reported: the median with three digits,
// and half the range in percent of the median.
func cell(values []float64, unit string) string {
	if len(values) == 0 {
		return ""
	}
	slices.Sort(values)
	median := (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	text := digits(median)
	switch {
	case strings.HasSuffix(unit, "ns"), strings.HasSuffix(unit, "ns/op"):
		text = duration(median)
	case strings.HasSuffix(unit, "/op"): // allocations and bytes
		text = strconv.FormatFloat(median, 'f', 0, 64)
	}
	if spread := 100 * (values[len(values)-1] - values[0]) / 2 / median; len(values) > 1 && spread >= 0.5 && median != 0 {
		text += fmt.Sprintf(" ± %.0f %%", spread)
	}
	return text
}

func duration(ns float64) string {
	units := []string{"ns", "µs", "ms", "s"}
	for math.Abs(ns) >= 999.5 && len(units) > 1 {
		ns, units = ns/1000, units[1:]
	}
	return digits(ns) + " " + units[0]
}

// digits formats a number with three significant digits. Larger integers keep all digits.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	// 0.9996 has two decimals, since it is rounded to 1.00.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Floor(math.Log10(math.Abs(rounded))))), 64)
}
