// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"
)

// alternate compares a candidate with its baseline. It runs b.N operations of each. Batches of the
// two alternate, so that other load on the machine affects both; batch is the number of operations
// in a batch. The results are the candidate's:
//
//   - ns/op, the wall time: the median of the batches;
//   - cpu-ns/op, the CPU time of all threads including the garbage collector, which is steadier than wall time on a busy machine;
//   - x-base, the candidate's CPU time as a multiple of the baseline's: the median of all pairs of batches;
//   - allocs/op and B/op.
//
// A batch should take about a millisecond: long enough for the kernel's clocks, and short enough to
// be rarely interrupted.
func alternate(b *testing.B, batch int, baseline, candidate func(n int)) {
	b.Helper()
	defer runtime.KeepAlive(ballast)
	var walls, cpus, ratios []float64
	measure := func(n int, f func(int)) (wall, cpu float64) {
		c, w := cpuTime(), time.Now()
		f(n)
		return float64(time.Since(w)) / float64(n), float64(cpuTime()-c) / float64(n)
	}
	baseline(min(batch, b.N)) // warms up
	allocs, bytes := allocated(min(batch, b.N), candidate)
	b.ResetTimer()
	for done := 0; done < b.N; done += batch {
		n := min(batch, b.N-done)
		var base, wall, cpu float64
		if done/batch%2 == 0 {
			_, base = measure(n, baseline)
			wall, cpu = measure(n, candidate)
		} else {
			wall, cpu = measure(n, candidate)
			_, base = measure(n, baseline)
		}
		walls, cpus = append(walls, wall), append(cpus, cpu)
		if base > 0 {
			ratios = append(ratios, cpu/base)
		}
	}
	b.ReportAllocs()
	b.ReportMetric(median(walls), "ns/op")
	b.ReportMetric(median(cpus), "cpu-ns/op")
	if len(ratios) > 0 { // empty if the CPU clock did not advance
		b.ReportMetric(median(ratios), "x-base")
	}
	b.ReportMetric(allocs, "allocs/op")
	b.ReportMetric(bytes, "B/op")
}

// allocated returns the number of allocations and of allocated bytes per operation, both rounded
// down.
func allocated(n int, f func(int)) (allocs, bytes float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f(n)
	runtime.ReadMemStats(&after)
	return math.Floor(float64(after.Mallocs-before.Mallocs) / float64(n)),
		math.Floor(float64(after.TotalAlloc-before.TotalAlloc) / float64(n))
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// ballast makes the heap as large as a small service's. On a tiny heap the garbage collector runs
// after every 4 MB of allocations. A candidate that retains more memory would even seem cheaper,
// because its collections are rarer.
var ballast = make([]byte, 64<<20)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}
