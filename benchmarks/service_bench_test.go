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
	"slices"
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
	// processor is the name of the configuration. baseline names the configuration to compare it with.
	processor, baseline string
	provider            func() (trace.TracerProvider, error)
}

var services = []service{
	{"noop", "noop", bySDK(sdktrace.WithSpanProcessor(noop))},
	{"none", "noop", bySDK()},
	{"slots", "noop", publishing(published["slots"]...)},
	{"gslots", "noop", publishing(published["gslots"]...)},
	{"record", "noop", publishing(published["record"]...)},
	{"default", "noop", publishing()},
	{"unnamed", "noop", publishing(spanctx.WithSpanNames(false))},
	{"grafana", "noop", func() (trace.TracerProvider, error) {
		return otelpyroscope.NewTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(noop))), nil
	}},
	// dd-trace-go implements OpenTelemetry's API with its own tracer, so the baseline is that tracer
	// without labels.
	{"datadog-unlabelled", "datadog-unlabelled", byDatadog(false)},
	{"datadog", "datadog-unlabelled", byDatadog(true)},
}

func bySDK(opts ...sdktrace.TracerProviderOption) func() (trace.TracerProvider, error) {
	return func() (trace.TracerProvider, error) {
		return sdktrace.NewTracerProvider(append(opts, sdktrace.WithResource(oteltest.Resource()))...), nil
	}
}

func publishing(opts ...spanctx.Option) func() (trace.TracerProvider, error) {
	return func() (trace.TracerProvider, error) {
		p, err := spanctx.NewSpanProcessor(opts...)
		if err != nil {
			return nil, err
		}
		provider, _ := bySDK(sdktrace.WithSpanProcessor(p))()
		return provider, p.Stats().Off
	}
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

// clients is the number of concurrent clients.
const clients = 4

// burst is the number of requests per measurement.
const burst = 400

// usage is the resource usage of a burst. Times are in nanoseconds.
type usage struct {
	Wall, CPU, Median, P99, Allocs, Bytes, Collections float64
}

// serveHTTP is the main function of the child process. The parent sends the name of the configuration
// and the value of GOGC, and then a line for each burst.
func serveHTTP(parent *childproc.Parent) {
	line, _ := parent.Receive()
	var (
		processor string
		gogc      int
	)
	_, err := fmt.Sscan(line, &processor, &gogc)
	parent.Must(err)
	debug.SetGCPercent(gogc)
	ballast = nil // Let the garbage collector run as in production, because its cost is measured, too.
	runtime.GC()
	i := slices.IndexFunc(services, func(s service) bool { return s.processor == processor })
	provider, err := services[i].provider()
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
	cpu, wall := cpuTime(), time.Now()
	var users sync.WaitGroup
	for part := range slices.Chunk(latencies, burst/clients) {
		users.Go(func() { send(part) })
	}
	users.Wait()
	u.Wall, u.CPU = float64(time.Since(wall))/burst, float64(cpuTime()-cpu)/burst
	runtime.ReadMemStats(&after)
	slices.Sort(latencies)
	u.Median, u.P99 = float64(latencies[burst/2]), float64(latencies[burst*99/100])
	u.Allocs, u.Bytes = float64(after.Mallocs-before.Mallocs)/burst, float64(after.TotalAlloc-before.TotalAlloc)/burst
	u.Collections = float64(after.NumGC-before.NumGC) / burst
	return u
}

// BenchmarkService alternately sends bursts of requests to two HTTP services, the candidate and its
// baseline. Each service is a process with its own heap. An operation is a request, which has six
// spans. The results are the candidate's:
//
//   - ns/op, the wall time, and cpu-ns/op, the CPU time of the whole process including clients: medians of the bursts;
//   - x-base, the candidate's CPU time as a multiple of the baseline's: the median of all pairs of bursts;
//   - p50-ns and p99-ns, the latency: medians of the bursts' percentiles;
//   - allocs/op and B/op: medians of the bursts;
//   - gcs/kop, the number of garbage collections per 1,000 requests.
func BenchmarkService(b *testing.B) {
	for _, gogc := range []int{100, 1000} {
		for _, s := range services {
			b.Run(fmt.Sprintf("gogc=%d/processor=%s", gogc, s.processor), func(b *testing.B) {
				baseline, candidate := startService(b, s.baseline, gogc), startService(b, s.processor, gogc)
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
				report := func(unit string, of func(usage) float64, average func([]float64) float64) {
					values := make([]float64, len(bursts))
					for i, u := range bursts {
						values[i] = of(u)
					}
					b.ReportMetric(average(values), unit)
				}
				b.ReportAllocs()
				report("ns/op", func(u usage) float64 { return u.Wall }, median)
				report("cpu-ns/op", func(u usage) float64 { return u.CPU }, median)
				b.ReportMetric(median(ratios), "x-base")
				report("p50-ns", func(u usage) float64 { return u.Median }, median)
				report("p99-ns", func(u usage) float64 { return u.P99 }, median)
				report("allocs/op", func(u usage) float64 { return u.Allocs }, median)
				report("B/op", func(u usage) float64 { return u.Bytes }, median)
				report("gcs/kop", func(u usage) float64 { return 1000 * u.Collections }, mean)
			})
		}
	}
}

// startService starts a service and warms it up.
func startService(b *testing.B, processor string, gogc int) *childproc.Child {
	b.Helper()
	child := childproc.Start(b, roleService, nil)
	if answer := child.Ask("%s %d", processor, gogc); answer != "ready" {
		noResult(b, answer)
	}
	for range 3 {
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
