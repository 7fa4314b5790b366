// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/benchmarks/internal/measured"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// curves holds the curves of the service, and of the one reader that runs during the whole test.
type curves struct {
	service, reader process
	// heap and goroutines come from the service's reports.
	heap, goroutines *curve
	// collections counts garbage collections. Only a collection updates the size of the live heap.
	collections *curve
}

// process holds the curves of one process. Their values come from /proc.
type process struct {
	procfs.Proc

	resident, threads, descriptors *curve
	// mappings counts memory mappings, except those that belong to threads, because the Go runtime
	// may start a thread at any time.
	mappings *curve
}

// allowance has the limits for a long run, and for a run that is too short to warm up.
type allowance struct{ long, short limits }

// In ten minutes, these limits reveal a leak of a few KiB per update, of a descriptor or goroutine
// per minute, of a mapping every twenty seconds, or of some bytes per span. In a short run they
// reveal a leak of a descriptor, goroutine or mapping, or of 100 KiB, per update.
var (
	flatMemory     = allowance{limits{1 * mebibyte, 8 * mebibyte}, limits{10 * mebibyte, 80 * mebibyte}}
	flatHeap       = allowance{limits{mebibyte / 2, 4 * mebibyte}, limits{5 * mebibyte, 40 * mebibyte}}
	flatCount      = allowance{limits{3, 8}, limits{30, 80}}
	flatGoroutines = allowance{limits{3, 24}, limits{30, 80}} // goroutines change with the load
)

func (a allowance) limits() limits {
	if short() {
		return a.short
	}
	return a.long
}

// notInRace returns the limits for memory and mappings. With the race detector there are none,
// because the detector keeps a shadow of all memory that the process has ever used.
func (a allowance) notInRace() limits {
	if testenv.Race {
		return limits{math.Inf(1), math.Inf(1)}
	}
	return a.limits()
}

func (s *soak) curves(t *testing.T, watched int) *curves {
	t.Helper()
	return &curves{
		service: newProcess(t, "service", s.child.PID()), reader: newProcess(t, "reader", watched),
		heap:       &curve{name: "service, live heap", unit: memory, limits: flatHeap.limits()},
		goroutines: &curve{name: "service, goroutines", limits: flatGoroutines.limits()}, collections: new(curve),
	}
}

func newProcess(t *testing.T, name string, pid int) process {
	t.Helper()
	p, err := procfs.NewProc(pid)
	require.NoError(t, err)
	return process{
		Proc:        p,
		resident:    &curve{name: name + ", resident memory", unit: memory, limits: flatMemory.notInRace()},
		threads:     &curve{name: name + ", threads", limits: flatCount.limits()},
		descriptors: &curve{name: name + ", descriptors", limits: flatCount.limits()},
		mappings:    &curve{name: name + ", mappings not of threads", limits: flatCount.notInRace()},
	}
}

func (c *curves) all() []*curve {
	return slices.Concat(
		[]*curve{c.service.resident, c.heap, c.goroutines, c.service.threads, c.service.descriptors, c.service.mappings},
		[]*curve{c.reader.resident, c.reader.threads, c.reader.descriptors, c.reader.mappings},
	)
}

// add adds a point to each curve.
func (c *curves) add(t *testing.T, at time.Duration, r report) {
	t.Helper()
	c.heap.add(at, float64(r.Heap))
	c.goroutines.add(at, float64(r.Goroutines))
	c.collections.add(at, float64(r.Collections))
	for _, p := range []process{c.service, c.reader} {
		status, err := p.NewStatus()
		require.NoError(t, err)
		p.resident.add(at, float64(status.VmRSS))
		stat, err := p.Stat()
		require.NoError(t, err)
		p.threads.add(at, float64(stat.NumThreads))
		descriptors, err := p.FileDescriptorsLen()
		require.NoError(t, err)
		p.descriptors.add(at, float64(descriptors))
		maps, err := p.ProcMaps()
		require.NoError(t, err)
		p.mappings.add(at, float64(len(maps)-threadMappings*stat.NumThreads))
	}
}

// publish prints the results, and writes them to the CSV file.
func (s *soak) publish(t *testing.T, r report, curves []*curve) {
	t.Helper()
	s.count("requests answered", r.Requests)
	s.count("requests failed", r.Failed)
	s.count("requests, the slowest in milliseconds", uint64(r.Slowest.Milliseconds()))
	s.count("spans of the service", r.Spans)
	s.count("spans exported", r.Exported)
	s.count("updates of the resource", uint64(len(s.begun)-1))
	s.count("errors reported to otel.Handle", r.Handled)
	s.count("faults", uint64(s.found))
	s.count("messages received from a profiler", r.Stats.Registrations+r.Stats.Correlations)
	s.count("messages about transactions that had ended", r.Stats.UnknownTransactions)
	s.count("transactions exported with stack traces", r.Correlated)
	for _, k := range s.kinds() {
		for f := range numFates {
			s.count(fmt.Sprintf("readers, %s, %v", k.name, f), uint64(s.lives[k.name][f]))
		}
	}
	rows := [][]string{{"what", "value"}}
	for _, c := range curves {
		half := c.settled()
		rows = append(rows, []string{
			c.name + " in the second half", fmt.Sprintf("median %s, fitted growth %s (allowed: %s), highest above the median %s (allowed: %s)",
				c.unit.text(half.median), c.unit.text(half.growth), c.unit.text(c.limits.growth), c.unit.text(half.spread()), c.unit.text(c.limits.spread)),
		})
	}
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		rows = append(rows, []string{what, strconv.FormatUint(s.counts[what], 10)})
	}
	if r.Without != "" {
		rows = append(rows, []string{"Universal Profiling is off", r.Without})
	}
	for _, row := range rows {
		t.Log(strings.Join(row, ": "))
	}
	if *csvFile != "" {
		require.NoError(t, measured.Write(*csvFile, []string{fmt.Sprint("duration: ", *duration)}, rows))
	}
}
