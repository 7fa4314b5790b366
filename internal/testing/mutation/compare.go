// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// compareResults writes a table of how many mutants some tests caught, by subject, and how
// many of the others further tests did. files are the results of each.
func compareResults(to io.Writer, files []string) error {
	var w bytes.Buffer
	runs := make([]map[string]result, len(files))
	for i, name := range files {
		var err error
		if runs[i], err = readResults(name); err != nil {
			return err
		}
	}
	subjects := map[string][]int{} // the mutants, and those that each run caught
	var missed []string
	for id, first := range runs[0] {
		for _, name := range []string{first.Subject, "all"} {
			if subjects[name] == nil {
				subjects[name] = make([]int, 1+len(runs))
			}
			subjects[name][0]++
			for i, run := range runs {
				if run[id].Caught != "" {
					subjects[name][1+i]++
				}
			}
		}
		if first.Caught == "" {
			line := []string{fmt.Sprintf("%s (%s)", first.Place, first.Change)}
			for i, run := range runs[1:] {
				if caught := run[id].Caught; caught != "" {
					line = append(line, fmt.Sprintf("caught in %s by %s", files[1+i], caught))
				}
			}
			missed = append(missed, strings.Join(line, ", "))
		}
	}
	fmt.Fprintf(&w, "| code | mutants | %s |\n|---|--:%s|\n", strings.Join(files, " | "), strings.Repeat("|--:", len(files)))
	for _, name := range slices.Sorted(maps.Keys(subjects)) {
		fmt.Fprintf(&w, "| %s", name)
		for _, n := range subjects[name] {
			fmt.Fprintf(&w, " | %d", n)
		}
		fmt.Fprintln(&w, " |")
	}
	slices.Sort(missed)
	for _, line := range missed {
		fmt.Fprintf(&w, "\nsurvived %s: %s", files[0], line)
	}
	fmt.Fprintln(&w)
	_, err := to.Write(w.Bytes())
	return err
}
