// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	otelpyroscope "github.com/grafana/otel-profiling-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// service is the environment that all patterns share: a provider, and goroutines outside of spans.
type service struct {
	provider   trace.TracerProvider
	sdk        *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	started    *started
	// outside runs functions on goroutines that were started outside of all spans.
	outside worker

	// another is a second provider, which is still in use after sdk was shut down.
	another     *sdktrace.TracerProvider
	shutDownOne sync.Once
}

// publication is a way in which the service publishes its spans. The flag -publish selects it by name.
type publication struct {
	name    string
	options []spanctx.Option
	// noTable says that readers do not find the goroutine table.
	noTable bool
	// labels says that goroutines in spans have pprof labels with the span's ids.
	labels bool
	// peer says that grafana/otel-profiling-go publishes spans as labels, and otelctx publishes none.
	peer bool
}

var publications = []publication{
	{name: "default", labels: true},
	{name: "record", options: []spanctx.Option{spanctx.WithThreadSlots(false)}, noTable: true, labels: true},
	{name: "goroutine_table", options: []spanctx.Option{spanctx.WithLabels(spanctx.LabelsOff), spanctx.WithThreadSlots(false)}},
	{name: "thread_slots", options: []spanctx.Option{spanctx.WithLabels(spanctx.LabelsOff)}, noTable: true},
	{name: "datadog", options: []spanctx.Option{spanctx.WithLabels(spanctx.LabelsOff), spanctx.WithDatadogLayout()}, noTable: true},
	{name: "grafana", options: []spanctx.Option{spanctx.WithLabels(spanctx.LabelsOff)}, labels: true, peer: true},
}

const publishUsage = "how spans are published: default, one carrier alone (record, goroutine_table, thread_slots, or datadog for thread slots of layout 1), " +
	"or grafana for labels by grafana/otel-profiling-go"

func publicationOf(name string) (publication, error) {
	if i := slices.IndexFunc(publications, func(p publication) bool { return p.name == name }); i >= 0 {
		return publications[i], nil
	}
	return publication{}, fmt.Errorf("invalid -publish %q: use default, record, goroutine_table, thread_slots, datadog, grafana", name)
}

// seenBy reports whether an observer can see spans of the publication. otelctx record sees what
// otelctx publishes; other observers need labels.
func (p publication) seenBy(o observer) bool {
	if o.name == "record" {
		return !p.peer
	}
	return p.labels
}

// newService starts the service. No span may be active.
func newService(publish publication) *service {
	sampler := sdktrace.ParentBased(sdktrace.AlwaysSample()) // sample root spans; other spans follow their parent
	s := &service{
		started:    newStarted(),
		propagator: propagation.TraceContext{},
		outside:    make(worker),
	}
	s.sdk = sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "scoreboard"))),
		spanctx.WithPublishing(publish.options...),
		sdktrace.WithSpanProcessor(s.started),
		sdktrace.WithSampler(sampler),
	)
	if publish.noTable {
		advertise.HideGoroutineTable()
	}
	s.provider = s.sdk
	if publish.peer {
		// Keep the provider above: it advertises where readers find goroutines' labels.
		s.sdk = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.started), sdktrace.WithSampler(sampler))
		s.provider = otelpyroscope.NewTracerProvider(s.sdk, otelpyroscope.WithSpanIDLabelScope(otelpyroscope.ScopeAllSpans))
	}
	s.tracer = s.provider.Tracer("scoreboard")
	for range 3 {
		go s.outside.loop()
	}
	return s
}

func (s *service) close() {
	close(s.outside)
	must(s.sdk.Shutdown(context.Background()))
}

// started is a span processor that remembers the last span of each name, because some libraries do
// not provide the context of the spans that they start. It also remembers which spans have ended,
// and therefore comes after the processor that publishes.
type started struct {
	mu   sync.Mutex
	last map[string]trace.SpanContext
	// ended is a ring of the last spans that ended.
	ended [256]trace.SpanID
	ends  int
	// anyEnd is signalled when a span ends.
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

// named returns the span that was the last to start with this name.
func (s *started) named(name string) trace.SpanContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[name]
}

func (s *started) OnEnd(span sdktrace.ReadOnlySpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[s.ends%len(s.ended)] = span.SpanContext().SpanID()
	s.ends++
	s.anyEnd.Broadcast()
}

// awaitEnd waits until a span has ended. If too many spans have ended since, it waits forever.
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
