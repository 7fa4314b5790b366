// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// curves are those of the service and of the reader that stays.
type curves struct {
	service, reader process
	// heap and goroutines are what the service says of itself.
	heap, goroutines *curve
	// collections is how many garbage collections the service has had, each of which says
	// anew what is live. It rises.
	collections *curve
}

// process has the curves of a process, as the kernel has it.
type process struct {
	procfs.Proc

	resident, threads, descriptors *curve
	// mappings are those that are not of threads, which come when Go is in need of threads.
	mappings *curve
}

// allowance is what is flat in a long time, and in one so short that much is still cold.
type allowance struct{ long, short limits }

// What is flat. In ten minutes a few KiB with each update exceed it, a descriptor or
// goroutine in a minute, or a mapping in twenty seconds. So it is by some bytes with
// each span. In a short time, it is exceeded by one of those with each of its fifty
// updates, or 100 KiB.
var (
	flatMemory     = allowance{limits{1 * mebibyte, 8 * mebibyte}, limits{10 * mebibyte, 80 * mebibyte}}
	flatHeap       = allowance{limits{mebibyte / 2, 4 * mebibyte}, limits{5 * mebibyte, 40 * mebibyte}}
	flatCount      = allowance{limits{3, 8}, limits{30, 80}}
	flatGoroutines = allowance{limits{3, 24}, limits{30, 80}} // they change with the load
)

// limits returns the limits for the time that there is.
func (a allowance) limits() limits {
	if short() {
		return a.short
	}
	return a.long
}

// notInRace returns the limits where the race detector does not stand in the way. The
// detector keeps memory of its own for what the process has ever used.
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

// all returns all curves.
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

// writeTables writes how flat curves are, and the curves themselves.
func writeTables(write func(string, ...any), curves []*curve) {
	write("| second half | median | fitted growth | allowed | most above the median | allowed |\n|---|--:|--:|--:|--:|--:|\n")
	for _, c := range curves {
		s := c.settled()
		write("| %s | %s | %s | %s | %s | %s |\n", c.name, c.unit.text(s.median), c.unit.text(s.growth),
			c.unit.text(c.limits.growth), c.unit.text(s.spread()), c.unit.text(c.limits.spread))
	}
	// Points come at regular intervals.
	const columns = 10
	point := func(column int) int { return (len(curves[0].at) - 1) * column / columns }
	write("\n| at")
	for i := range columns + 1 {
		write(" | %v", time.Duration(curves[0].at[point(i)]*float64(time.Second)).Round(time.Second/10))
	}
	write(" |\n|---%s|\n", strings.Repeat("|--:", columns+1))
	for _, c := range curves {
		write("| %s", c.name)
		for i := range columns + 1 {
			write(" | %s", c.unit.text(c.value[point(i)]))
		}
		write(" |\n")
	}
}

// writeCounts writes how much there was of everything.
func (s *soak) writeCounts(write func(string, ...any), r report) {
	s.count("requests answered", r.Requests)
	s.count("requests failed", r.Failed)
	s.count("requests, the slowest in milliseconds", uint64(r.Slowest.Milliseconds()))
	s.count("spans of the service", r.Spans)
	s.count("spans exported", r.Exported)
	s.count("updates of the resource", uint64(len(s.begun)-1))
	s.count("errors that went to otel.Handle", r.Handled)
	s.count("faults", uint64(s.found))
	s.count("messages of a profiler that came", r.Stats.Registrations+r.Stats.Correlations)
	s.count("messages about transactions that were over", r.Stats.UnknownTransactions)
	s.count("transactions exported with stack traces", r.Correlated)
	s.writeLives(write)
	write("\n| what | how many |\n|---|--:|\n")
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		write("| %s | %d |\n", what, s.counts[what])
	}
	if r.Without != "" {
		write("\nThe Universal Profiling integration is off: %s\n", r.Without)
	}
}

// writeLives writes how many readers have had which fate.
func (s *soak) writeLives(write func(string, ...any)) {
	write("\n| readers")
	for f := range numFates {
		write(" | %v", f)
	}
	write(" |\n|---%s|\n", strings.Repeat("|--:", int(numFates)))
	for _, k := range s.kinds() {
		write("| %s", k.name)
		for f := range numFates {
			write(" | %d", s.lives[k.name][f])
		}
		write(" |\n")
	}
}
