// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// compareResults writes a table of how many mutants two runs caught, by subject, and the
// ones that only the old one did.
func compareResults(w io.Writer, older, newer string) error {
	before, err := readResults(older)
	if err != nil {
		return err
	}
	after, err := readResults(newer)
	if err != nil {
		return err
	}
	type count struct{ mutants, before, after, both int }
	counts := map[string]*count{"all": {}}
	var missed []result
	for id, old := range before {
		now, ok := after[id]
		if !ok {
			continue
		}
		if counts[old.Subject] == nil {
			counts[old.Subject] = &count{}
		}
		for _, c := range []*count{counts[old.Subject], counts["all"]} {
			c.mutants++
			c.before += one(old.Caught != "")
			c.after += one(now.Caught != "")
			c.both += one(old.Caught != "" && now.Caught != "")
		}
		if old.Caught != "" && now.Caught == "" {
			missed = append(missed, old)
		}
	}
	fmt.Fprintln(w, "| code | mutants | caught by the old tests | by the new | by both |\n|---|--:|--:|--:|--:|")
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		c := counts[name]
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d |\n", name, c.mutants, c.before, c.after, c.both)
	}
	for _, m := range missed {
		fmt.Fprintf(w, "\nOnly the old tests caught %s (%s), by %s", m.Place, m.Change, m.Caught)
	}
	fmt.Fprintln(w)
	return nil
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
