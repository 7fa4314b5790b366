// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	otelpyroscope "github.com/grafana/otel-profiling-go"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// scenario is a way to work in spans.
type scenario struct {
	name     string
	capacity int // of the rings, 0 for the usual one
	workers  int
	// work does the work of one request, over and over, on each of the workers.
	work func(*service)
	// noGoroutineTable says that goroutine table cannot know of all spans here.
	noGoroutineTable bool
	// ours says that it takes a function of spanctx.
	ours bool
	// brief are the numbers of the publications that otelctx record is measured with here,
	// unless it is asked for more.
	brief []int
}

// service is what runs in the child.
type service struct {
	trace.Tracer
	truth

	client *http.Client
	url    string
	// served is how many requests have been answered.
	served atomic.Uint64
	// ends has what ender is to do.
	ends chan func()
	// over says that no more requests are wanted.
	over atomic.Bool
}

var scenarios = []scenario{
	{name: "HTTP, concurrency 1", workers: 1, work: (*service).get},
	{name: "HTTP, concurrency 8", workers: 8, work: (*service).get},
	{name: "HTTP, concurrency 64", workers: 64, work: (*service).get},
	{name: "HTTP, concurrency 1, child spans", workers: 1, work: (*service).getChild},
	{name: "HTTP, concurrency 8, child spans", workers: 8, work: (*service).getChild, brief: []int{byDefault}},
	{name: "HTTP, concurrency 64, child spans", workers: 64, work: (*service).getChild},
	{name: "a goroutine started inside", workers: 4, work: (*service).start, noGoroutineTable: true, brief: []int{2}},
	{name: "a goroutine by spanctx.Go", workers: 4, work: (*service).attach, ours: true},
	{name: "End on another goroutine", workers: 4, work: (*service).endElsewhere, brief: []int{1, 2}},
	{name: "64 slots, 256 goroutines", capacity: 64, workers: 256, work: (*service).request, noGoroutineTable: true},
	{name: "4 slots, 16 goroutines", capacity: 4, workers: 16, work: (*service).request, noGoroutineTable: true, brief: []int{0, 4}},
}

// busiest is the number of the scenario that costs are measured in.
const busiest = 4

// block gives the thread to others.
func block() { time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond) }

// burnFor burns in the span of ctx.
func (s *service) burnFor(ctx context.Context) { s.burn(trace.SpanContextFromContext(ctx)) }

// burnForNone burns outside of all spans.
func (s *service) burnForNone() { s.burn(trace.SpanContext{}) }

// request is a request without a network.
func (s *service) request() {
	s.burnForNone()
	ctx, span := s.Start(context.Background(), "request")
	s.handle(nil, new(http.Request).WithContext(ctx))
	span.End()
	s.burnForNone()
	block()
}

// childPath is where child spans are.
const childPath = "/child"

func (s *service) get()      { s.ask("") }
func (s *service) getChild() { s.ask(childPath) }

// ask is the client's half of a request over the network; handle and handleChild are the
// server's.
func (s *service) ask(path string) {
	s.burnForNone()
	r, err := s.client.Get(s.url + path)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	s.served.Add(1)
}

// handle blocks once.
func (s *service) handle(_ http.ResponseWriter, r *http.Request) {
	s.burnFor(r.Context())
	block()
	s.burnFor(r.Context())
}

// handleChild blocks once, at the end of a child span.
func (s *service) handleChild(_ http.ResponseWriter, r *http.Request) {
	s.burnFor(r.Context())
	ctx, child := s.Start(r.Context(), "query")
	s.burnFor(ctx)
	block()
	child.End()
	s.burnFor(r.Context())
}

// start starts a goroutine that works in the span, and goes on after its end.
func (s *service) start() {
	s.burnForNone()
	ctx, span := s.Start(context.Background(), "request")
	done, ended := make(chan struct{}), make(chan struct{})
	var rest sync.WaitGroup
	rest.Go(func() {
		s.burnFor(ctx)
		block()
		s.burnFor(ctx)
		close(done)
		<-ended
		s.burnForNone()
	})
	s.burnFor(ctx)
	<-done
	span.End()
	close(ended)
	s.burnForNone()
	rest.Wait()
}

func (s *service) attach() {
	s.burnForNone()
	ctx, span := s.Start(context.Background(), "request")
	done := make(chan struct{})
	spanctx.Go(ctx, func(ctx context.Context) {
		defer close(done)
		s.burnFor(ctx)
		block()
		s.burnFor(ctx)
	})
	s.burnFor(ctx)
	<-done
	span.End()
	s.burnForNone()
}

// ender ends spans that others have started.
func (s *service) ender() {
	for end := range s.ends {
		s.burnForNone()
		end()
		s.burnForNone()
	}
}

func (s *service) endElsewhere() {
	s.burnForNone()
	ctx, span := s.Start(context.Background(), "request")
	s.burnFor(ctx)
	ended := make(chan struct{})
	s.ends <- func() {
		span.End()
		close(ended)
	}
	<-ended
	s.burnForNone()
	s.burnForNone()
}

// publication is a choice of carriers.
type publication struct {
	name    string
	options []spanctx.Option
	// exact says that no span may be missed, but for scenario.noGoroutineTable if
	// slots are all there is; proven, that none may be wrong.
	exact, slots, proven bool
	// labels says that goroutines get labels, peer that grafana/otel-profiling-go is who
	// sets them, and nobody else publishes spans.
	labels, peer bool
}

var publications = []publication{
	{name: "thread slots, owner checked", options: []spanctx.Option{spanctx.WithGoroutineRecord(false), spanctx.WithGoroutineTable(false)}, proven: true},
	{
		name: "goroutine table", exact: true, slots: true, proven: true,
		options: []spanctx.Option{
			spanctx.WithThreadSlots(false), spanctx.WithGoroutineRecord(false), spanctx.WithGoroutineTable(true),
		},
	},
	{name: "goroutine record", options: []spanctx.Option{spanctx.WithThreadSlots(false), spanctx.WithGoroutineTable(false)}, exact: true, proven: true, labels: true},
	{name: "default", exact: true, proven: true, labels: true},
	{
		name:    "thread slots of layout 1, unproven",
		options: []spanctx.Option{spanctx.WithGoroutineRecord(false), spanctx.WithGoroutineTable(false), spanctx.WithDatadogLayout()},
	},
	// Its process says where goroutines keep their labels, and has no records.
	{name: "grafana/otel-profiling-go", options: []spanctx.Option{spanctx.WithGoroutineRecord(false)}, labels: true, peer: true},
	{name: "all", options: []spanctx.Option{spanctx.WithGoroutineTable(true)}},
}

// byDefault and all are the numbers of publications. One is of the usual carriers, the
// other of all that go together, which the recorder is not asked to tell apart.
const (
	byDefault = 3
	all       = 6
)

// facts are the offsets that who stops the child needs.
var facts = []goruntime.Fact{goruntime.MCurg, goruntime.GGoid, goruntime.GLabels}

// run is the child. It is told the numbers of a scenario and of a publication, and the file
// for the truth that its stack tells. "-" stands for the truth that it notes. It answers
// where the cells and the facts are. Then it works in the scenario until it is told no more
// or "write", which it answers when the file is written. It answers "used" by how many
// requests it has answered, and how many nanoseconds of CPU time and of time it has used.
func run(parent *childproc.Parent) {
	var (
		number, carriers int
		path             string
	)
	line, _ := parent.Receive()
	_, err := fmt.Sscan(line, &number, &carriers, &path)
	parent.Must(err)
	var (
		t    truth = noted{}
		told *spelled
	)
	if path != "-" {
		told = new(spelled)
		t = told
	}
	runtime.GOMAXPROCS(4) // more than processors, so that goroutines change threads

	pub, err := resourcepublisher.NewPublisher(nil)
	parent.Must(err)
	sc := scenarios[number]
	options := publications[carriers].options
	if sc.capacity != 0 {
		options = append(options, spanctx.WithSlotCapacity(sc.capacity))
	}
	p, err := spanctx.NewSpanProcessor(options...)
	if errors.Is(err, errors.ErrUnsupported) {
		parent.Send("unsupported: %v", err)
		return
	}
	parent.Must(err)
	parent.Must(p.Err())
	tp := trace.TracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p)))
	if publications[carriers].peer {
		// Spans that no processor is given are not recorded.
		tp = otelpyroscope.NewTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(oteltest.SpanProcessor{})),
			otelpyroscope.WithSpanIDLabelScope(otelpyroscope.ScopeAllSpans))
	}
	s := newService(tp, t, sc.workers)
	for range sc.workers {
		go func() {
			for !s.over.Load() {
				sc.work(s)
			}
		}()
	}
	offsets := make([]any, len(facts))
	for i, f := range facts {
		offset, err := goruntime.Calibrate().Offset(f)
		parent.Must(err)
		offsets[i] = offset
	}
	begin := time.Now()
	parent.Send("%d %d %d %d", append([]any{cellsAddress()}, offsets...)...)
	for {
		switch line, ok := parent.Receive(); {
		case !ok:
			s.over.Store(true)
			parent.Must(p.Shutdown(context.Background()))
			parent.Must(pub.Shutdown(context.Background()))
			return
		case line == "write":
			s.over.Store(true)
			parent.Must(told.write(path))
			parent.Send("written")
		case line == "used":
			var u syscall.Rusage
			parent.Must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
			parent.Send("%d %d %d", s.served.Load(), u.Utime.Nano()+u.Stime.Nano(), time.Since(begin))
		}
	}
}

// newService returns a service with a server, for so many workers. There are no spans
// yet that its goroutines could inherit.
func newService(tp trace.TracerProvider, t truth, workers int) *service {
	s := &service{
		Tracer: tp.Tracer("accuracy"),
		truth:  t,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}},
		ends:   make(chan func()),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.handle)
	mux.HandleFunc(childPath, s.handleChild)
	s.url = httptest.NewServer(otelhttp.NewHandler(mux, "request", otelhttp.WithTracerProvider(tp))).URL
	for range 2 {
		go s.ender()
	}
	return s
}
