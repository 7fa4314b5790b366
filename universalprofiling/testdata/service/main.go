// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command service starts and ends spans on dedicated threads. It reads orders from standard input,
// one per line, and answers each with a line.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/universalprofiling"
)

// actor is a goroutine that is locked to its thread.
type actor struct{ orders, answers chan string }

var tracer trace.Tracer

func main() {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}))
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(some{}),
		sdktrace.WithIDGenerator(&repeating{}),
		universalprofiling.WithIntegration(),
	)
	tracer = tp.Tracer("test")
	var actors []*actor
	fmt.Println("ready", runtime.Version())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		order, arg, _ := strings.Cut(in.Text(), " ")
		switch order {
		case "actor":
			a := &actor{make(chan string), make(chan string)}
			actors = append(actors, a)
			go a.act()
			fmt.Println(<-a.answers)
		case "change":
			n, _ := strconv.Atoi(arg)
			actors[n].orders <- order
			fmt.Println(<-actors[n].answers)
		case "spin":
			tid := make(chan int)
			go spin(tp.Tracer("spin"), tid)
			fmt.Println(<-tid)
		case "shutdown":
			if err := tp.Shutdown(context.Background()); err != nil {
				otel.Handle(err)
			}
			fmt.Println("shut down")
		}
	}
}

// spin starts and ends spans forever on its own thread.
func spin(tracer trace.Tracer, tid chan<- int) {
	runtime.LockOSThread()
	tid <- syscall.Gettid()
	for {
		_, span := tracer.Start(context.Background(), "spin")
		span.End()
	}
}

// repeating generates ids that reveal mixed-up records: the trace id of a local root is its span
// id, repeated twice.
type repeating struct{}

func (g *repeating) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id := g.NewSpanID(ctx, trace.TraceID{})
	return trace.TraceID(append(id[:], id[:]...)), id
}

func (*repeating) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], rand.Uint64()|1<<32)
	return id
}

// some is a sampler that samples half of the traces. It records all other spans without sampling
// them. Spans named "spin" are never sampled.
type some struct{}

func (some) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if p.TraceID[0]&1 == 0 && p.Name != "spin" {
		return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.RecordOnly}
}

func (some) Description() string { return "some" }

// act reports its thread id and then executes orders, each of which starts a span or ends the
// innermost one. After each order it answers with the span that must now be published: none, or its
// trace id, span id, transaction id and flags.
func (a *actor) act() {
	runtime.LockOSThread()
	a.answers <- strconv.Itoa(syscall.Gettid())
	type level struct {
		ctx  context.Context
		span trace.Span
	}
	var open []level
	for range a.orders {
		switch depth := len(open); {
		case depth == 0 || depth < 5 && rand.IntN(2) == 0:
			ctx := context.Background()
			if depth > 0 {
				ctx = open[depth-1].ctx
			}
			ctx, span := tracer.Start(ctx, "span")
			open = append(open, level{ctx, span})
		default:
			end := open[depth-1].span
			open = open[:depth-1]
			if rand.IntN(20) == 0 {
				// End the span on another goroutine. This clears the record of this thread, but
				// does not publish the parent, so end the outer spans, too.
				done := make(chan struct{})
				go func() { end.End(); close(done) }()
				<-done
				for _, l := range open {
					l.span.End()
				}
				open = nil
			} else {
				end.End()
			}
		}
		if len(open) == 0 {
			a.answers <- "nothing"
			continue
		}
		sc := open[len(open)-1].span.SpanContext()
		a.answers <- fmt.Sprintf("%s %s %s %d", sc.TraceID(), sc.SpanID(), open[0].span.SpanContext().SpanID(), sc.TraceFlags())
	}
}
