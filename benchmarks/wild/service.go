// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// service is what all patterns share: a provider that publishes, and the servers and
// databases of a usual service.
type service struct {
	provider   *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	started    *started
	// orders are done by goroutines that were started outside of all spans.
	orders chan func()

	// another is a provider that outlives the Shutdown of the first one.
	another     *sdktrace.TracerProvider
	shutDownOne sync.Once
}

// publications are the choices of -publish: which carriers the service has.
var publications = map[string][]spanctx.Option{
	"default":         nil,
	"thread_slots":    {spanctx.WithGoroutineRecord(false), spanctx.WithGoroutineTable(false)},
	"goroutine_table": {spanctx.WithGoroutineRecord(false), spanctx.WithThreadSlots(false)},
	"record":          {spanctx.WithThreadSlots(false), spanctx.WithGoroutineTable(false)},
	"small":           {spanctx.WithSlotCapacity(64)}, // fewer slots than goroutines
}

// newService starts the service, outside of all spans.
func newService(opts ...spanctx.Option) *service {
	s := &service{
		started:    newStarted(),
		propagator: propagation.TraceContext{},
		orders:     make(chan func()),
	}
	s.provider = sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "wild"))),
		spanctx.WithPublishing(opts...),
		sdktrace.WithSpanProcessor(s.started),
		// The default makes root spans unsampled that say so, and nothing else.
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
	)
	s.tracer = s.provider.Tracer("wild")
	for range 3 {
		go func() {
			for order := range s.orders {
				order()
			}
		}()
	}
	return s
}

// close ends what newService has started.
func (s *service) close() {
	close(s.orders)
	must(s.provider.Shutdown(context.Background()))
}

// started keeps the last span of each name, for libraries that start spans whose context
// is nobody's, and which spans have ended. It comes after the processor that publishes.
type started struct {
	mu   sync.Mutex
	last map[string]trace.SpanContext
	// ended are the last ones, in a ring.
	ended [256]trace.SpanID
	ends  int
	// anyEnd is signalled at each end.
	anyEnd *sync.Cond
}

func newStarted() *started {
	s := &started{last: map[string]trace.SpanContext{}}
	s.anyEnd = sync.NewCond(&s.mu)
	return s
}

func (s *started) OnStart(_ context.Context, span sdktrace.ReadWriteSpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[span.Name()] = span.SpanContext()
}

// named returns the last span with a name.
func (s *started) named(name string) trace.SpanContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[name]
}

// OnEnd keeps which spans have ended.
func (s *started) OnEnd(span sdktrace.ReadOnlySpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[s.ends%len(s.ended)] = span.SpanContext().SpanID()
	s.ends++
	s.anyEnd.Broadcast()
}

// awaitEnd waits until a span has ended, not long ago.
func (s *started) awaitEnd(span trace.SpanID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !slices.Contains(s.ended[:], span) {
		s.anyEnd.Wait()
	}
}

// Shutdown does nothing.
func (*started) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (*started) ForceFlush(context.Context) error { return nil }
