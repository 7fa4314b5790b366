// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"crypto/sha256"
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

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

const roleService = "service"

// order is what the service is told when it starts.
type order struct {
	// Directory is where its ledger and its socket are to be.
	Directory string
	// Capacity is how many slots each ring has.
	Capacity int
}

const ledgerName = "ledger"

// report is what the service says of itself.
type report struct {
	// Heap is what was live at the last garbage collection, in bytes.
	Heap, Goroutines uint64
	// Collections is how many garbage collections there have been.
	Collections uint64
	// Requests have been answered, Failed have not. Slowest is how long the slowest took.
	Requests, Failed uint64
	Slowest          time.Duration
	// Spans have been started, Exported has those that were exported, and Correlated
	// those of them with stack traces that a profiler has told of.
	Spans, Exported, Correlated uint64
	// Without says why the Universal Profiling integration is off, or "".
	Without string
	Stats   universalprofiling.Stats
	// Errors are the first ones that went to otel.Handle, Handled counts them all.
	Errors  []string
	Handled uint64
}

// clients is how many send requests at a time.
const clients = 8

// service is an HTTP service that publishes all it can, and its own clients.
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
	// ends has what ender is to do, and jobs what worker is.
	ends, jobs chan func()
	// over says that no more requests are wanted. load is what sends them, and rest
	// what requests have left behind. pool are the goroutines of ends and jobs.
	over             atomic.Bool
	load, rest, pool sync.WaitGroup

	requests, failed atomic.Uint64
	slowest          atomic.Int64
}

// serve is the service's role. It reads an order, answers "serving" and serves, under
// its own load, until it is told to be quiet. It answers
//
//   - "update N", when that generation of the resource is published, by "updated"
//   - "report" by a report in JSON
//   - "quiet", when there is no request and no span left, by "quiet"
//   - "shutdown", when its provider is shut down, by "down"
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

// newService starts a service.
func newService(o order) (*service, error) {
	s := &service{exporter: new(exporter), ends: make(chan func()), jobs: make(chan func())}
	otel.SetErrorHandler(&s.handled)
	var err error
	if s.ledger, err = openLedger(filepath.Join(o.Directory, ledgerName)); err != nil {
		return nil, err
	}
	s.integration, err = universalprofiling.New(
		universalprofiling.WithMode(universalprofiling.Enabled), universalprofiling.WithSocketDir(o.Directory),
		universalprofiling.WithResource(generation(0)),
	)
	if errors.Is(err, errors.ErrUnsupported) {
		s.without = err.Error()
	} else if err != nil {
		return nil, err
	}
	s.provider = sdktrace.NewTracerProvider(
		sdktrace.WithIDGenerator(s.ledger),
		scopedattr.WithSampler(nil),
		resourcepublisher.WithResource(generation(0)),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
		spanctx.WithPublishing(
			spanctx.WithGoroutineTable(true), spanctx.WithAttributeKeys(laneKey), spanctx.WithSlotCapacity(o.Capacity),
		),
		sdktrace.WithSpanProcessor(s.integration),
		sdktrace.WithBatcher(s.integration.NewExporter(s.exporter)),
		// Last: a span that it says has ended is not shown any more.
		sdktrace.WithSpanProcessor(s.ledger),
	)
	if err := resourcepublisher.SetAttributes(publication(0)...); err != nil {
		return nil, err
	}
	s.Tracer = s.provider.Tracer("soak")
	return s, s.start()
}

// start starts the server and its load.
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
	s.server = &http.Server{Handler: inLane(otelhttp.NewHandler(mux, "request", instrumentation...)), ReadHeaderTimeout: time.Minute}
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

// lanes is how many values laneKey has.
const lanes = 4

// inLane sets context-scoped attributes for most requests.
func inLane(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lane := rand.IntN(lanes + 1); lane > 0 {
			r = r.WithContext(scopedattr.ContextWithAttributes(r.Context(), attribute.String(laneKey, fmt.Sprintf("lane-%d", lane))))
		}
		next.ServeHTTP(w, r)
	})
}

// ask sends requests one after the other, each in a span, and pauses in between.
func (s *service) ask(client int) {
	paths := make([]string, 0, len(s.paths()))
	for path := range s.paths() {
		paths = append(paths, path)
	}
	for n := client; !s.over.Load(); n++ {
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

// paths are the ways to work in spans.
func (s *service) paths() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"/children":  s.children,
		"/started":   s.started,
		"/attached":  s.attached,
		"/elsewhere": s.elsewhere,
	}
}

// children blocks in one child and keeps the processor busy in another.
func (s *service) children(_ http.ResponseWriter, r *http.Request) {
	_, query := s.Start(r.Context(), "query")
	block()
	query.End()
	_, digests := s.Start(r.Context(), "digests")
	burn()
	digests.End()
}

// started leaves a goroutine behind that was started in the span and outlives it.
func (s *service) started(_ http.ResponseWriter, r *http.Request) {
	_, span := s.Start(r.Context(), "started")
	ended, done := make(chan struct{}), make(chan struct{})
	s.rest.Go(func() {
		burn()
		close(done)
		<-ended
		burn()
	})
	block()
	<-done
	span.End()
	close(ended)
}

// attached has others work for the span: a goroutine of its own, and one of a pool.
func (s *service) attached(_ http.ResponseWriter, r *http.Request) {
	var working sync.WaitGroup
	working.Add(2)
	spanctx.Go(r.Context(), func(context.Context) {
		defer working.Done()
		burn()
		block()
		burn()
	})
	s.jobs <- func() {
		defer working.Done()
		defer spanctx.Attach(r.Context()).Detach()
		burn()
	}
	burn()
	working.Wait()
}

// elsewhere has a span end on another goroutine.
func (s *service) elsewhere(_ http.ResponseWriter, r *http.Request) {
	_, span := s.Start(r.Context(), "elsewhere")
	burn()
	ended := make(chan struct{})
	s.ends <- func() {
		span.End()
		close(ended)
	}
	<-ended
	burn()
}

// block gives the thread to others.
func block() { time.Sleep(rand.N(2 * time.Millisecond)) }

// burned keeps the compiler from finding out that nothing comes of it.
var burned atomic.Uint32

// burn takes some hundred microseconds.
func burn() {
	data := make([]byte, 32<<10)
	for range 4 {
		sum := sha256.Sum256(data)
		copy(data, sum[:])
	}
	burned.Store(uint32(data[0]))
}

// quiet ends the load and waits until nobody works any more.
func (s *service) quiet() error {
	s.over.Store(true)
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

// exporter counts what it is given.
type exporter struct{ spans, correlated atomic.Uint64 }

// ExportSpans is called by OpenTelemetry.
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

// Generations of the resource are numbered, and every byte of one follows from its
// number. generationKey has the number, and fillerKey as much text as the number asks
// for. So have the attributes beside the resource.
const (
	generationKey = "soak.generation"
	fillerKey     = "soak.filler"
)

// filler returns the text of a generation, of up to 20,000 bytes.
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

// update publishes a generation: the resource, and then the attributes beside it.
func update(number int) error {
	if err := resourcepublisher.Current().Update(generation(number)); err != nil {
		return err
	}
	return resourcepublisher.SetAttributes(publication(number)...)
}
