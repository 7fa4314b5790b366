// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

// writeCSV writes a row for each pattern and observer. Command results makes a document of it.
func (b *board) writeCSV(patterns []pattern, looked []observer) error {
	var text bytes.Buffer
	for _, line := range [][2]string{
		{"date", time.Now().UTC().Format(time.DateOnly)}, {"commit", commit()}, {"machine", machine()}, {"carriers", b.publish}, {"libraries", libraries()},
	} {
		_, _ = fmt.Fprintf(&text, "# %s: %s\n", line[0], line[1])
	}
	for _, o := range looked {
		if c := b.costs[o.name]; c != nil && c.Service > 0 {
			_, _ = fmt.Fprintf(&text, "# cost of %s: %.1f %% of the service's CPU time, %d MB\n", o.title, 100*c.Used.Seconds()/c.Service.Seconds(), c.Memory>>20)
		}
	}
	w := csv.NewWriter(&text)
	_ = w.Write([]string{"pattern", "about", "contract", "observer", "samples", "right", "none", "wrong", "shown", "outside"})
	for _, p := range patterns {
		row := b.rows[p.name()]
		for _, o := range looked {
			t := row.Tallies[o.name]
			cells := []string{p.name(), p.about, row.says(), o.title}
			for _, n := range []int{t.samples(), t.Right, t.None, t.Wrong, t.Shown, t.Outside} {
				cells = append(cells, strconv.Itoa(n))
			}
			_ = w.Write(cells)
		}
	}
	w.Flush()
	if err := os.MkdirAll(filepath.Dir(b.csv), 0o755); err != nil {
		return err
	}
	return os.WriteFile(b.csv, text.Bytes(), 0o600)
}

// commit is the revision that the program was built from.
func commit() string {
	info, _ := debug.ReadBuildInfo()
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return "unknown"
	}
	if settings["vcs.modified"] == "true" {
		revision += ", modified"
	}
	return revision
}

// modelName is the name of the processor in /proc/cpuinfo.
var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

func machine() string {
	model := "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo")
	if m := modelName.FindSubmatch(info); m != nil {
		model = string(m[1])
	}
	return fmt.Sprintf("%d x %s, %s/%s, Linux %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, kernel(), runtime.Version())
}
