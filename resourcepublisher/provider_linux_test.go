// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// providerResources lists resources that a service may pass to its TracerProvider.
var providerResources = map[string]*resource.Resource{
	"nil":        nil,
	"empty":      resource.Empty(),
	"named":      resource.NewSchemaless(attribute.String("service.name", "from code"), attribute.Int("n", 1)),
	"nameless":   resource.NewSchemaless(attribute.Int("n", 1)),
	"schema":     resource.NewWithAttributes("https://example.com/schema", attribute.Int("n", 1)),
	"every type": resource.NewSchemaless(everyType()...),
}

var providerEnvironments = map[string][]string{
	"none":       nil,
	"attributes": {"OTEL_RESOURCE_ATTRIBUTES=service.name=from%20attributes,service.namespace=shop,n=2"},
	"name":       {"OTEL_SERVICE_NAME=from env"},
	"both":       {"OTEL_RESOURCE_ATTRIBUTES=service.name=from attributes,a=b", "OTEL_SERVICE_NAME=from env"},
	"malformed":  {"OTEL_RESOURCE_ATTRIBUTES=a=b,nonsense,c=%zz", "OTEL_SERVICE_NAME=from env"},
	"instance":   {"OTEL_GO_X_RESOURCE=true"},
}

// TestPublishedResourceIsTheSpans checks that readers see the resource that spans carry, for
// combinations of environments and arguments of WithResource. Each environment has its own child
// process, because the SDK caches its default resource.
func TestPublishedResourceIsTheSpans(t *testing.T) {
	for env, vars := range providerEnvironments {
		t.Run(env, func(t *testing.T) {
			child := childproc.Start(t, "build providers", func(cmd *exec.Cmd) {
				cmd.Env = append(cmd.Env, vars...)
			})
			for range providerResources {
				assert.Regexp(t, "same$", child.Receive())
			}
			child.Done()
		})
	}
}

// buildProviders builds a provider with each resource, and reports whether readers see the resource of
// its spans, and whether it is the resource that spans have without this package.
func buildProviders(parent *childproc.Parent) {
	// Ignore errors: the SDK reports a malformed environment variable each time it reads it.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	carried := func(opts ...sdktrace.TracerProviderOption) *resource.Resource {
		spans := tracetest.NewInMemoryExporter()
		_, span := sdktrace.NewTracerProvider(append(opts, sdktrace.WithSyncer(spans))...).Tracer("").Start(context.Background(), "span")
		span.End()
		return spans.GetSpans()[0].Resource
	}
	for name, res := range providerResources {
		option := resourcepublisher.WithResource(res)
		pc, err := readPID(os.Getpid())
		parent.Must(err)
		got, sdk := carried(option), carried()
		if res != nil {
			sdk = carried(sdktrace.WithResource(res))
		}
		switch published := plainMap(pc.Message.GetResource().GetAttributes()); {
		case !assert.ObjectsAreEqual(plainAttributes(got.Attributes()), published):
			parent.Send("%s: spans carry %v, published is %v", name, got, published)
		case pc.SchemaURL() != got.SchemaURL():
			parent.Send("%s: spans carry schema URL %q, published is %q", name, got.SchemaURL(), pc.SchemaURL())
		case !sdk.Equal(got) || sdk.SchemaURL() != got.SchemaURL():
			parent.Send("%s: spans carry %v, without publishing %v", name, got, sdk)
		default:
			parent.Send("%s: same", name)
		}
		parent.Must(resourcepublisher.Current().Shutdown(context.Background()))
	}
	parent.Receive()
}

func TestSecondWithResource(t *testing.T) {
	withdrawAtEnd(t)
	handled := oteltest.HandledErrors(t)
	first := resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "first"), attribute.Int("n", 1))
	resourcepublisher.WithResource(first)
	require.Empty(t, handled.Take())
	before := read(t)

	resourcepublisher.WithResource(resource.NewWithAttributes("https://example.com/1", first.Attributes()...))
	assert.Empty(t, handled.Take(), "an equal resource is not reported")

	for name, other := range map[string]*resource.Resource{
		`"service.name"`: resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "s3cret"), attribute.Int("n", 1)),
		`"n"`:            resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "first"), attribute.Float64("n", 1)),
		`"schema URL"`:   resource.NewSchemaless(first.Attributes()...),
	} {
		resourcepublisher.WithResource(other)
		if errs := handled.Take(); assert.Len(t, errs, 1) {
			require.ErrorIs(t, errs[0], resourcepublisher.ErrAlreadyPublished)
			require.ErrorContains(t, errs[0], "["+name+"]")
			assert.NotContains(t, errs[0].Error(), "s3cret")
		}
	}
	assert.Equal(t, before, read(t))
}

func TestWithResourceWhileDisabled(t *testing.T) {
	t.Setenv("OTELCTX_PROCESS_CONTEXT_DISABLED", "true")
	handled := oteltest.HandledErrors(t)
	spans := tracetest.NewInMemoryExporter()
	res := resource.NewSchemaless(attribute.Int("n", 1))
	tp := sdktrace.NewTracerProvider(resourcepublisher.WithResource(res), sdktrace.WithSyncer(spans),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()))
	_, span := tp.Tracer("").Start(context.Background(), "span")
	span.End()
	assert.True(t, res.Equal(spans.GetSpans()[0].Resource))
	assert.Empty(t, handled.Take())
	assert.Empty(t, contextMappings(t, os.Getpid()))
	setForTest(t, spanAttribute)
	assert.Len(t, separateMappings(t), 1, "spans are still advertised")
	require.NoError(t, tp.Shutdown(context.Background()))
}

// TestProcessorCorrectsTheResource checks that the resource of the first span is published, unless
// Update has chosen another one. It publishes resource 1 and then executes steps: "span N" starts a
// span of the provider with resource N, and "update N" calls Update with resource N. Each step is
// followed by the resource that must then be published and by the outcome: "updated" (the context
// was updated), "kept" (it was not) or "reported" (it was not, and an error was reported).
// Resource 0 cannot be published.
func TestProcessorCorrectsTheResource(t *testing.T) {
	numbered := func(n int) *resource.Resource {
		if n == 0 {
			return resource.NewWithAttributes(strings.Repeat("x", resourcepublisher.MaxPayloadSize))
		}
		return resource.NewSchemaless(attribute.Int("n", n))
	}
	for name, steps := range map[string][]string{
		"by the first span":       {"span 2: 2 updated", "span 2: 2 kept", "update 3: 3 updated", "span 2: 3 kept"},
		"not against an update":   {"update 2: 2 updated", "span 3: 2 kept"},
		"not when it is the same": {"span 1: 1 kept", "span 1: 1 kept"},
		"with two providers":      {"span 1: 1 kept", "span 2: 1 reported", "span 1: 1 kept", "span 2: 1 kept"},
		"not with an invalid one": {"span 0: 1 reported", "span 0: 1 kept"},
	} {
		t.Run(name, func(t *testing.T) {
			handled := oteltest.HandledErrors(t)
			p := publish(t, numbered(1))
			var tracers [4]trace.Tracer
			for n := range tracers {
				tracers[n] = sdktrace.NewTracerProvider(sdktrace.WithResource(numbered(n)), sdktrace.WithSpanProcessor(p)).Tracer("")
			}
			last := read(t)
			for _, step := range steps {
				var action, result string
				var n, published int
				_, err := fmt.Sscanf(step, "%s %d: %d %s", &action, &n, &published, &result)
				require.NoError(t, err)
				if action == "update" {
					require.NoError(t, p.Update(numbered(n)))
				} else {
					_, span := tracers[n].Start(t.Context(), "span")
					span.End()
				}
				now := read(t)
				assert.Equal(t, map[string]any{"n": int64(published)}, attributes(t), step)
				assert.Equal(t, result == "updated", now.PublishedAtNS != last.PublishedAtNS, step)
				last = now
				errs := handled.Take()
				require.Len(t, errs, map[string]int{"reported": 1}[result], step)
				if result == "reported" {
					require.ErrorContains(t, errs[0], map[int]string{0: "too large", 2: `["n"]`}[n])
				}
			}
		})
	}
}

// TestManyProvidersAreReported checks that each provider whose resource differs from the published
// one is reported once, up to the limit.
func TestManyProvidersAreReported(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	numbered := func(n int) *resource.Resource { return resource.NewSchemaless(attribute.Int("n", n)) }
	p := publish(t, numbered(0))
	var tracers []trace.Tracer
	for n := range 30 {
		tp := sdktrace.NewTracerProvider(sdktrace.WithResource(numbered(n)), sdktrace.WithSpanProcessor(p))
		tracers = append(tracers, tp.Tracer(""))
	}
	spans := func(providers int) {
		for i := range 5 * providers {
			_, span := tracers[i%providers].Start(t.Context(), "span")
			span.End()
		}
	}
	spans(5)
	assert.Len(t, handled.Take(), 4, "each is reported once")
	spans(30)
	assert.Len(t, handled.Take(), 16-4, "at most 16 are reported")
	assert.Equal(t, map[string]any{"n": int64(0)}, attributes(t))
}

func TestProviderShutdownWithdraws(t *testing.T) {
	p := publish(t, resource.Empty())
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	require.NoError(t, tp.ForceFlush(context.Background()))
	assert.Len(t, contextMappings(t, os.Getpid()), 1)
	require.NoError(t, tp.Shutdown(context.Background()))
	assert.Empty(t, contextMappings(t, os.Getpid()))
	// Spans may end and start after Shutdown.
	p.OnEnd(nil)
	p.OnStart(context.Background(), &startedSpan{resource: resource.Default()})
	assert.Empty(t, contextMappings(t, os.Getpid()))
}

// startedSpan implements the part of a span that OnStart uses.
type startedSpan struct {
	sdktrace.ReadWriteSpan
	resource *resource.Resource
}

func (s *startedSpan) Resource() *resource.Resource { return s.resource }
