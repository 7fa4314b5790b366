// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

const roleService = "service"

// order configures the service. It is the first line that the service receives, in JSON.
type order struct {
	// Directory is the directory for the ledger and the socket.
	Directory string
	// Capacity is the number of thread slots.
	Capacity int
}

const ledgerName = "ledger"

// report is the service's answer to the command "report".
type report struct {
	// Heap is the live heap at the last garbage collection, in bytes.
	Heap, Goroutines uint64
	Collections      uint64
	// Requests counts answered requests. Failed counts failed requests and failed writes to the
	// ledger.
	Requests, Failed uint64
	Slowest          time.Duration
	// Spans counts started spans, Exported counts exported spans, and Correlated counts exported
	// spans with stack traces from a profiler.
	Spans, Exported, Correlated uint64
	// Without is the reason why the integration for Universal Profiling is off, or "" if it is on.
	Without string
	Stats   universalprofiling.Stats
	// Errors holds the first errors reported to otel.Handle. Handled counts all of them.
	Errors  []string
	Handled uint64
}

const clients = 8

// service is an HTTP service with its own clients. It publishes its resource, its spans through
// every carrier, and thread records for Universal Profiling.
type service struct {
	trace.Tracer

	provider    *sdktrace.TracerProvider
	ledger      *ledger
	integration *universalprofiling.Integration
	without     string
	exporter    *exporter
	handled     oteltest.Errors
	errs        []error // of handled

	server *http.Server
	client *http.Client
	url    string
	// ends and jobs pass functions to the goroutines in pool.
	ends, jobs chan func()
	// stopping tells the clients to stop, and load waits for them. rest waits for goroutines
	// that outlive their request.
	stopping         atomic.Bool
	load, rest, pool sync.WaitGroup

	requests, failed atomic.Uint64
	slowest          atomic.Int64
}

// serve is the main function of the service's process. It receives an order, starts the service and its clients, and
// answers "serving". Then it executes commands:
//
//   - "update N" publishes generation N of the resource, and answers "updated"
//   - "report" answers with a report in JSON
//   - "quiet" stops the clients, waits until all requests and spans have ended, and answers "quiet"
//   - "shutdown" shuts the provider down, and answers "down"
func serve(parent *childproc.Parent) {
	var o order
	line, _ := parent.Receive()
	parent.Must(json.Unmarshal([]byte(line), &o))
	s, err := newService(o)
	parent.Must(err)
	parent.Send("serving")
	for {
		line, ok := parent.Receive()
		var number int
		switch _, err := fmt.Sscanf(line, "update %d", &number); {
		case !ok:
			return
		case err == nil:
			parent.Must(update(number))
			parent.Send("updated")
		case line == "report":
			b, err := json.Marshal(s.report())
			parent.Must(err)
			parent.Send("%s", b)
		case line == "quiet":
			parent.Must(s.quiet())
			parent.Send("quiet")
		case line == "shutdown":
			parent.Must(s.provider.Shutdown(context.Background()))
			parent.Send("down")
		}
	}
}

func newService(o order) (*service, error) {
	s := &service{exporter: new(exporter), ends: make(chan func()), jobs: make(chan func())}
	otel.SetErrorHandler(&s.handled)
	var err error
	if s.ledger, err = openLedger(filepath.Join(o.Directory, ledgerName)); err != nil {
		return nil, err
	}
	s.integration, err = universalprofiling.New(
		universalprofiling.WithMode(universalprofiling.ModeEnabled), universalprofiling.WithSocketDir(o.Directory),
		universalprofiling.WithResource(generation(0)),
	)
	if errors.Is(err, errors.ErrUnsupported) {
		s.without = err.Error()
	} else if err != nil {
		return nil, err
	}
	s.provider = sdktrace.NewTracerProvider(
		sdktrace.WithIDGenerator(s.ledger),
		resourcepublisher.WithResource(generation(0)),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
		spanctx.WithPublishing(spanctx.WithSlotCapacity(o.Capacity)),
		sdktrace.WithSpanProcessor(s.integration),
		sdktrace.WithBatcher(universalprofiling.NewExporter(s.exporter)),
		// The ledger is last, so that a span is no longer published when its end is recorded.
		sdktrace.WithSpanProcessor(s.ledger),
	)
	if err := resourcepublisher.SetAttributes(publication(0)...); err != nil {
		return nil, err
	}
	s.Tracer = s.provider.Tracer("soak")
	return s, s.start()
}

// start starts the server and its clients.
func (s *service) start() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.url = "http://" + listener.Addr().String()
	mux := http.NewServeMux()
	for path, handler := range s.paths() {
		mux.HandleFunc(path, handler)
	}
	instrumentation := []otelhttp.Option{
		otelhttp.WithTracerProvider(s.provider), otelhttp.WithPropagators(propagation.TraceContext{}),
	}
	s.server = &http.Server{Handler: otelhttp.NewHandler(mux, "request", instrumentation...), ReadHeaderTimeout: time.Minute}
	s.client = &http.Client{Transport: otelhttp.NewTransport(&http.Transport{MaxIdleConnsPerHost: clients}, instrumentation...)}
	go func() { _ = s.server.Serve(listener) }()
	for range 2 {
		s.pool.Go(func() { carryOut(s.ends) })
		s.pool.Go(func() { carryOut(s.jobs) })
	}
	for number := range clients {
		s.load.Go(func() { s.ask(number) })
	}
	return nil
}

func carryOut(jobs <-chan func()) {
	for job := range jobs {
		job()
	}
}

// ask sends requests one after the other, each in a span.
func (s *service) ask(client int) {
	paths := make([]string, 0, len(s.paths()))
	for path := range s.paths() {
		paths = append(paths, path)
	}
	for n := client; !s.stopping.Load(); n++ {
		begin := time.Now()
		if err := s.get(s.url + paths[n%len(paths)]); err != nil {
			s.failed.Add(1)
		} else {
			s.requests.Add(1)
		}
		for took := int64(time.Since(begin)); ; {
			if slowest := s.slowest.Load(); took <= slowest || s.slowest.CompareAndSwap(slowest, took) {
				break
			}
		}
		time.Sleep(rand.N(15 * time.Millisecond))
	}
}

func (s *service) get(url string) (err error) {
	ctx, span := s.Start(context.Background(), "client")
	defer span.End()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// paths returns the service's handlers by path. Each handler uses spans in a different way.
func (s *service) paths() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"/children":  s.children,
		"/started":   s.started,
		"/attached":  s.attached,
		"/elsewhere": s.elsewhere,
	}
}

// children blocks in a child span and works in another.
func (s *service) children(_ http.ResponseWriter, r *http.Request) {
	_, query := s.Start(r.Context(), "query")
	block()
	query.End()
	ctx, digests := s.Start(r.Context(), "digests")
	work(ctx)
	digests.End()
}

// started starts a goroutine in a span. The goroutine outlives the span.
func (s *service) started(_ http.ResponseWriter, r *http.Request) {
	ctx, span := s.Start(r.Context(), "started")
	ended, done := make(chan struct{}), make(chan struct{})
	s.rest.Go(func() {
		work(ctx)
		close(done)
		<-ended
		workPerhaps(r.Context()) // the request may end during this work
	})
	block()
	<-done
	span.End()
	close(ended)
}

// attached lets two other goroutines work in the request's span: a new one started by spanctx.Go,
// and one from a pool that attaches the span.
func (s *service) attached(_ http.ResponseWriter, r *http.Request) {
	var working sync.WaitGroup
	working.Add(2)
	spanctx.Go(r.Context(), func(context.Context) {
		defer working.Done()
		work(r.Context())
		block()
		work(r.Context())
	})
	s.jobs <- func() {
		defer working.Done()
		defer spanctx.Attach(r.Context()).Detach()
		work(r.Context())
	}
	work(r.Context())
	working.Wait()
}

// elsewhere lets another goroutine end a span.
func (s *service) elsewhere(_ http.ResponseWriter, r *http.Request) {
	ctx, span := s.Start(r.Context(), "elsewhere")
	work(ctx)
	ended := make(chan struct{})
	s.ends <- func() {
		span.End()
		close(ended)
	}
	<-ended
	work(r.Context())
}

// block blocks for a moment, so that other goroutines use the thread.
func block() { time.Sleep(rand.N(2 * time.Millisecond)) }

// mayBeMissing is the lowest bit of the number that work puts on the stack. It means that a sample may lack the span,
// because the span may end during the work. The other bits are the span's number in the ledger.
const mayBeMissing = 1

func onStack(ctx context.Context) uint64 {
	return numberOf(trace.SpanContextFromContext(ctx).SpanID()) << 1 % stacknumber.Max
}

func work(ctx context.Context)        { stacknumber.Burn(onStack(ctx), nil) }
func workPerhaps(ctx context.Context) { stacknumber.Burn(onStack(ctx)|mayBeMissing, nil) }

// quiet stops the clients, and waits until all requests and spans have ended.
func (s *service) quiet() error {
	s.stopping.Store(true)
	s.load.Wait()
	s.rest.Wait()
	err := s.server.Shutdown(context.Background())
	close(s.ends)
	close(s.jobs)
	s.pool.Wait()
	return err
}

func (s *service) report() report {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/sched/goroutines:goroutines"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	r := report{
		Heap: samples[0].Value.Uint64(), Goroutines: samples[1].Value.Uint64(), Collections: samples[2].Value.Uint64(),
		Requests: s.requests.Load(), Failed: s.failed.Load() + s.ledger.failed.Load(), Slowest: time.Duration(s.slowest.Load()),
		Spans: s.ledger.last.Load(), Exported: s.exporter.spans.Load(), Correlated: s.exporter.correlated.Load(),
		Without: s.without, Stats: s.integration.Stats(),
	}
	s.errs = append(s.errs, s.handled.Take()...)
	r.Handled = uint64(len(s.errs))
	const most = 10
	for _, err := range s.errs[:min(len(s.errs), most)] {
		r.Errors = append(r.Errors, err.Error())
	}
	return r
}

type exporter struct{ spans, correlated atomic.Uint64 }

func (e *exporter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.spans.Add(uint64(len(spans)))
	for _, span := range spans {
		for _, kv := range span.Attributes() {
			if kv.Key == "elastic.profiler_stack_trace_ids" {
				e.correlated.Add(1)
			}
		}
	}
	return nil
}

// Shutdown does nothing.
func (*exporter) Shutdown(context.Context) error { return nil }

// The resource has numbered generations. The attribute generationKey holds the number, and fillerKey
// holds a text that depends only on the number, so that a mix of two generations is detected. The
// attributes published outside of the resource have the same two keys.
const (
	generationKey = "soak.generation"
	fillerKey     = "soak.filler"
)

// filler returns the text of a generation, at most 20,000 bytes.
func filler(number int) string {
	const longest, step, period = 20_000, 1237, 16
	return strings.Repeat(fmt.Sprintf("%06d.", number), longest/7)[:(number%period*step)%longest]
}

// publication returns the attributes of a generation.
func publication(number int) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.Int(generationKey, number), attribute.String(fillerKey, filler(number))}
}

// generation returns the resource of a generation.
func generation(number int) *resource.Resource {
	return resource.NewSchemaless(append(publication(number),
		attribute.String("service.name", "soak"), attribute.Int("process.pid", os.Getpid()))...)
}

// update publishes a generation: first the resource, then the attributes outside of it.
func update(number int) error {
	if err := resourcepublisher.Current().Update(generation(number)); err != nil {
		return err
	}
	return resourcepublisher.SetAttributes(publication(number)...)
}
