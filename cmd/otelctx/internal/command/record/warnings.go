// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/advice"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// complain prints warnings about data that is missing from the results, with the reasons.
func (s *session) complain(r *results) {
	if r.sampled != nil {
		s.complainSampled(r.sampled)
	} else if r.wall.Ended {
		s.streams.Complainf("%v has ended", &s.targets)
	}
	if r.wall != nil {
		if r.wall.Filtered > 0 && len(r.wall.SpanNames) > 0 {
			s.streams.Complainf("--filter left out %d goroutines in all snapshots", r.wall.Filtered)
		}
		for _, m := range r.wall.Missing {
			s.streams.Complainf("incomplete: %v", m)
		}
	}
}

func (s *session) complainSampled(r *recording.Result) {
	if r.Ended {
		ended := "has ended"
		if s.pid() == 0 {
			ended = "have ended"
		}
		s.streams.Complainf("%v %s", &s.targets, ended)
	}
	lost := "samples were lost, because otelctx could not read them in time: a lower --freq loses fewer"
	if a := r.Allocated; a != nil {
		lost = "samples were lost, because otelctx could not read them in time: a higher runtime.MemProfileRate loses fewer"
		if s.cpu != nil {
			lost += ", and so does a lower --freq"
		}
		if a.Unweighed > 0 {
			s.streams.Complainf("%d samples were left out, since it is not known what they stand for: %v", a.Unweighed, a.Reason)
		}
	}
	spansLeftOut := r.SpansLeftOut
	if r.Allocated != nil {
		spansLeftOut = max(spansLeftOut, r.Allocated.SpansLeftOut)
	}
	var live recording.Live
	if r.Live != nil {
		live = *r.Live
	}
	for _, missing := range []struct {
		count uint64
		text  string
	}{
		{r.Lost, lost},
		{r.Replaced, "samples were left out: their process had just executed another program"},
		{r.Cut, "samples have only the innermost frame of their stack, and no attributes of their span: their process has too many different stacks"},
		{r.Truncated - r.Cut, fmt.Sprintf("samples lack the outermost frames of their stack: the kernel records at most %d", sampler.MaxFrames)},
		{spansLeftOut, "or fewer spans are missing from the tables, those with the fewest samples; the profile has them"},
		{live.LostFrees, "objects may have been freed although they count as live: otelctx could not read in time that they were"},
		{live.LeftOut, "objects are missing from the live ones: there are too many to follow"},
		{r.Dropped, "attributes were left out: profiles cannot hold them"},
		{r.Unnamed, "samples lack function names: looking them up took too long, or it is not known what their process had mapped"},
		{r.Hidden, "samples have addresses instead of function names: the table of Go functions in their program cannot be read; programs made by garble hide it"},
		{r.Unproven, "samples have an unproven span: their process does not say which goroutine the span belongs to, so it may be an earlier span"},
	} {
		if missing.count > 0 {
			s.streams.Complainf("%d %s", missing.count, missing.text)
		}
	}
	if r.Filtered > 0 && r.All() > 0 {
		s.streams.Complainf("--filter left out %d samples", r.Filtered)
	}
	// If the selected service was found, the unread processes probably belong to other services.
	if len(s.targets.services) == 0 || r.Recorded == 0 {
		advice.Unread(s.streams, r.Unread)
	}
	if r.NotExamined > 0 {
		s.streams.Complainf("%d processes were not examined before the recording ended: record for longer (--duration), or select fewer processes", r.NotExamined)
	}
}
