// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// setups are the ways to set up a TracerProvider whose resource and spans are published.
var setups = map[string]func(t *testing.T, service string) options{
	"options": func(_ *testing.T, service string) options {
		return options{resourcepublisher.WithResource(named(service)), spanctx.WithPublishing()}
	},
	"options, Current": func(_ *testing.T, service string) options {
		return options{
			resourcepublisher.WithResource(named(service)), sdktrace.WithSpanProcessor(resourcepublisher.Current()), spanctx.WithPublishing(),
		}
	},
	"constructors": func(t *testing.T, service string) options {
		t.Helper()
		publisher, err := resourcepublisher.New(named(service))
		require.NoError(t, err)
		spans, err := spanctx.New()
		require.NoError(t, err)
		return options{sdktrace.WithResource(named(service)), sdktrace.WithSpanProcessor(publisher), sdktrace.WithSpanProcessor(spans)}
	},
	"instrumentation": func(_ *testing.T, service string) options {
		return append(Options(), sdktrace.WithResource(named(service)))
	},
}

// shows checks which service and how many live spans are published.
func shows(t *testing.T, service string, spans int, when string) {
	t.Helper()
	gotService, gotSpans := published(t)
	require.Equal(t, service, gotService, when)
	require.Equal(t, spans, gotSpans, when)
}

// nothingIsPublished checks that no memory of otelctx is left.
func nothingIsPublished(t *testing.T) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	assert.NotContains(t, string(maps), "OTEL_CTX")
	assert.NotContains(t, string(maps), "OTELCTX_")
}

func begin(tp *sdktrace.TracerProvider) (end func()) {
	_, span := tp.Tracer("").Start(context.Background(), "span")
	return func() { span.End() }
}

// TestReload checks what is published while the configuration of a service is reloaded many times, so
// that a new provider replaces the old one, which is shut down before or after that.
func TestReload(t *testing.T) {
	for name, setup := range setups {
		t.Run(name+", in turn", func(t *testing.T) {
			errs := oteltest.HandledErrors(t)
			for i := range testenv.Rounds(10, 100) {
				service := fmt.Sprint("v", i)
				tp := sdktrace.NewTracerProvider(setup(t, service)...)
				end := begin(tp)
				shows(t, service, 1, service)
				if i%2 == 0 {
					end() // otherwise Shutdown ends the span
				}
				shutDown(t, tp)
				shows(t, "", 0, service+" is down")
			}
			nothingIsPublished(t)
			assert.Empty(t, errs.Take())
		})
		t.Run(name+", overlapping", func(t *testing.T) {
			errs := oteltest.HandledErrors(t)
			old := sdktrace.NewTracerProvider(setup(t, "v")...)
			begin(old)
			for i := range 100 {
				service := fmt.Sprint("v", i)
				tp := sdktrace.NewTracerProvider(setup(t, service)...)
				if i%2 == 0 && name != "instrumentation" { // its resource is not known yet
					shutDown(t, old) // while the new one is idle
					shows(t, service, 0, service+" is idle")
					begin(tp)
				} else {
					begin(tp)
					shows(t, service, 2, service+" has started")
					shutDown(t, old)
				}
				shows(t, service, 1, service)
				old = tp
			}
			shutDown(t, old)
			nothingIsPublished(t)
			assert.Empty(t, errs.Take())
		})
	}
}

// TestSharedOptions checks that providers that are set up with the same options do not affect each other,
// in which order they start and are shut down.
func TestSharedOptions(t *testing.T) {
	for name, setup := range setups {
		t.Run(name, func(t *testing.T) {
			errs := oteltest.HandledErrors(t)
			for i := range testenv.Rounds(9, 100) {
				opts := setup(t, "shared")
				var tps []*sdktrace.TracerProvider
				for range 3 {
					tps = append(tps, sdktrace.NewTracerProvider(opts...))
				}
				switch i % 3 {
				case 0: // one that is idle is shut down first
					begin(tps[1])
					shutDown(t, tps[0])
					shows(t, "shared", 1, "the idle one is down")
				case 1: // the first to start is shut down first
					begin(tps[0])
					begin(tps[1])
					shows(t, "shared", 2, "both have started")
					shutDown(t, tps[0])
					shows(t, "shared", 1, "the first is down")
				default: // all others are idle
					begin(tps[0])
					shutDown(t, tps[0])
					shows(t, "", 0, "none has started")
					begin(tps[1])
					shows(t, "shared", 1, "the second has started")
				}
				begin(tps[2])
				shutDown(t, tps[1])
				shows(t, "shared", 1, "the last remains")
				shutDown(t, tps[2])
				shows(t, "", 0, "all are down")
			}
			nothingIsPublished(t)
			assert.Empty(t, errs.Take())
		})
	}
}

// TestInFlightAtReload checks that the spans of a provider are no longer published once it is shut down,
// although the SDK does not report their end, and that the goroutine is then not in such a span.
func TestInFlightAtReload(t *testing.T) {
	old := sdktrace.NewTracerProvider(setups["options"](t, "v1")...)
	_, request := old.Tracer("").Start(context.Background(), "in flight")
	tp := sdktrace.NewTracerProvider(setups["options"](t, "v2")...)
	_, next := tp.Tracer("").Start(context.Background(), "next")
	shutDown(t, old)
	shows(t, "v2", 1, "the old one is down")
	next.End()
	request.End()
	shows(t, "v2", 0, "both spans have ended")
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer p.Close()
	threads, err := p.Threads(t.Context())
	require.NoError(t, err)
	assert.False(t, slices.ContainsFunc(threads, func(thread reader.Thread) bool { return thread.Span != nil }))
	shutDown(t, tp)
}

// TestShutdownWithoutProcessors checks that a provider that is shut down with a canceled context, so that
// the SDK calls no processor, or that is dropped without Shutdown, is forgotten when the next one starts.
func TestShutdownWithoutProcessors(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, setup := range setups {
		t.Run(name, func(t *testing.T) {
			first := sdktrace.NewTracerProvider(setup(t, "first")...)
			begin(first)
			second := sdktrace.NewTracerProvider(setup(t, "second")...)
			begin(second)
			require.ErrorIs(t, second.Shutdown(cancelled), context.Canceled)
			third := sdktrace.NewTracerProvider(setup(t, "third")...)
			begin(third)
			shows(t, "third", 2, "the second is gone")
			shutDown(t, third)
			shows(t, "first", 1, "the second is not published again")
			shutDown(t, first)
			nothingIsPublished(t)
		})
	}
}

// TestUnregistered checks that a processor that is unregistered, or that the program shuts down itself,
// publishes nothing more, although its provider is alive.
func TestUnregistered(t *testing.T) {
	for name, shutdown := range map[string]func(*sdktrace.TracerProvider, sdktrace.SpanProcessor){
		"by the provider": func(tp *sdktrace.TracerProvider, p sdktrace.SpanProcessor) { tp.UnregisterSpanProcessor(p) },
		"by the program": func(_ *sdktrace.TracerProvider, p sdktrace.SpanProcessor) {
			require.NoError(t, p.Shutdown(context.Background()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			tp := sdktrace.NewTracerProvider(sdktrace.WithResource(named("service")))
			all := processors(nil, nil, nil)
			for _, p := range all {
				tp.RegisterSpanProcessor(p)
			}
			begin(tp)
			shows(t, "service", 1, "registered")
			for i, p := range slices.Backward(all) {
				shutdown(tp, p)
				begin(tp)
				shows(t, []string{"", "service"}[min(i, 1)], 0, "shut down")
			}
			shutDown(t, tp)
			nothingIsPublished(t)
		})
	}
}
