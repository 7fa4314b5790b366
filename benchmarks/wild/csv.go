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

// csvDocument collects a row for each publication, pattern and observer. Command results makes a page of it.
type csvDocument struct {
	costs []string
	rows  [][]string
}

// add adds the rows of the publication that the board has measured last.
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
			t := row.Tallies[o.name]
			cells := []string{b.publication.name, p.name(), p.about, row.says(), o.title}
			for _, n := range []int{t.samples(), t.Right, t.None, t.Wrong, t.Shown, t.Outside} {
				cells = append(cells, strconv.Itoa(n))
			}
			d.rows = append(d.rows, cells)
		}
	}
}

func (d *csvDocument) write(path string) error {
	var text bytes.Buffer
	for _, line := range append([]string{
		"date: " + time.Now().UTC().Format(time.DateOnly), "commit: " + commit(), "machine: " + machine(), "libraries: " + libraries(),
	}, d.costs...) {
		_, _ = fmt.Fprintf(&text, "# %s\n", line)
	}
	w := csv.NewWriter(&text)
	_ = w.Write([]string{"publish", "pattern", "about", "contract", "observer", "samples", "right", "none", "wrong", "shown", "outside"})
	_ = w.WriteAll(d.rows) // a buffer accepts everything
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o600)
}

// commit returns the revision that the program was built from.
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

// modelName finds the name of the processor in /proc/cpuinfo.
var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

func machine() string {
	model := "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo")
	if m := modelName.FindSubmatch(info); m != nil {
		model = string(m[1])
	}
	return fmt.Sprintf("%d x %s, %s/%s, Linux %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, kernel(), runtime.Version())
}
