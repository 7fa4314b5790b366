// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// roleIdle is the name of a child process that does nothing but collect garbage when it is asked to.
const roleIdle = "idle"

// idleUsage is the cost of a forced garbage collection in nanoseconds, and the memory of the process in KiB.
type idleUsage struct{ Wall, CPU, Live, Resident float64 }

// beIdle is the main function of the child process. The parent sends the index of the configuration and the number of
// spans that the process starts, all at once, and ends. Then it sends a line for each measurement.
func beIdle(parent *childproc.Parent) {
	line, _ := parent.Receive()
	var index, spans int
	_, err := fmt.Sscan(line, &index, &spans)
	parent.Must(err)
	runtime.GOMAXPROCS(1)
	ballast = nil
	provider, err := services[index].provider()
	if errors.Is(err, errors.ErrUnsupported) {
		parent.Send("%s", err)
		return
	}
	parent.Must(err)
	tracer := provider.Tracer("benchmarks")
	live := make([]trace.Span, spans)
	for i := range live {
		_, live[i] = tracer.Start(context.Background(), "span")
	}
	for _, span := range live {
		span.End()
	}
	parent.Send("ready")
	for {
		if _, ok := parent.Receive(); !ok {
			break
		}
		used, err := json.Marshal(measureCollections())
		parent.Must(err)
		parent.Send("%s", used)
	}
	runtime.KeepAlive(provider)
}

// measureCollections forces garbage collections.
func measureCollections() (u idleUsage) {
	const collections = 100
	for range 3 {
		runtime.GC() // frees what earlier measurements have left
	}
	cpu, begin := cpuTime(), time.Now()
	for range collections {
		runtime.GC()
	}
	u.Wall, u.CPU = float64(time.Since(begin))/collections, float64(cpuTime()-cpu)/collections
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Live = float64(m.HeapAlloc) / 1024
	var size, resident int
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		_, _ = fmt.Sscan(string(statm), &size, &resident)
	}
	u.Resident = float64(resident*os.Getpagesize()) / 1024
	return u
}

// BenchmarkCollection alternately forces garbage collections in two idle processes with one P each, the candidate and one
// without a span processor. An operation is one collection. Before, the processes have started and ended a number of
// spans, which were all live at once. The results are the candidate's, as medians: the wall time (ns/op); the CPU time
// (cpu-ns/op), and by how much it is more than the other's (more-ns); the live heap (live-KiB, more-live-KiB); and the
// resident memory (resident-KiB, more-resident-KiB).
func BenchmarkCollection(b *testing.B) {
	index := func(processor string) int {
		return slices.IndexFunc(services, func(s service) bool { return s.sampled == 100 && s.processor == processor })
	}
	for _, spans := range []int{0, 60_000} {
		for _, processor := range []string{"none", "noop", "slots", "default", "unnamed", "grafana"} {
			b.Run(fmt.Sprintf("spans=%d/processor=%s", spans, processor), func(b *testing.B) {
				baseline, candidate := startIdle(b, index("none"), spans), startIdle(b, index(processor), spans)
				var walls []float64
				var used, more [3][]float64
				for b.Loop() {
					base, u := askCollections(b, baseline), askCollections(b, candidate)
					walls = append(walls, u.Wall)
					for i, v := range [][2]float64{{u.CPU, base.CPU}, {u.Live, base.Live}, {u.Resident, base.Resident}} {
						used[i], more[i] = append(used[i], v[0]), append(more[i], v[0]-v[1])
					}
				}
				b.ReportMetric(median(walls), "ns/op")
				for i, units := range [][2]string{{"cpu-ns/op", "more-ns"}, {"live-KiB", "more-live-KiB"}, {"resident-KiB", "more-resident-KiB"}} {
					b.ReportMetric(median(used[i]), units[0])
					b.ReportMetric(median(more[i]), units[1])
				}
			})
		}
	}
}

func startIdle(b *testing.B, index, spans int) *childproc.Child {
	b.Helper()
	child := childproc.Start(b, roleIdle, nil)
	if answer := child.Ask("%d %d", index, spans); answer != "ready" {
		noResult(b, answer)
	}
	askCollections(b, child)
	return child
}

func askCollections(b *testing.B, child *childproc.Child) (u idleUsage) {
	b.Helper()
	require.NoError(b, json.Unmarshal([]byte(child.Ask("collect")), &u))
	return u
}
