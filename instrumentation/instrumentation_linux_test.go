// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

func named(service string) *resource.Resource {
	return resource.NewSchemaless(attribute.String("service.name", service))
}

// compiled returns a provider like those that NewTracerProvider returns in a program compiled with
// the rules.
func compiled(r *resource.Resource, existing ...sdktrace.SpanProcessor) *sdktrace.TracerProvider {
	opts := []sdktrace.TracerProviderOption{sdktrace.WithResource(r)}
	for _, p := range existing {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	tp := sdktrace.NewTracerProvider(opts...)
	provider(tp, r, existing)
	return tp
}

func shutDown(t *testing.T, tps ...*sdktrace.TracerProvider) {
	t.Helper()
	for _, tp := range tps {
		require.NoError(t, tp.Shutdown(context.Background()))
	}
}

func published(t *testing.T) (service string, spans int) {
	t.Helper()
	service, names := inspect(t, os.Getpid())
	return service, len(names)
}

// Options publishes spans immediately, and the resource with the first span.
func TestOptions(t *testing.T) {
	errs := oteltest.HandledErrors(t)
	tp := sdktrace.NewTracerProvider(append(Options(), sdktrace.WithResource(named("options")))...)
	service, spans := published(t)
	assert.Empty(t, service, "no resource is published before the first span")
	assert.Zero(t, spans)
	_, span := tp.Tracer("").Start(context.Background(), "span")
	service, spans = published(t)
	assert.Equal(t, "options", service)
	assert.Equal(t, 1, spans)
	span.End()
	shutDown(t, tp)
	service, _ = published(t)
	assert.Empty(t, service)
	assert.Empty(t, errs.Take())
}

// A program that uses Options and is compiled with the rules gets each processor once.
func TestOptionsAndRules(t *testing.T) {
	errs := oteltest.HandledErrors(t)
	tp := compiled(named("both"), processors(nil, nil, nil)...)
	_, span := tp.Tracer("").Start(context.Background(), "span")
	service, spans := published(t)
	assert.Equal(t, "both", service)
	assert.Equal(t, 1, spans)
	span.End()
	shutDown(t, tp)
	assert.Nil(t, resourcepublisher.Current())
	assert.Empty(t, errs.Take())
}

// If the program uses otelctx itself, its own choices take precedence.
func TestProgramWithOtelctx(t *testing.T) {
	errs := oteltest.HandledErrors(t)
	r := named("own")
	resourcepublisher.WithResource(r, resourcepublisher.WithAttributeFilter(attribute.NewDenyKeysFilter("service.name")))
	own := resourcepublisher.Current()
	tp := compiled(r, spanctx.ForProvider(spanctx.WithSlotCapacity(64)))
	other := compiled(named("other"))
	for _, tp := range []*sdktrace.TracerProvider{tp, other} {
		_, span := tp.Tracer("").Start(context.Background(), "span")
		service, names := inspect(t, os.Getpid())
		assert.Empty(t, service, "the program's filter still applies")
		assert.Equal(t, []string{"span"}, names, "the span is published once, with its name as the program requests")
		span.End()
	}
	shutDown(t, tp, other)
	require.Nil(t, resourcepublisher.Current(), "the context is that of a provider that has been shut down")
	require.NoError(t, own.Shutdown(context.Background()))
	assert.Empty(t, errs.Take())
}

// The resource of the newest provider is published, even if it has not started a span.
func TestProvidersTakeTurns(t *testing.T) {
	errs := oteltest.HandledErrors(t)
	var tps []*sdktrace.TracerProvider
	for _, name := range []string{"first", "second", "third"} {
		tps = append(tps, compiled(named(name)))
		service, _ := published(t)
		assert.Equal(t, name, service)
	}
	for i, want := range []string{"third", "second", ""} {
		shutDown(t, tps[[]int{0, 2, 1}[i]])
		service, _ := published(t)
		assert.Equal(t, want, service)
	}
	fourth := compiled(named("fourth"))
	service, _ := published(t)
	assert.Equal(t, "fourth", service)
	shutDown(t, fourth, fourth)
	service, _ = published(t)
	assert.Empty(t, service)
	assert.Empty(t, errs.Take())
}

func TestParallel(t *testing.T) {
	errs := oteltest.HandledErrors(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				tp := compiled(named(fmt.Sprint(i, " ", j)))
				_, span := tp.Tracer("").Start(context.Background(), "span")
				span.End()
				assert.NoError(t, tp.Shutdown(context.Background()))
			}
		})
	}
	all.Wait()
	assert.Nil(t, resourcepublisher.Current())
	_, names := inspect(t, os.Getpid())
	assert.Empty(t, names)
	assert.Empty(t, errs.Take())
}

func TestUniversalProfiling(t *testing.T) {
	testenv.ShortenTempDir() // It gets a socket.
	tp := compiled(named("off"))
	assert.Nil(t, universalprofiling.Current())
	shutDown(t, tp)
	t.Setenv("OTELCTX_UNIVERSAL_PROFILING", "true")
	tp = compiled(named("on"))
	if universalprofiling.Current() == nil {
		shutDown(t, tp)
		t.Skip("unsupported platform")
	}
	shutDown(t, tp)
	assert.Nil(t, universalprofiling.Current())
}
