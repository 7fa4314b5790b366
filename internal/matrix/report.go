// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/internal/matrix/plan"
)

// result is what a machine has come to.
type result struct {
	kernel   *bootable
	emulator string
	took     time.Duration
	run      *run
	// named says that the kernel names memory.
	named bool
	// rows are those of its programs.
	rows []row
	// skips are the tests that were skipped, by what the machine lacks and by their names.
	// The value is how many parts of a test, 0 for all of it.
	skips map[string]map[string]int
	// failures are all that is wrong.
	failures []string
}

// row is what a program has come to.
type row struct {
	name                    string
	passed, failed, skipped int
	seconds                 int
}

// judge counts, and finds out what is wrong.
func (r *result) judge() (err error) {
	if r.named, err = r.kernel.has(optionNames); err != nil {
		return err
	}
	r.skips = map[string]map[string]int{}
	fail := func(form string, args ...any) { r.failures = append(r.failures, fmt.Sprintf(form, args...)) }
	for _, p := range r.run.programs {
		row := row{name: p.name, seconds: p.seconds}
		for _, t := range p.tests {
			switch t.outcome {
			case "pass":
				row.passed++
			case "skip":
				row.skipped++
				lacks, ok, err := r.kernel.excused(t)
				if err != nil {
					return err
				}
				if !ok {
					fail("%s: %s was skipped: %s", p.name, t.name, t.why)
					continue
				}
				if r.skips[lacks] == nil {
					r.skips[lacks] = map[string]int{}
				}
				whole, _, isPart := strings.Cut(t.name, "/")
				if whole = p.name + " " + whole; isPart {
					r.skips[lacks][whole]++
				} else {
					r.skips[lacks][whole] = 0
				}
			default:
				row.failed++
				fail("%s: %s failed", p.name, t.name)
			}
		}
		switch {
		case !p.ended:
			fail("%s did not end", p.name)
		case p.code != 0:
			fail("%s ended with code %d", p.name, p.code)
		case p.name != demo && row.passed == 0:
			fail("%s has run no tests", p.name)
		}
		r.rows = append(r.rows, row)
	}
	for _, line := range r.run.stray {
		fail("the kernel: %s", line)
	}
	switch {
	case r.run.failed != "":
		fail("the machine did not come to the end: %s", r.run.failed)
	case !r.run.done:
		fail("the machine did not come to the end")
	}
	return nil
}

// format returns the report of all machines.
func format(results []*result) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %s on %s/%s.\n\n", time.Now().UTC().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	s.WriteString("| kernel | Debian's version | architecture | names memory | BTF | emulated by | passed | failed | skipped | took |\n")
	s.WriteString("| --- | --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: |\n")
	for _, r := range results {
		passed, failed, skipped := 0, 0, 0
		for _, row := range r.rows {
			passed, failed, skipped = passed+row.passed, failed+row.failed, skipped+row.skipped
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s | %s | %d | %d | %d | %v |\n",
			r.run.facts[plan.Release], r.kernel.version, r.kernel.arch, yes(r.named), yes(r.run.facts[plan.BTF] == "true"),
			r.emulator, passed, failed, skipped, r.took.Round(time.Second))
	}
	s.WriteString("\n## Packages\n\nPassed/failed/skipped, and seconds.\n\n| package |")
	for _, r := range results {
		fmt.Fprintf(&s, " %s |", r.kernel.name)
	}
	s.WriteString("\n| --- |" + strings.Repeat(" --- |", len(results)) + "\n")
	for _, name := range append(slices.Clone(packages), demo) {
		fmt.Fprintf(&s, "| %s |", name)
		for _, r := range results {
			s.WriteString(" " + r.cell(name) + " |")
		}
		s.WriteString("\n")
	}
	s.WriteString("\n## Skipped\n\nParts of tests that a machine cannot show, by what it lacks.\n")
	for _, r := range results {
		fmt.Fprintf(&s, "\n### %s\n\n| the machine lacks | so these were skipped |\n|---|---|\n", r.kernel.name)
		for _, lacks := range slices.Sorted(maps.Keys(r.skips)) {
			var tests []string
			for _, test := range slices.Sorted(maps.Keys(r.skips[lacks])) {
				if parts := r.skips[lacks][test]; parts > 0 {
					test += fmt.Sprintf(" (parts: %d)", parts)
				}
				tests = append(tests, test)
			}
			fmt.Fprintf(&s, "| %s | %s |\n", cmp.Or(lacks, "not recorded"), strings.Join(tests, ", "))
		}
	}
	for _, r := range results {
		if len(r.failures) > 0 {
			fmt.Fprintf(&s, "\n## Failed on %s\n\n- %s\n", r.kernel.name, strings.Join(r.failures, "\n- "))
		}
	}
	return s.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// cell says what became of a program.
func (r *result) cell(name string) string {
	for i, row := range r.rows {
		if row.name != name {
			continue
		}
		if name != demo {
			return fmt.Sprintf("%d/%d/%d, %d s", row.passed, row.failed, row.skipped, row.seconds)
		}
		if p := r.run.programs[i]; p.ended && p.code == 0 {
			return fmt.Sprintf("ok, %d s", row.seconds)
		}
		return "failed"
	}
	return "not run"
}
