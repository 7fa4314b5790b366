// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// result is the output of the command. Services and Spans are sorted by CPU time, the largest first.
type result struct {
	// Recorded is the time during which at least one instance was recorded.
	Recorded time.Duration `json:"recorded_nano"`
	CPU      time.Duration `json:"cpu_nano"`
	Services []service     `json:"services"`
	Spans    []use         `json:"spans"`
}

// service holds the CPU time of a service. CPU is the total, NoSpan is the part outside of spans, and
// NotExported is the part in spans that are not in the traces file.
type service struct {
	Service     string        `json:"service"`
	CPU         time.Duration `json:"cpu_nano"`
	NoSpan      time.Duration `json:"no_span_cpu_nano"`
	NotExported time.Duration `json:"not_exported_cpu_nano"`
}

// use sums up the spans that have the same service and the same name.
type use struct {
	Service string `json:"service"`
	Name    string `json:"name"`
	// Spans is the number of spans that were in progress while their instance was recorded, or that
	// have CPU time although their times say otherwise. Wall sums up the recorded parts of their
	// durations. CPU is their CPU time, excluding child spans.
	Spans int           `json:"spans"`
	Wall  time.Duration `json:"wall_nano"`
	CPU   time.Duration `json:"cpu_nano"`
}

// join combines the wall time of exported spans with the CPU time of a recording.
func join(spans map[spanID]span, r *recording) *result {
	j := &result{Services: services(spans, r), Spans: uses(spans, r)}
	for _, s := range j.Services {
		j.CPU += s.CPU
	}
	var all []interval
	for _, recorded := range r.intervals {
		all = append(all, recorded...)
	}
	for _, i := range merge(all) {
		j.Recorded += i.end.Sub(i.start)
	}
	return j
}

// services returns the CPU time of each recorded service.
func services(spans map[spanID]span, r *recording) []service {
	byName := map[string]*service{}
	for of := range r.intervals {
		byName[of.service] = &service{Service: of.service, CPU: r.noSpan[of.service], NoSpan: r.noSpan[of.service]}
	}
	for id, used := range r.cpu {
		s := byName[id.instance.service]
		s.CPU += used
		if _, exported := spans[id]; !exported {
			s.NotExported += used
		}
	}
	return sorted(byName, func(a, b *service) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Service, b.Service))
	})
}

// uses sums up the spans by service and name.
func uses(spans map[spanID]span, r *recording) []use {
	intervals := map[instance][]interval{}
	for of, recorded := range r.intervals {
		intervals[of] = merge(recorded)
	}
	byName := map[[2]string]*use{}
	for id, s := range spans {
		wall, during := overlap(s.interval, intervals[id.instance])
		if !during && r.cpu[id] == 0 {
			continue
		}
		name := [2]string{id.instance.service, s.name}
		if byName[name] == nil {
			byName[name] = &use{Service: id.instance.service, Name: s.name}
		}
		byName[name].Spans++
		byName[name].Wall += wall
		byName[name].CPU += r.cpu[id]
	}
	return sorted(byName, func(a, b *use) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Wall, a.Wall), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
}

// sorted returns the values of m in the given order.
func sorted[K comparable, V any](m map[K]*V, compare func(a, b *V) int) []V {
	values := make([]V, 0, len(m))
	for _, v := range slices.SortedFunc(maps.Values(m), compare) {
		values = append(values, *v)
	}
	return values
}

// merge returns the intervals in order, with overlapping or touching ones combined.
func merge(intervals []interval) []interval {
	var merged []interval
	for _, i := range slices.SortedFunc(slices.Values(intervals), func(a, b interval) int { return a.start.Compare(b.start) }) {
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

// overlap returns for how long i overlaps with the intervals, and whether it overlaps at all. An
// interval of zero length can overlap for 0 s.
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
