// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// noSamplesError is the reason why a recording has no samples, and advice about it.
type noSamplesError struct{ reason, advice string }

func (e *noSamplesError) Error() string {
	return fmt.Sprintf("%v: %s", exitcode.ErrNoSamples, e.reason)
}
func (*noSamplesError) Unwrap() error { return exitcode.ErrNoSamples }

// noSamples returns an error with the reason why a recording has no samples.
func (c *recordCommand) noSamples(r *recording.Result) error {
	switch {
	case r.Filtered > 0:
		return c.nothingPassed(r)
	case r.Lost+r.Replaced > 0:
		return &noSamplesError{fmt.Sprintf("all %d samples were lost or left out", r.Lost+r.Replaced), ""}
	case r.Recorded == 0 && (c.started != 0 || len(c.PIDs) > 0):
		return &noSamplesError{fmt.Sprintf("%v could not be read in time", &c.recordTargets), ""}
	case r.Recorded == 0 && len(c.Services) > 0:
		return &noSamplesError{
			fmt.Sprintf("there were no %v", &c.recordTargets),
			"Run otelctx list to see the services that publish. One that publishes nothing is recorded by its process id or --name.",
		}
	case r.Recorded == 0 && c.selecting():
		return &noSamplesError{
			fmt.Sprintf("there were no %v that used the CPU", &c.recordTargets),
			"Names are those of the executable, or what ps -o comm shows. Control groups are in /proc/PID/cgroup.",
		}
	case r.Recorded == 0:
		return &noSamplesError{
			"no process publishes a process context or spans",
			"A process that publishes nothing is recorded by its process id or --name.",
		}
	}
	idle := fmt.Sprintf("%v was hardly running", &c.recordTargets)
	if c.All || c.selecting() || len(c.PIDs) > 1 {
		idle = fmt.Sprintf("none of the %d recorded processes was running for long", r.Recorded)
	}
	return &noSamplesError{
		fmt.Sprintf("%s: a sample is taken for each %v of CPU time, and none while a process waits", idle, c.cpu(1).Round(100*time.Microsecond)),
		"Record while there is work to do, for longer (--duration), or with more samples (--freq).",
	}
}

// nothingPassed returns the error for a recording in which --filter left out all samples. The error lists
// attributes of these samples.
func (c *recordCommand) nothingPassed(r *recording.Result) error {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "--filter left out all %d", r.Filtered)
	for _, f := range c.Filters {
		values, known := r.FilteredAttributes[f.Key]
		switch {
		case !known:
			text.WriteString("; none has the attribute " + display.Key(f.Key))
		case !slices.Contains(values, f.Value):
			slices.Sort(values)
			_, _ = fmt.Fprintf(&text, "; %s is never %s, but for example %s", display.Key(f.Key), display.Key(f.Value), listText(values))
		}
	}
	return &noSamplesError{text.String(), "Attributes of these samples: " + listText(slices.Sorted(maps.Keys(r.FilteredAttributes)))}
}

// listText joins texts with commas.
func listText(texts []string) string {
	short := make([]string, len(texts))
	for i, text := range texts {
		short[i] = display.Key(text)
	}
	return strings.Join(short, ", ")
}
