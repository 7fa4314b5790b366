// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// spanID identifies a span. It includes the instance, because two services may use the same ids.
type spanID struct {
	instance instance
	trace    pcommon.TraceID
	span     pcommon.SpanID
}

// instance identifies a running instance of a service.
type instance struct{ service, id string }

// span is an exported span.
type span struct {
	name     string
	interval interval
}

// interval is the time from start, inclusive, to end, exclusive.
type interval struct{ start, end time.Time }

// recording holds the CPU time found in profiles, and the intervals that the profiles cover.
type recording struct {
	// intervals maps an instance to the times during which it was recorded. The intervals are
	// unordered and may overlap.
	intervals map[instance][]interval
	// cpu maps a span to its CPU time. noSpan maps the name of a service to its CPU time outside of
	// spans.
	cpu    map[spanID]time.Duration
	noSpan map[string]time.Duration
}

// instanceOf returns the instance that a resource describes.
func instanceOf(r pcommon.Resource) instance {
	attribute := func(key string) string {
		value, ok := r.Attributes().Get(key)
		if !ok {
			return ""
		}
		return value.AsString()
	}
	return instance{service: attribute("service.name"), id: attribute("service.instance.id")}
}

// readTraces reads a file of spans.
func readTraces(path string) (map[spanID]span, error) {
	spans := map[spanID]span{}
	err := eachLine(path, func(line []byte) error {
		data, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			return err
		}
		for _, r := range data.ResourceSpans().All() {
			owner := instanceOf(r.Resource())
			for _, scope := range r.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					spans[spanID{owner, s.TraceID(), s.SpanID()}] = span{
						name: s.Name(), interval: interval{s.StartTimestamp().AsTime(), s.EndTimestamp().AsTime()},
					}
				}
			}
		}
		return nil
	})
	return spans, err
}

// readProfiles reads a file of profiles. It returns an error if one is not a CPU profile.
func readProfiles(path string) (*recording, error) {
	r := &recording{intervals: map[instance][]interval{}, cpu: map[spanID]time.Duration{}, noSpan: map[string]time.Duration{}}
	err := eachLine(path, func(line []byte) error {
		data, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(line)
		if err != nil {
			return err
		}
		for _, rp := range data.ResourceProfiles().All() {
			for _, scope := range rp.ScopeProfiles().All() {
				for _, p := range scope.Profiles().All() {
					if err := r.add(data.Dictionary(), instanceOf(rp.Resource()), p); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	return r, err
}

func (r *recording) add(d pprofile.ProfilesDictionary, owner instance, p pprofile.Profile) error {
	unit, err := unitOf(d, p)
	if err != nil {
		return err
	}
	start := p.Time().AsTime()
	r.intervals[owner] = append(r.intervals[owner], interval{start, start.Add(time.Duration(p.DurationNano()))})
	for _, s := range p.Samples().All() {
		if s.LinkIndex() < 0 || int(s.LinkIndex()) >= d.LinkTable().Len() {
			return fmt.Errorf("a sample with link %d of %d", s.LinkIndex(), d.LinkTable().Len())
		}
		used := unit * time.Duration(total(s))
		link := d.LinkTable().At(int(s.LinkIndex()))
		if link.SpanID().IsEmpty() {
			r.noSpan[owner.service] += used
			continue
		}
		r.cpu[spanID{owner, link.TraceID(), link.SpanID()}] += used
	}
	return nil
}

// unitOf returns the CPU time that one unit of a sample's value represents. Values are either
// nanoseconds, or the number of samples taken, one per period.
func unitOf(d pprofile.ProfilesDictionary, p pprofile.Profile) (time.Duration, error) {
	const cpu, samples = "cpu in nanoseconds", "samples in count"
	text := func(i int32) string {
		if i < 0 || int(i) >= d.StringTable().Len() {
			return ""
		}
		return d.StringTable().At(int(i))
	}
	typeText := func(t pprofile.ValueType) string { return text(t.TypeStrindex()) + " in " + text(t.UnitStrindex()) }
	sampleType, period := typeText(p.SampleType()), typeText(p.PeriodType())
	switch {
	case sampleType == cpu:
		return time.Nanosecond, nil
	case sampleType == samples && period == cpu:
		return time.Duration(p.Period()), nil
	default:
		return 0, fmt.Errorf("a profile of %s with a period of %s is not one of CPU time", sampleType, period)
	}
}

// total returns the sum of a sample's values. If the sample has only timestamps, it returns their
// number.
func total(s pprofile.Sample) int64 {
	if s.Values().Len() == 0 {
		return int64(s.TimestampsUnixNano().Len())
	}
	sum := int64(0)
	for _, v := range s.Values().All() {
		sum += v
	}
	return sum
}

// eachLine calls decode with each non-empty line of a file.
func eachLine(path string, decode func(line []byte) error) error {
	f, err := os.Open(path) //nolint:gosec // The user says what to read.
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewReader(f) // A bufio.Scanner would limit the length of lines.
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := decode(line); err != nil {
				return fmt.Errorf("%s:%d: %w", path, number, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
