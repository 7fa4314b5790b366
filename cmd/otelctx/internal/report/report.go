// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package report prints the results of recordings, as tables for people and as JSON for programs.
package report

import (
	"bytes"
	"io"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// Recording holds the results of a recording or of one of its periods.
type Recording struct {
	// Subject describes the recorded processes.
	Subject string
	// PID is the id of the recorded process, or 0 if several were selected. Started reports whether it is a command
	// that otelctx has started.
	PID     int
	Started bool
	// Alloc is nil unless allocations were recorded. If CPU time was recorded too, both have the same result.
	Alloc *recording.Result
	// CPU is nil if no CPU time was recorded, and Wall is nil if no wall-clock time was. Frequency is the number of
	// samples per second of CPU time, and Snapshots the number of snapshots per second.
	CPU       *recording.Result
	Frequency int
	Wall      *wall.Result
	Snapshots int
	// Delivery is what was sent to a collector.
	Delivery export.Delivery
}

// These are rows of CPU time.
type (
	process   = tally.Process[tally.Count]
	function  = tally.Function[tally.Count]
	name      = tally.Name[tally.Count]
	span      = tally.SpanUse[tally.Count]
	attribute = tally.Attribute[tally.Count]
)

// Tables selects what a report shows.
type Tables struct {
	// Group selects one kind of table. The zero value selects the usual ones.
	Group Group
	// Top is the maximum number of rows of a table; 0 is unlimited.
	Top int
	// Wide asks for whole ids and names, whatever the width of the terminal.
	Wide bool
	// NoFunctions reports whether functions have no names. NoSpanNames reports whether spans were read where their
	// names are not published.
	NoFunctions, NoSpanNames bool
}

// PerSample returns the CPU time that a sample represents.
func PerSample(frequency int) time.Duration { return time.Second / time.Duration(frequency) }

// cpu returns the CPU time that samples stand for. It is 0 if no CPU time was recorded.
func (r *Recording) cpu(samples uint64) time.Duration {
	if r.CPU == nil {
		return 0
	}
	return time.Duration(samples) * PerSample(r.Frequency)
}

// top returns the first elements of all, at most the given number of them, or all of them if most is 0.
func top[T any](most int, all []T) []T {
	if most == 0 {
		return all
	}
	return all[:min(len(all), most)]
}

// WriteText writes tables.
func (r *Recording) WriteText(w io.Writer, t *Tables) error {
	l := terminal.Layout(w, t.Wide)
	var parts [][]byte
	if r.CPU != nil {
		parts = append(parts, r.cpuText(l, t))
	}
	if r.Alloc != nil {
		parts = append(parts, r.allocText(l, t))
	}
	if r.Wall != nil {
		parts = append(parts, r.wallText(l, t))
	}
	_, err := w.Write(bytes.Join(parts, []byte{'\n'}))
	return err
}
