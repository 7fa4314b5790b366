// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	ddotel "github.com/DataDog/dd-trace-go/v2/ddtrace/opentelemetry"
	datadog "github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
	otelpyroscope "github.com/grafana/otel-profiling-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/spanctx"
)

// service is a configuration of the HTTP service.
type service struct {
	// sampled is the percentage of requests that are sampled. processor is the name of the
	// configuration, and baseline names the configuration with the same percentage to compare it with.
	sampled             int
	processor, baseline string
	provider            func() (trace.TracerProvider, error)
}

var services = []service{
	{100, "noop", "noop", bySDK(sdktrace.WithSpanProcessor(noop))},
	{100, "none", "noop", bySDK()},
	{100, "slots", "noop", publishing(published["slots"])},
	{100, "default", "noop", publishing(nil)},
	{100, "unnamed", "noop", publishing([]spanctx.Option{spanctx.WithSpanNames(false)})},
	{100, "grafana", "noop", func() (trace.TracerProvider, error) {
		return otelpyroscope.NewTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(noop))), nil
	}},
	// dd-trace-go implements OpenTelemetry's API with its own tracer, so the baseline is that tracer
	// without labels.
	{100, "datadog-unlabelled", "datadog-unlabelled", byDatadog(false)},
	{100, "datadog", "datadog-unlabelled", byDatadog(true)},

	{1, "noop", "noop", bySDK(sdktrace.WithSpanProcessor(noop), sdktrace.WithSampler(onePercent))},
	{1, "default", "noop", publishing(nil, sdktrace.WithSampler(onePercent))},
	// The SDK records unsampled spans, but they are not published.
	{1, "recorded", "noop", bySDK(sdktrace.WithSpanProcessor(noop), sdktrace.WithSampler(spanctx.RecordUnsampled(onePercent)))},
	{1, "recorded-default", "noop", publishing(nil, sdktrace.WithSampler(spanctx.RecordUnsampled(onePercent)))},
	{1, "all", "noop", publishingAll},
	// How much more it costs to publish the unsampled spans than only the sampled ones.
	{1, "all-to-default", "default", publishingAll},
}

var onePercent = sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01))

func bySDK(opts ...sdktrace.TracerProviderOption) func() (trace.TracerProvider, error) {
	return func() (trace.TracerProvider, error) {
		return sdktrace.NewTracerProvider(append(opts, sdktrace.WithResource(oteltest.Resource()))...), nil
	}
}

func publishing(publish []spanctx.Option, opts ...sdktrace.TracerProviderOption) func() (trace.TracerProvider, error) {
	return func() (trace.TracerProvider, error) {
		p, err := spanctx.New(publish...)
		if err != nil {
			return nil, err
		}
		provider, _ := bySDK(append(opts, sdktrace.WithSpanProcessor(p))...)()
		return provider, p.Stats().Off
	}
}

func publishingAll() (trace.TracerProvider, error) {
	tp := spanctx.PublishAll(sdktrace.NewTracerProvider(sdktrace.WithSampler(onePercent), sdktrace.WithResource(oteltest.Resource())))
	return tp, nil
}

func byDatadog(labels bool) func() (trace.TracerProvider, error) {
	return func() (trace.TracerProvider, error) {
		return ddotel.NewTracerProvider(datadog.WithLogStartup(false), datadog.WithLogger(silence{}), datadog.WithProfilerCodeHotspots(labels),
			datadog.WithProfilerEndpoints(labels), datadog.WithHTTPClient(&http.Client{Transport: agent{}})), nil
	}
}

// silence is a dd-trace-go logger that discards everything.
type silence struct{}

func (silence) Log(string) {}

// agent is an HTTP transport that accepts every request of dd-trace-go, as a Datadog agent would.
type agent struct{}

func (agent) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		_, _ = io.Copy(io.Discard, request.Body)
		_ = request.Body.Close()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: request}, nil
}

// roleService is the name of a child process with an HTTP service, its backend and its clients.
const roleService = "service"

const clients = 4

// burst is the number of requests per measurement.
const burst = 1000

// usage is the resource usage of a burst. Times are in nanoseconds.
type usage struct {
	Wall, CPU, Median, P99, Allocs, Bytes, Collections float64
	// MarkIdle is the CPU time of the garbage collector's idle mark workers, which run while the
	// program leaves a processor unused. MarkBusy is the time of its other workers, including the
	// help of allocating goroutines.
	MarkIdle, MarkBusy float64
}

// collector is a setting of the garbage collector.
type collector struct {
	// heap is the size of the live heap in MiB, before the service starts. 4 means that nothing is added to it.
	// With GOGC=100 the heap then grows to 4 MiB, the least that Go uses.
	heap int
	// gogc is the value of GOGC, or "limit" if collections are due to a memory limit only.
	gogc string
}

func (c collector) String() string { return fmt.Sprintf("heap=%d/gogc=%s", c.heap, c.gogc) }

// apply configures the garbage collector of this process, and fills the heap. The caller must keep the result.
func (c collector) apply() (live any, err error) {
	ballast = nil
	if c.gogc == "limit" {
		debug.SetMemoryLimit(int64(2*c.heap+8) << 20)
		debug.SetGCPercent(-1)
	} else {
		percent, err := strconv.Atoi(c.gogc)
		if err != nil {
			return nil, err
		}
		debug.SetGCPercent(percent)
	}
	var list *entry
	for size := 0; c.heap > 4 && size < c.heap<<20; size += entrySize {
		list = &entry{make([]byte, 32), make([]byte, 432), list}
	}
	runtime.GC()
	return list, nil
}

// entry is an element of the live heap, such as a cache has. It takes entrySize bytes in three objects.
type entry struct {
	key, value []byte
	next       *entry
}

const entrySize = 64 + 32 + 448 // in Go's size classes

// serveHTTP is the main function of the child process. The parent sends the index of the configuration
// and the setting of the garbage collector, and then a line for each burst.
func serveHTTP(parent *childproc.Parent) {
	line, _ := parent.Receive()
	var (
		index   int
		setting collector
	)
	_, err := fmt.Sscan(line, &index, &setting.heap, &setting.gogc)
	parent.Must(err)
	live, err := setting.apply()
	parent.Must(err)
	defer runtime.KeepAlive(live)
	provider, err := services[index].provider()
	if errors.Is(err, errors.ErrUnsupported) {
		parent.Send("%s", err)
		return
	}
	parent.Must(err)
	address := shop(provider)
	parent.Send("ready")
	for {
		if _, ok := parent.Receive(); !ok {
			return
		}
		used, err := json.Marshal(measureBurst(address))
		parent.Must(err)
		parent.Send("%s", used)
	}
}

// shop starts a service with a backend and returns its address. A request has six spans: one for the
// server, two children, one each for the client and the server of the call to the backend, and a
// third child for the response.
func shop(provider trace.TracerProvider) string {
	tracer := provider.Tracer("benchmarks")
	opts := []otelhttp.Option{otelhttp.WithTracerProvider(provider), otelhttp.WithPropagators(propagation.TraceContext{})}
	child := func(ctx context.Context, name string, attributes ...attribute.KeyValue) trace.Span {
		_, span := tracer.Start(ctx, name, trace.WithAttributes(attributes...))
		return span
	}
	backend := httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(oteltest.Resource().Attributes())
	}), "stock", opts...))
	client := &http.Client{Transport: otelhttp.NewTransport(&http.Transport{MaxIdleConnsPerHost: clients}, opts...)}
	return httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		ctx := request.Context()
		child(ctx, "authorize", attribute.String("user.id", "4711")).End()
		query := child(ctx, "query", attribute.String("db.system.name", "postgresql"), attribute.String("db.operation.name", "SELECT"))
		items := make(map[string]int, 16)
		for i := range 16 {
			items[fmt.Sprintf("item-%02d", i)] = i
		}
		query.End()
		call, err := http.NewRequestWithContext(ctx, http.MethodGet, backend.URL, nil)
		if err == nil {
			var response *http.Response
			if response, err = client.Do(call); err == nil {
				_, err = io.Copy(io.Discard, response.Body)
				err = errors.Join(err, response.Body.Close())
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		render := child(ctx, "render")
		_ = json.NewEncoder(w).Encode(items)
		render.End()
	}), "cart", opts...)).URL
}

// measureBurst makes the clients send a burst of requests.
func measureBurst(address string) (u usage) {
	latencies := make([]time.Duration, burst)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	send := func(latencies []time.Duration) {
		for i := range latencies {
			begin := time.Now()
			response, err := client.Get(address)
			if err != nil {
				panic(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				panic(response.Status)
			}
			latencies[i] = time.Since(begin)
		}
	}
	send(latencies[:clients]) // opens the connections
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	idle, busy := markTimes()
	cpu, wall := cpuTime(), time.Now()
	var users sync.WaitGroup
	for part := range slices.Chunk(latencies, burst/clients) {
		users.Go(func() { send(part) })
	}
	users.Wait()
	u.Wall, u.CPU = float64(time.Since(wall))/burst, float64(cpuTime()-cpu)/burst
	idleAfter, busyAfter := markTimes()
	u.MarkIdle, u.MarkBusy = (idleAfter-idle)/burst, (busyAfter-busy)/burst
	runtime.ReadMemStats(&after)
	slices.Sort(latencies)
	u.Median, u.P99 = float64(latencies[burst/2]), float64(latencies[burst*99/100])
	u.Allocs, u.Bytes = float64(after.Mallocs-before.Mallocs)/burst, float64(after.TotalAlloc-before.TotalAlloc)/burst
	u.Collections = float64(after.NumGC-before.NumGC) / burst
	return u
}

// markTimes returns the CPU time of the garbage collector's idle mark workers and of its other ones,
// in nanoseconds. The Go runtime counts them at the end of each collection.
func markTimes() (idle, busy float64) {
	samples := []metrics.Sample{
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"},
	}
	metrics.Read(samples)
	return samples[0].Value.Float64() * 1e9, (samples[1].Value.Float64() + samples[2].Value.Float64()) * 1e9
}

// BenchmarkService alternately sends bursts of requests to two HTTP services, the candidate and its
// baseline. Each service is a process with its own heap, of the same program, because the placement of
// code alone changes figures by up to a tenth. An operation is a request, which has six spans. heap is the
// live heap in MiB. gogc is GOGC, or "limit" for a memory limit of twice the live heap plus 8 MiB and
// GOGC=off. The results are the candidate's:
//
//   - ns/op, the wall time, and cpu-ns/op, the CPU time of the whole process including clients: medians of the bursts;
//   - x-base, the candidate's CPU time as a multiple of the baseline's: the median of all pairs of bursts; x-low and
//     x-high are the quartiles;
//   - mark-idle-%, the share of the CPU time of all bursts in which the garbage collector's idle workers marked objects, on
//     processors that the service left unused; mark-%, the share in which its other workers and allocating goroutines did;
//   - p50-ns and p99-ns, the latency: medians of the bursts' percentiles;
//   - allocs/op and B/op: medians of the bursts;
//   - gcs/kop, the number of garbage collections per 1,000 requests.
func BenchmarkService(b *testing.B) {
	for _, heap := range []int{4, 64, 256} {
		for _, gogc := range []string{"50", "100", "1000", "limit"} {
			for i, s := range services {
				setting := collector{heap, gogc}
				b.Run(fmt.Sprintf("%s/sampled=%d/processor=%s", setting, s.sampled, s.processor), func(b *testing.B) {
					baseline := slices.IndexFunc(services, func(other service) bool {
						return other.sampled == s.sampled && other.processor == s.baseline
					})
					compareServices(b, startService(b, baseline, setting), startService(b, i, setting))
				})
			}
		}
	}
}

func compareServices(b *testing.B, baseline, candidate *childproc.Child) {
	b.Helper()
	var ratios []float64
	var bursts []usage
	for b.Loop() {
		var base, used usage
		if len(bursts)%2 == 0 {
			base, used = askBurst(b, baseline), askBurst(b, candidate)
		} else {
			used, base = askBurst(b, candidate), askBurst(b, baseline)
		}
		bursts, ratios = append(bursts, used), append(ratios, used.CPU/base.CPU)
	}
	values := func(of func(usage) float64) (v []float64) {
		for _, u := range bursts {
			v = append(v, of(u))
		}
		return v
	}
	report := func(unit string, of func(usage) float64) { b.ReportMetric(median(values(of)), unit) }
	cpu := func(u usage) float64 { return u.CPU }
	b.ReportAllocs()
	report("ns/op", func(u usage) float64 { return u.Wall })
	report("cpu-ns/op", cpu)
	b.ReportMetric(median(ratios), "x-base") // sorts them
	b.ReportMetric(median(ratios[:(len(ratios)+1)/2]), "x-low")
	b.ReportMetric(median(ratios[len(ratios)/2:]), "x-high")
	total := mean(values(cpu)) / 100
	b.ReportMetric(mean(values(func(u usage) float64 { return u.MarkBusy }))/total, "mark-%")
	b.ReportMetric(mean(values(func(u usage) float64 { return u.MarkIdle }))/total, "mark-idle-%")
	report("p50-ns", func(u usage) float64 { return u.Median })
	report("p99-ns", func(u usage) float64 { return u.P99 })
	report("allocs/op", func(u usage) float64 { return u.Allocs })
	report("B/op", func(u usage) float64 { return u.Bytes })
	b.ReportMetric(1000*mean(values(func(u usage) float64 { return u.Collections })), "gcs/kop")
}

// startService starts the service with an index in services, and warms it up.
func startService(b *testing.B, index int, setting collector) *childproc.Child {
	b.Helper()
	child := childproc.Start(b, roleService, nil)
	if answer := child.Ask("%d %d %s", index, setting.heap, setting.gogc); answer != "ready" {
		noResult(b, answer)
	}
	for range 2 {
		askBurst(b, child)
	}
	return child
}

func askBurst(b *testing.B, child *childproc.Child) (u usage) {
	b.Helper()
	require.NoError(b, json.Unmarshal([]byte(child.Ask("burst")), &u))
	return u
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}
