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

// alternate measures a candidate beside its baseline. It runs the two in turns, in
// batches of up to batch operations, b.N operations of each in all. So what else the
// machine does meanwhile falls on both. It reports of the candidate what benchmarks
// report, the time being the median of the batches, and:
//
//   - cpu-ns/op, the processor time of all threads, the garbage collector's included:
//     steadier than the time on a machine that is busy with other things;
//   - x-base, how many times the baseline's processor time that is: the median of
//     the rounds.
//
// A batch should take about a millisecond: the kernel's clocks are good for that, and
// others have little time to get in between.
func alternate(b *testing.B, batch int, baseline, candidate func(n int)) {
	b.Helper()
	defer runtime.KeepAlive(ballast)
	var walls, cpus, ratios []float64
	measure := func(n int, f func(int)) (wall, cpu float64) {
		c, w := cpuTime(), time.Now()
		f(n)
		return float64(time.Since(w)) / float64(n), float64(cpuTime()-c) / float64(n)
	}
	baseline(min(batch, b.N)) // to warm up
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
	if len(ratios) > 0 { // none if the clock of the processor time did not move
		b.ReportMetric(median(ratios), "x-base")
	}
	b.ReportMetric(allocs, "allocs/op")
	b.ReportMetric(bytes, "B/op")
}

// allocated returns what an operation allocates.
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

// ballast is as much memory as a small service has in use. Without it the garbage
// collector would run every 4 MB, and less often the more memory a candidate needs
// for itself.
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
