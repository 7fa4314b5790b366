// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wall

import (
	"math"
	"slices"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
)

// Result holds what was measured in a recording or in one of its periods.
type Result struct {
	Start, End time.Time
	// Recorded is the number of processes that were recorded, whether or not they had spans.
	Recorded int
	// Snapshots counts the snapshots, and Goroutines the goroutines read in all of them.
	Snapshots, Goroutines uint64
	// Torn counts reads that were repeated because the goroutine changed meanwhile.
	Torn uint64
	// Lost counts goroutines that changed during every attempt.
	Lost uint64
	// Sampled reports whether there were so many goroutines that some snapshots contain only a random part of
	// them.
	Sampled bool
	// Late is the average delay of the snapshots, and Latest the largest.
	Late, Latest time.Duration
	// Skipped counts the snapshots that were not taken, because the previous one took too long or the process
	// could not be read. The next snapshot counts for their time too.
	Skipped uint64
	// Overloaded reports whether snapshots were late by more than a tenth of their interval on average. The times
	// are then less exact than their standard errors suggest.
	Overloaded bool
	// Rows add up the time. Functions is nil: see Waits.
	tally.Rows[Times]
	// Waits holds the time of waits by kind and by the function of the user's code that waits, in descending
	// order.
	Waits []FunctionTime
	// Filtered counts the goroutines that Config.Filters left out.
	Filtered uint64
	// FilteredAttributes holds the attributes of these goroutines if none passed Config.Filters.
	FilteredAttributes filter.Dropped
	// Missing holds the reasons why some of the data could not be read.
	Missing []error
	// Ended reports whether the recording ended because all processes had ended.
	Ended bool
}

// Times is wall-clock time by goroutine state. Waits breaks down the time of waits and system calls by kind, with one
// element for each kind.
type Times struct {
	// Queued is the part of Running in which the goroutine's thread waited for a processor.
	Total, Running, Queued, Runnable, Unknown time.Duration
	Waits                                     []Wait
	// Seen counts how often goroutines were found in these spans, and Snapshots the snapshots that found some. Snapshots
	// is set only for span names.
	Seen, Snapshots uint64
	// squares is the sum of the squared increments, in seconds squared.
	squares float64
}

// Wait is the time of waits of one kind, such as "chan receive".
type Wait struct {
	Kind string
	Time time.Duration
}

// Add implements [tally.Amount].
func (t Times) Add(o Times) Times {
	for _, w := range o.Waits {
		if i := slices.IndexFunc(t.Waits, func(known Wait) bool { return known.Kind == w.Kind }); i >= 0 {
			t.Waits[i].Time += w.Time
		} else {
			t.Waits = append(t.Waits, w)
		}
	}
	t.Total, t.Running, t.Queued = t.Total+o.Total, t.Running+o.Running, t.Queued+o.Queued
	t.Runnable, t.Unknown = t.Runnable+o.Runnable, t.Unknown+o.Unknown
	t.Seen, t.squares = t.Seen+o.Seen, t.squares+o.squares
	return t
}

// Weight implements [tally.Amount].
func (t Times) Weight() uint64 { return uint64(max(t.Total, 0)) }

// Waiting returns the total time of waits and system calls.
func (t Times) Waiting() time.Duration { return t.Total - t.Running - t.Runnable - t.Unknown }

// Error returns the standard error of the total. It assumes that in each snapshot every goroutine is in a
// different span and all spans are independent. For spans longer than the interval between snapshots the
// real error is smaller. The effect of late snapshots is not included.
func (t Times) Error() time.Duration {
	return time.Duration(math.Sqrt(t.squares) * float64(time.Second))
}

// FunctionTime is the time of waits of one kind in a function.
type FunctionTime struct {
	Service, Function, Kind string
	Time                    time.Duration
}
