// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package measured writes the CSV files from which command results generates results.md.
package measured

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Write writes rows to a CSV file. The first row has the names of the columns. Comments at the start
// of the file give the date, the machine, the commit if it is known, and the lines in about.
func Write(path string, about []string, rows [][]string) error {
	var text bytes.Buffer
	lines := []string{"date: " + time.Now().UTC().Format(time.DateOnly), "machine: " + Machine()}
	if c := commit(); c != "" {
		lines = append(lines, "commit: "+c)
	}
	for _, line := range append(lines, about...) {
		_, _ = fmt.Fprintf(&text, "# %s\n", line)
	}
	if err := csv.NewWriter(&text).WriteAll(rows); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o600)
}

// commit returns the revision that the program was built from, or "" if it is unknown, as in tests.
func commit() string {
	info, _ := debug.ReadBuildInfo()
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if settings["vcs.modified"] == "true" {
		revision += ", modified"
	}
	return revision
}

// modelName matches the name of the CPU in /proc/cpuinfo.
var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

// Machine describes the machine, its kernel and the Go version.
func Machine() string {
	model, kernel := "unknown processor", "?"
	info, _ := os.ReadFile("/proc/cpuinfo")
	if m := modelName.FindSubmatch(info); m != nil {
		model = string(m[1])
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(release))
	}
	return fmt.Sprintf("%d x %s, %s/%s, Linux %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, kernel, runtime.Version())
}
