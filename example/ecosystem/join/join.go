// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"time"
)

// result is what there is to say of spans and profiles together. Times are in
// nanoseconds.
type result struct {
	// Recorded is for how long at least one instance was recorded.
	Recorded time.Duration `json:"recorded_nano"`
	// CPU is all CPU time, NoSpan what of it belongs to no span, NotExported what belongs
	// to spans that are not known.
	CPU         time.Duration `json:"cpu_nano"`
	NoSpan      time.Duration `json:"no_span_cpu_nano"`
	NotExported time.Duration `json:"not_exported_cpu_nano"`
	// Spans has what used the processor most first.
	Spans []use `json:"spans"`
}

// use is what the spans of one name took.
type use struct {
	Service string `json:"service"`
	Name    string `json:"name"`
	// Spans is how many were in progress while their service was recorded, Wall how long
	// they were, added up, and CPU what of the processor they used themselves.
	Spans int           `json:"spans"`
	Wall  time.Duration `json:"wall_nano"`
	CPU   time.Duration `json:"cpu_nano"`
}

// join puts CPU time beside wall time.
func join(spans map[spanID]span, r *recording) *result {
	j := &result{NoSpan: r.noSpan, CPU: r.noSpan}
	var all []interval
	intervals := map[instance][]interval{}
	for of, recorded := range r.intervals {
		intervals[of] = merge(recorded)
		all = append(all, recorded...)
	}
	for _, i := range merge(all) {
		j.Recorded += i.end.Sub(i.start)
	}
	byName := map[[2]string]*use{}
	for id, s := range spans {
		wall, during := overlap(s.interval, intervals[s.instance])
		if !during && r.cpu[id] == 0 {
			continue
		}
		name := [2]string{s.instance.service, s.name}
		if byName[name] == nil {
			byName[name] = &use{Service: s.instance.service, Name: s.name}
		}
		byName[name].Spans++
		byName[name].Wall += wall
		byName[name].CPU += r.cpu[id]
	}
	for id, used := range r.cpu {
		j.CPU += used
		if _, exported := spans[id]; !exported {
			j.NotExported += used
		}
	}
	for _, u := range byName {
		j.Spans = append(j.Spans, *u)
	}
	slices.SortFunc(j.Spans, func(a, b use) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Wall, a.Wall), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	return j
}

// merge returns the intervals by time, those that overlap or touch as one.
func merge(intervals []interval) []interval {
	sorted := slices.SortedFunc(slices.Values(intervals), func(a, b interval) int { return a.start.Compare(b.start) })
	var merged []interval
	for _, i := range sorted {
		if last := len(merged) - 1; last >= 0 && !i.start.After(merged[last].end) {
			if i.end.After(merged[last].end) {
				merged[last].end = i.end
			}
			continue
		}
		merged = append(merged, i)
	}
	return merged
}

// overlap returns how much of i is in the intervals, and whether anything is: the
// overlap with a span that took no time is 0.
func overlap(i interval, intervals []interval) (total time.Duration, during bool) {
	for _, o := range intervals {
		if i.end.Before(o.start) || !i.start.Before(o.end) {
			continue
		}
		during = true
		start, end := i.start, i.end
		if start.Before(o.start) {
			start = o.start
		}
		if end.After(o.end) {
			end = o.end
		}
		total += end.Sub(start)
	}
	return total, during
}
