// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/measured"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

var (
	csvFile = flag.String("csv", "", "CSV file for the results of TestAllocations")
	pairs   = flag.Int("pairs", 120, "how many pairs of bursts each comparison of TestAllocations has")
)

// defaultRate is Go's own runtime.MemProfileRate. At highRate, samples cost 16 times as much, so that the noise hides less.
const (
	defaultRate = 512 << 10
	highRate    = defaultRate / 16
)

// allocatingRole is an HTTP service that publishes its spans. It has GOGC=100 and a live heap of 32 MiB, and allocates
// about 300 KB for each request. It sends its address, and then accepts two commands:
//
//   - "begin RATE" collects the garbage, sets runtime.MemProfileRate, and answers "begun";
//   - "allocated" answers with an allocated struct in JSON.
const allocatingRole = "allocating"

// allocated is what a service has allocated since its start. Bytes is /gc/heap/allocs:bytes, and Samples the number of
// samples in the runtime's heap profile.
type allocated struct{ Bytes, Samples float64 }

func serveAllocating(parent *childproc.Parent) {
	debug.SetGCPercent(100)
	const entries, entrySize, copies = 16 << 10, 2 << 10, 128
	cache := make([][]byte, entries)
	for i := range cache {
		cache[i] = make([]byte, entrySize)
	}
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "allocating"))), spanctx.WithPublishing())
	tracer := tp.Tracer("")
	type item struct {
		Name     string   `json:"name"`
		Size     int      `json:"size"`
		Keywords []string `json:"keywords"`
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, span := tracer.Start(r.Context(), "look up")
		found := make([][]byte, copies)
		for i := range found {
			found[i] = bytes.Clone(cache[i*entries/copies])
		}
		span.End()
		_, span = tracer.Start(r.Context(), "render")
		defer span.End()
		items := make([]item, 0)
		for i, f := range found {
			items = append(items, item{"item " + strconv.Itoa(i), len(f), []string{"red", "blue"}})
		}
		if err := json.NewEncoder(w).Encode(items); err != nil {
			return // The client has disconnected.
		}
	})
	parent.Send("%s", httptest.NewServer(otelhttp.NewHandler(handler, "GET /items", otelhttp.WithTracerProvider(tp))).URL)
	for {
		line, ok := parent.Receive()
		switch {
		case !ok:
			return
		case line == "allocated":
			answer, err := json.Marshal(readAllocated())
			parent.Must(err)
			parent.Send("%s", answer)
		default:
			runtime.GC()
			_, err := fmt.Sscanf(line, "begin %d", &runtime.MemProfileRate)
			parent.Must(err)
			parent.Send("begun")
		}
	}
}

func readAllocated() (a allocated) {
	total := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(total)
	a.Bytes = float64(total[0].Value.Uint64())
	for range 2 {
		runtime.GC() // The profile lacks the samples since the last collection but one.
	}
	n, _ := runtime.MemProfile(nil, true)
	records := make([]runtime.MemProfileRecord, n+100)
	n, _ = runtime.MemProfile(records, true)
	for _, r := range records[:n] {
		a.Samples += float64(r.AllocObjects)
	}
	return a
}

// allocating is a running service of allocatingRole.
type allocating struct {
	*childproc.Child

	t       *testing.T
	address string
}

func startAllocating(t *testing.T) *allocating {
	t.Helper()
	a := &allocating{Child: childproc.Start(t, allocatingRole, nil), t: t}
	a.address = a.Receive()
	return a
}

func (a *allocating) allocated() (sum allocated) {
	a.t.Helper()
	require.NoError(a.t, json.Unmarshal([]byte(a.Ask("allocated")), &sum))
	return sum
}

const burstRequests = 400

// burst sends requests while the service samples at a rate. It returns how long that takes, and the service's CPU time.
func (a *allocating) burst(rate int) (wall, cpu time.Duration) {
	a.t.Helper()
	require.Equal(a.t, "begun", a.Ask("begin %d", rate))
	const clients = 4
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	used, err := busyservice.Used(a)
	require.NoError(a.t, err)
	began := time.Now()
	var sending sync.WaitGroup
	var errs [clients]error
	for i := range errs {
		sending.Go(func() {
			for range burstRequests / clients {
				response, err := client.Get(a.address)
				if err == nil {
					_, err = io.Copy(io.Discard, response.Body)
					err = errors.Join(err, response.Body.Close())
				}
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	sending.Wait()
	wall = time.Since(began)
	usedNow, err := busyservice.Used(a)
	require.NoError(a.t, errors.Join(append(errs[:], err)...))
	return wall, usedNow - used
}

// sampling is how the allocations of a service are sampled and recorded.
type sampling struct {
	// rate is the service's runtime.MemProfileRate.
	rate int
	// record lists the arguments of otelctx record. If there are none, nobody records.
	record []string
}

func (s sampling) String() string {
	switch {
	case s.rate == 0:
		return "not sampled"
	case s.record == nil:
		return "sampled"
	default:
		return "record " + strings.Join(s.record, " ")
	}
}

// comparison collects what TestAllocations measures of a candidate and its baseline.
type comparison struct {
	// differences has the service's CPU time for a burst as the candidate, minus that of the baseline, for both roles of
	// the two processes.
	differences [2][]time.Duration
	// baseline is the CPU time of all bursts with the baseline. The other fields are about the candidate.
	baseline, wall time.Duration
	allocated      allocated
	// recording is the CPU time of otelctx from start to end, recordingWall how long that took, and recorded the number of
	// samples.
	recording, recordingWall time.Duration
	recorded                 float64
}

// turns is how many times two processes exchange their roles, including the first time.
const turns = 4

// TestAllocations measures the service's CPU time for the sampling of its allocations and for recording them, and the CPU
// time of otelctx.
//
// Bursts of requests go in turns to two processes of the same service, the candidate and its baseline. The two exchange their
// roles now and then, because one process may be faster than another one of the same program. Each value is the mean of two
// pairs of bursts, one for each role. The first row compares the baseline with itself, and so shows the noise.
func TestAllocations(t *testing.T) {
	need(t)
	exe := build(t)
	rows := [][]string{{
		"rate", "candidate", "baseline", "pairs", "MB/s", "samples/s", "baseline µs/request", "x-base [quartiles]", "µs/sample [quartiles]", "% of a core",
		"otelctx CPU", "otelctx µs/sample",
	}}
	fewer := map[string]*comparison{}
	measure := func(baseline, candidate sampling) {
		c := compare(t, exe, baseline, candidate, max(*pairs/turns, 1))
		names := []string{candidate.String(), baseline.String()}
		rows = append(rows, slices.Concat([]string{fmt.Sprint(candidate.rate>>10, " KiB")}, names, c.cells(fewer[fmt.Sprint(names)])))
		fewer[fmt.Sprint(names)] = c
		t.Log(rows[len(rows)-1])
	}
	for _, rate := range []int{defaultRate, highRate} {
		sampled := sampling{rate, nil}
		measure(sampled, sampled)
		measure(sampling{}, sampled)
		for _, args := range [][]string{{"--alloc"}, {"--alloc", "--live"}, {"--alloc", "--cpu"}} {
			measure(sampled, sampling{rate, args})
		}
	}
	if *csvFile != "" {
		require.NoError(t, measured.Write(*csvFile, []string{"by: make bench WHAT=recorder ONLY=TestAllocations"}, rows))
	}
}

// compare sends pairs of bursts to two services in each turn.
func compare(t *testing.T, exe string, baseline, candidate sampling, pairs int) *comparison {
	t.Helper()
	c := new(comparison)
	services := [2]*allocating{startAllocating(t), startAllocating(t)}
	for turn := range turns {
		role := turn % len(services)
		service, other := services[role], services[1-role]
		var r *tool
		started := time.Now()
		if candidate.record != nil {
			r = otelctx(t, exe, append(candidate.record, strconv.Itoa(service.PID()))...)
			time.Sleep(beginning)
		}
		_, _ = other.burst(baseline.rate) // to warm up
		allocated := func() allocated {
			_ = other.allocated() // Otherwise the processes would differ in what they do.
			return service.allocated()
		}
		before := allocated()
		_, _ = service.burst(candidate.rate)
		began := allocated()
		for i := range pairs {
			var base time.Duration
			if i%2 == 0 {
				_, base = other.burst(baseline.rate)
			}
			wall, cpu := service.burst(candidate.rate)
			if i%2 != 0 {
				_, base = other.burst(baseline.rate)
			}
			c.baseline, c.wall = c.baseline+base, c.wall+wall
			c.differences[role] = append(c.differences[role], cpu-base)
		}
		ended := allocated()
		c.allocated.Bytes += ended.Bytes - began.Bytes
		c.allocated.Samples += ended.Samples - began.Samples
		if r != nil {
			c.recording += r.end()
			c.recordingWall += time.Since(started)
			c.recorded += ended.Samples - before.Samples
			const percent = 0.01
			require.InEpsilon(t, ended.Samples-before.Samples, r.allocations(), percent, r.stderr.String())
		}
	}
	for _, service := range services {
		service.Done()
	}
	return c
}

// allocations returns the number of sampled allocations, including lost samples. The recording must have ended.
func (r *tool) allocations() int {
	r.t.Helper()
	type counts struct{ Samples, Lost int }
	var document struct {
		counts

		Alloc *counts // if CPU time was recorded as well
	}
	require.NoError(r.t, json.Unmarshal(r.stdout.Bytes(), &document))
	if document.Alloc != nil {
		document.counts = *document.Alloc
	}
	return document.Samples + document.Lost
}

// cells returns the columns from "pairs". fewer is the same comparison with a lower rate of samples, or nil. The recordings of
// both are equally long, so that they differ in what otelctx does for the samples.
func (c *comparison) cells(fewer *comparison) []string {
	values := make([]float64, len(c.differences[0])) // in µs
	for i := range values {
		values[i] = float64((c.differences[0][i] + c.differences[1][i]).Nanoseconds()) / 2 / 1e3
	}
	slices.Sort(values)
	// quartiles formats the median and the quartiles.
	quartiles := func(format string, column func(value float64) float64) string {
		n := len(values)
		return fmt.Sprintf(strings.ReplaceAll("# [# #]", "#", format), column(values[n/2]), column(values[n/4]), column(values[n*3/4]))
	}
	bursts := float64(2 * len(values))
	base, samples, perSecond := float64(c.baseline.Microseconds())/bursts, c.allocated.Samples/bursts, c.allocated.Samples/c.wall.Seconds()
	// share formats the share of a processor that samples take.
	share := func(perSample float64) string { return fmt.Sprintf("%.2f", 100*perSample*perSecond/1e6) }
	cells := []string{
		fmt.Sprint(bursts), fmt.Sprintf("%.0f", c.allocated.Bytes/c.wall.Seconds()/1e6), fmt.Sprintf("%.0f", perSecond),
		fmt.Sprintf("%.0f", base/burstRequests),
		quartiles("%.3f", func(value float64) float64 { return 1 + value/base }),
		quartiles("%.1f", func(value float64) float64 { return value / samples }), share(values[len(values)/2] / samples),
	}
	if c.recording == 0 {
		return append(cells, "", "")
	}
	cells = append(cells, fmt.Sprintf("%.2f s in %.0f s, %.0f samples", c.recording.Seconds()/turns, c.recordingWall.Seconds()/turns, c.recorded/turns), "")
	if fewer != nil {
		cells[len(cells)-1] = fmt.Sprintf("%.1f", float64((c.recording-fewer.recording).Microseconds())/(c.recorded-fewer.recorded))
	}
	return cells
}
