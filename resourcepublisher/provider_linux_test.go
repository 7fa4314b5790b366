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

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/wire"
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
		switch published := plainMap(pc.Resource.GetAttributes()); {
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

// A later resource replaces the published one, and is not an error. An equal one changes nothing.
func TestSecondWithResource(t *testing.T) {
	withdrawAtEnd(t)
	handled := oteltest.HandledErrors(t)
	first := resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "first"), attribute.Int("n", 1))
	resourcepublisher.WithResource(first)
	before := read(t)
	resourcepublisher.WithResource(resource.NewWithAttributes("https://example.com/1", first.Attributes()...))
	assert.Equal(t, before, read(t))

	for name, other := range map[string]*resource.Resource{
		"another name":   resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "other"), attribute.Int("n", 1)),
		"another type":   resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "first"), attribute.Float64("n", 1)),
		"another schema": resource.NewSchemaless(first.Attributes()...),
	} {
		resourcepublisher.WithResource(other)
		pc := read(t)
		assert.Equal(t, plainAttributes(other.Attributes()), plainMap(pc.Resource.GetAttributes()), name)
		assert.Equal(t, other.SchemaURL(), pc.SchemaURL(), name)
	}
	assert.Empty(t, handled.Take())
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

// TestResourceOfTheNewestProvider checks that the resource of the provider that started its first span
// last is published, unless Update has chosen another one. It publishes resource 1 and then executes
// steps: "span N" starts a span of the provider with resource N, "update N" calls Update with resource
// N, and "shutdown N" shuts the provider down. Each step is followed by the resource that must then be
// published and by the outcome: "updated" (the context was updated), "kept" (it was not) or "reported"
// (it was not, and an error was reported). Resource 0 cannot be published.
func TestResourceOfTheNewestProvider(t *testing.T) {
	numbered := func(n int) *resource.Resource {
		if n == 0 {
			return resource.NewWithAttributes(strings.Repeat("x", wire.MaxProcessContextPayload))
		}
		return resource.NewSchemaless(attribute.Int("n", n))
	}
	for name, steps := range map[string][]string{
		"by the first span":       {"span 2: 2 updated", "span 2: 2 kept", "update 3: 3 updated", "span 2: 3 kept"},
		"not against an update":   {"update 2: 2 updated", "span 3: 2 kept"},
		"not when it is the same": {"span 1: 1 kept", "span 1: 1 kept"},
		"two providers":           {"span 1: 1 kept", "span 2: 2 updated", "span 1: 2 kept", "shutdown 1: 2 kept", "span 2: 2 kept"},
		"newest first":            {"span 1: 1 kept", "span 2: 2 updated", "span 3: 3 updated", "shutdown 3: 2 updated", "shutdown 2: 1 updated"},
		"in the middle":           {"span 1: 1 kept", "span 2: 2 updated", "span 3: 3 updated", "shutdown 2: 3 kept", "shutdown 3: 1 updated", "span 3: 1 kept"},
		"not with an invalid one": {"span 0: 1 reported", "span 0: 1 kept"},
	} {
		t.Run(name, func(t *testing.T) {
			handled := oteltest.HandledErrors(t)
			p := publish(t, numbered(1))
			var tps [4]*sdktrace.TracerProvider
			for n := range tps {
				tps[n] = sdktrace.NewTracerProvider(sdktrace.WithResource(numbered(n)), sdktrace.WithSpanProcessor(p))
			}
			last := read(t)
			for _, step := range steps {
				var action, result string
				var n, published int
				_, err := fmt.Sscanf(step, "%s %d: %d %s", &action, &n, &published, &result)
				require.NoError(t, err)
				switch action {
				case "update":
					require.NoError(t, p.Update(numbered(n)))
				case "shutdown":
					require.NoError(t, tps[n].Shutdown(context.Background()))
				default:
					_, span := tps[n].Tracer("").Start(t.Context(), "span")
					span.End()
				}
				now := read(t)
				assert.Equal(t, map[string]any{"n": int64(published)}, attributes(t), step)
				assert.Equal(t, result == "updated", now.PublishedAtNS != last.PublishedAtNS, step)
				last = now
				errs := handled.Take()
				require.Len(t, errs, map[string]int{"reported": 1}[result], step)
				if result == "reported" {
					require.ErrorContains(t, errs[0], "too large")
				}
			}
		})
	}
}

func TestProviderShutdownWithdraws(t *testing.T) {
	p := publish(t, resource.Empty())
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	require.NoError(t, tp.ForceFlush(context.Background()))
	assert.Len(t, contextMappings(t, os.Getpid()), 1)
	require.NoError(t, tp.Shutdown(context.Background()))
	assert.Empty(t, contextMappings(t, os.Getpid()))
}
