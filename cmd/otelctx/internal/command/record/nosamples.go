// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
)

// noSamplesError is the reason why a recording has no samples, and advice about it.
type noSamplesError struct{ reason, advice string }

func (e *noSamplesError) Error() string {
	return fmt.Sprintf("%v: %s", exitcode.ErrNoSamples, e.reason)
}
func (*noSamplesError) Unwrap() error { return exitcode.ErrNoSamples }

// Advice is printed below the error.
func (e *noSamplesError) Advice() string { return e.advice }

// noSamples returns an error with the reason why a recording has no samples.
func (s *session) noSamples(r *recording.Result) error {
	switch {
	case r.Filtered > 0:
		return s.nothingPassed(r.Filtered, r.FilteredAttributes)
	case r.Lost+r.Replaced > 0:
		return &noSamplesError{fmt.Sprintf("all %d samples were lost or left out", r.Lost+r.Replaced), ""}
	case r.Allocated != nil && r.Allocated.Reason != nil:
		return &noSamplesError{r.Allocated.Reason.Error(), ""}
	case r.Recorded == 0 && (s.started != 0 || len(s.targets.pids) > 0):
		return &noSamplesError{fmt.Sprintf("%v could not be read in time", &s.targets), ""}
	case r.Recorded == 0 && len(s.targets.services) > 0:
		return &noSamplesError{
			fmt.Sprintf("there were no %v", &s.targets),
			"Run otelctx list to see the services that publish. One that publishes nothing is recorded by its process id or --name.",
		}
	case r.Recorded == 0 && s.targets.byName():
		return &noSamplesError{
			fmt.Sprintf("there were no %v that used the CPU", &s.targets),
			"Names are those of the executable, or what ps -o comm shows. Control groups are in /proc/PID/cgroup.",
		}
	case r.Recorded == 0:
		return &noSamplesError{
			"no process publishes a process context or spans",
			"A process that publishes nothing is recorded by its process id or --name.",
		}
	}
	if s.alloc != nil {
		return &noSamplesError{
			fmt.Sprintf("the runtime sampled no allocation of %v", &s.targets),
			"It samples one for each 512 KiB on average. Record while there is work to do, or for longer (--duration).",
		}
	}
	idle := fmt.Sprintf("%v was hardly running", &s.targets)
	if s.targets.all || s.targets.byName() || len(s.targets.pids) > 1 {
		idle = fmt.Sprintf("none of the %d recorded processes was running for long", r.Recorded)
	}
	return &noSamplesError{
		fmt.Sprintf("%s: a sample is taken for each %v of CPU time, and none while a process waits", idle, report.PerSample(s.cpu.frequency).Round(100*time.Microsecond)),
		"Record while there is work to do, for longer (--duration), or with more samples (--freq).",
	}
}

// nothingPassed returns the error for a recording in which --filter left out all samples. The error lists
// attributes of these samples.
func (s *session) nothingPassed(filtered uint64, attributes filter.Dropped) error {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "--filter left out all %d", filtered)
	for _, f := range s.filters {
		values, known := attributes[f.Key]
		switch {
		case !known:
			text.WriteString("; none has the attribute " + display.Key(f.Key))
		case !slices.Contains(values, f.Value):
			slices.Sort(values)
			_, _ = fmt.Fprintf(&text, "; %s is never %s, but for example %s", display.Key(f.Key), display.Key(f.Value), listText(values))
		}
	}
	return &noSamplesError{text.String(), "Attributes of these samples: " + listText(slices.Sorted(maps.Keys(attributes)))}
}

// listText joins texts with commas.
func listText(texts []string) string {
	short := make([]string, len(texts))
	for i, text := range texts {
		short[i] = display.Key(text)
	}
	return strings.Join(short, ", ")
}

// noSpans returns the error of a recording without processes.
func (s *session) noSpans() error {
	reason := "no process publishes its live spans, or can be read"
	if s.targets.byName() {
		reason = fmt.Sprintf("there were no %v that publish their live spans and can be read", &s.targets)
	}
	return &noSamplesError{reason, "Run otelctx list to see the processes that publish. otelctx inspect PID shows why the spans of one cannot be read."}
}
