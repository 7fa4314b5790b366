// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/childproc"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// scenario is a way to work in spans.
type scenario struct {
	name     string
	capacity int // of the rings
	workers  int
	// work does the work of one request, over and over, on each of the workers.
	work func(*service)
	// noGoroutineSlots says that goroutine slots cannot know of all spans here.
	noGoroutineSlots bool
}

// service is what runs in the child.
type service struct {
	trace.Tracer

	client *http.Client
	url    string
}

const defaultCapacity = 65536

var scenarios = []scenario{
	{name: "a blocking call", capacity: defaultCapacity, workers: 8, work: blocking},
	{name: "a blocking call in a child span", capacity: defaultCapacity, workers: 8, work: blockingChild},
	{name: "keep-alive connections", capacity: defaultCapacity, workers: 8, work: (*service).get},
	{name: "a goroutine started inside", capacity: defaultCapacity, workers: 4, work: started, noGoroutineSlots: true},
	{name: "a goroutine by spanctx.Go", capacity: defaultCapacity, workers: 4, work: attached},
	{name: "End on another goroutine", capacity: defaultCapacity, workers: 4, work: endElsewhere},
	{name: "64 slots, 256 goroutines", capacity: 64, workers: 256, work: blocking, noGoroutineSlots: true},
	{name: "4 slots, 16 goroutines", capacity: 4, workers: 16, work: blocking, noGoroutineSlots: true},
}

// block gives the thread to others.
func block() { time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond) }

func none() { burn(trace.SpanContext{}) }

func blocking(s *service) {
	none()
	_, span := s.Start(context.Background(), "request")
	burn(span.SpanContext())
	block()
	burn(span.SpanContext())
	span.End()
	none()
	block()
}

func blockingChild(s *service) {
	none()
	ctx, span := s.Start(context.Background(), "request")
	burn(span.SpanContext())
	_, child := s.Start(ctx, "query")
	burn(child.SpanContext())
	block()
	child.End()
	burn(span.SpanContext())
	span.End()
	none()
	block()
}

// get is the client's half; handle is the server's.
func (s *service) get() {
	none()
	r, err := s.client.Get(s.url)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
}

func handle(_ http.ResponseWriter, r *http.Request) {
	sc := trace.SpanContextFromContext(r.Context())
	burn(sc)
	block()
	burn(sc)
}

func started(s *service) {
	none()
	_, span := s.Start(context.Background(), "request")
	var wg sync.WaitGroup
	wg.Go(func() {
		burn(span.SpanContext())
		block()
		burn(span.SpanContext())
	})
	burn(span.SpanContext())
	wg.Wait()
	span.End()
	none()
}

func attached(s *service) {
	none()
	ctx, span := s.Start(context.Background(), "request")
	done := make(chan struct{})
	spanctx.Go(ctx, func(ctx context.Context) {
		defer close(done)
		burn(trace.SpanContextFromContext(ctx))
		block()
		burn(trace.SpanContextFromContext(ctx))
	})
	burn(span.SpanContext())
	<-done
	span.End()
	none()
}

// enders end spans that others have started.
var enders = sync.OnceValue(func() chan<- func() {
	ends := make(chan func())
	for range 2 {
		go func() {
			for end := range ends {
				none()
				end()
				none()
			}
		}()
	}
	return ends
})

func endElsewhere(s *service) {
	ends := enders() // before there is a span that they could inherit
	none()
	_, span := s.Start(context.Background(), "request")
	burn(span.SpanContext())
	ended := make(chan struct{})
	ends <- func() {
		span.End()
		close(ended)
	}
	<-ended
	none()
	none()
}

// facts are the offsets that the parent needs.
var facts = []goruntime.Fact{goruntime.MCurg, goruntime.GGoid, goruntime.GLabels}

// run is the child: it works in the scenario whose number it is told, until it is told
// no more.
func run(parent *childproc.Parent) {
	line, _ := parent.Receive()
	number, err := strconv.Atoi(line)
	parent.Must(err)
	sc := scenarios[number]
	runtime.GOMAXPROCS(4) // more than processors, so that goroutines change threads

	pub, err := resourcepublisher.NewPublisher(nil)
	parent.Must(err)
	p, err := spanctx.NewSpanProcessor(spanctx.WithGoroutineSlots(true), spanctx.WithCapacity(sc.capacity))
	if errors.Is(err, errors.ErrUnsupported) {
		parent.Send("unsupported: %v", err)
		return
	}
	parent.Must(err)
	parent.Must(p.Err())
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	server := httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(handle), "request",
		otelhttp.WithTracerProvider(tp)))
	s := &service{
		Tracer: tp.Tracer("accuracy"),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: sc.workers}},
		url:    server.URL,
	}
	for range sc.workers {
		go func() {
			for {
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
	parent.Send("%d %d %d %d", append([]any{cellsAddress()}, offsets...)...)
	parent.Receive()
	parent.Must(p.Shutdown(context.Background()))
	parent.Must(pub.Shutdown(context.Background()))
}
