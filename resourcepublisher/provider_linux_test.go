// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// providerResources are what a service may give its TracerProvider.
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

// TestPublishesWhatSpansCarry has a process for every combination, for the SDK
// remembers its default resource. The child publishes, this process reads.
func TestPublishesWhatSpansCarry(t *testing.T) {
	for env, vars := range providerEnvironments {
		for res := range providerResources {
			t.Run(env+" environment, "+res+" resource", func(t *testing.T) {
				child := childproc.Start(t, "build a provider", func(cmd *exec.Cmd) {
					cmd.Env = append(cmd.Env, vars...)
				})
				child.Send("%s", res)
				child.Expect("published")
				pc, err := readPID(child.PID())
				require.NoError(t, err)
				assert.NotEmpty(t, pc.Message.String())
				child.Expect("same")
				child.Done()
			})
		}
	}
}

func buildProvider(parent *childproc.Parent) {
	name, _ := parent.Receive()
	res := providerResources[name]
	published := func() *reader.ProcessContext {
		pc, err := readPID(os.Getpid())
		parent.Must(err)
		return pc
	}
	// The SDK complains about a malformed environment as often as it looks.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))

	spans := tracetest.NewInMemoryExporter()
	option := resourcepublisher.WithResource(res)
	pc := published()
	tp := sdktrace.NewTracerProvider(option, sdktrace.WithSyncer(spans))
	parent.Send("published")

	_, span := tp.Tracer("").Start(context.Background(), "span")
	span.End()
	carried := spans.GetSpans()[0].Resource
	want, got := plainAttributes(carried.Attributes()), plainMap(pc.Message.GetResource().GetAttributes())
	plain := sdktrace.WithResource
	if res == nil {
		// Without the option at all.
		plain = func(*resource.Resource) sdktrace.TracerProviderOption { return sdktrace.WithIDGenerator(nil) }
	}
	// The option must not change what the SDK would do on its own.
	bare := tracetest.NewInMemoryExporter()
	_, span = sdktrace.NewTracerProvider(plain(res), sdktrace.WithSyncer(bare)).Tracer("").
		Start(context.Background(), "span")
	span.End()
	switch sdk := bare.GetSpans()[0].Resource; {
	case !assert.ObjectsAreEqual(want, got):
		parent.Send("spans carry %v, published is %v", want, got)
	case pc.SchemaURL() != carried.SchemaURL():
		parent.Send("spans carry schema URL %q, published is %q", carried.SchemaURL(), pc.SchemaURL())
	case !sdk.Equal(carried) || sdk.SchemaURL() != carried.SchemaURL():
		parent.Send("spans carry %v, without publishing %v", carried, sdk)
	default:
		parent.Send("same")
	}
	parent.Receive()
}

func TestSecondWithResource(t *testing.T) {
	withdrawAtEnd(t)
	log := handleErrors(t)
	first := resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "first"), attribute.Int("n", 1))
	resourcepublisher.WithResource(first)
	require.Empty(t, log.take())
	before := read(t)

	resourcepublisher.WithResource(resource.NewWithAttributes("https://example.com/1", first.Attributes()...))
	assert.Empty(t, log.take(), "an equal resource is no news")

	for name, other := range map[string]*resource.Resource{
		`"service.name"`: resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "s3cret"), attribute.Int("n", 1)),
		`"n"`:            resource.NewWithAttributes("https://example.com/1", attribute.String("service.name", "first"), attribute.Float64("n", 1)),
		`"schema URL"`:   resource.NewSchemaless(first.Attributes()...),
	} {
		resourcepublisher.WithResource(other)
		if errs := log.take(); assert.Len(t, errs, 1) {
			require.ErrorIs(t, errs[0], resourcepublisher.ErrAlreadyPublished)
			require.ErrorContains(t, errs[0], "["+name+"]")
			assert.NotContains(t, errs[0].Error(), "s3cret")
		}
	}
	assert.Equal(t, before, read(t))
}

func TestDisabledWithResourceIsTheSDKs(t *testing.T) {
	t.Setenv("OTELCTX_PROCESS_CONTEXT_DISABLED", "true")
	log := handleErrors(t)
	spans := tracetest.NewInMemoryExporter()
	res := resource.NewSchemaless(attribute.Int("n", 1))
	tp := sdktrace.NewTracerProvider(resourcepublisher.WithResource(res), sdktrace.WithSyncer(spans),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()))
	_, span := tp.Tracer("").Start(context.Background(), "span")
	span.End()
	assert.True(t, res.Equal(spans.GetSpans()[0].Resource))
	assert.Empty(t, log.take())
	assert.Empty(t, contextMappings(t, os.Getpid()))
	require.NoError(t, tp.Shutdown(context.Background()))
}

func TestProcessorCorrectsTheResource(t *testing.T) {
	log := handleErrors(t)
	of := func(n int) *resource.Resource { return resource.NewSchemaless(attribute.Int("n", n)) }
	span := func(tp *sdktrace.TracerProvider) {
		_, span := tp.Tracer("").Start(context.Background(), "span")
		span.End()
	}
	published := func() any { return attributes(t)["n"] }

	t.Run("of the first span", func(t *testing.T) {
		p := publish(t, of(1))
		tp := sdktrace.NewTracerProvider(sdktrace.WithResource(of(2)), sdktrace.WithSpanProcessor(p))
		assert.Equal(t, int64(1), published())
		span(tp)
		assert.Equal(t, int64(2), published())

		before := read(t)
		for range 10 {
			span(tp)
		}
		assert.Equal(t, before, read(t), "once is enough")
		require.NoError(t, p.Update(of(3)))
		span(tp)
		assert.Equal(t, int64(3), published(), "an update is the caller's word")
	})
	t.Run("but not against an update", func(t *testing.T) {
		p := publish(t, of(1))
		require.NoError(t, p.Update(of(2)))
		span(sdktrace.NewTracerProvider(sdktrace.WithResource(of(3)), sdktrace.WithSpanProcessor(p)))
		assert.Equal(t, int64(2), published())
	})
	t.Run("not when it is the same", func(t *testing.T) {
		p := publish(t, of(1))
		before := read(t)
		span(sdktrace.NewTracerProvider(sdktrace.WithResource(of(1)), sdktrace.WithSpanProcessor(p)))
		assert.Equal(t, before, read(t))
	})
	t.Run("of one provider out of two", func(t *testing.T) {
		p := publish(t, of(1))
		one := sdktrace.NewTracerProvider(sdktrace.WithResource(of(1)), sdktrace.WithSpanProcessor(p))
		two := sdktrace.NewTracerProvider(sdktrace.WithResource(of(2)), sdktrace.WithSpanProcessor(p))
		before := read(t)
		assert.Empty(t, log.take())
		for range 5 {
			span(one)
			span(two)
		}
		if errs := log.take(); assert.Len(t, errs, 1) {
			require.ErrorContains(t, errs[0], `["n"]`)
		}
		assert.Equal(t, before, read(t))
	})
	t.Run("of one provider out of many", func(t *testing.T) {
		p := publish(t, of(0))
		var tps []*sdktrace.TracerProvider
		for n := range 30 {
			tps = append(tps, sdktrace.NewTracerProvider(sdktrace.WithResource(of(n)), sdktrace.WithSpanProcessor(p)))
		}
		for range 5 {
			for _, tp := range tps[:5] {
				span(tp)
			}
		}
		assert.Len(t, log.take(), 4, "each is reported once")
		for range 5 {
			for _, tp := range tps {
				span(tp)
			}
		}
		assert.Len(t, log.take(), 16-4, "and not without end")
		assert.Equal(t, int64(0), published())
	})
	t.Run("that cannot be published", func(t *testing.T) {
		p := publish(t, of(1))
		bad := resource.NewSchemaless(attribute.String("bad", "\xff"))
		tp := sdktrace.NewTracerProvider(sdktrace.WithResource(bad), sdktrace.WithSpanProcessor(p))
		span(tp)
		span(tp)
		assert.Len(t, log.take(), 1)
		assert.Equal(t, int64(1), published())
	})
	assert.Empty(t, log.take())
}

func TestProviderShutdownWithdraws(t *testing.T) {
	p := publish(t, resource.Empty())
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	require.NoError(t, tp.ForceFlush(context.Background()))
	assert.Len(t, contextMappings(t, os.Getpid()), 1)
	require.NoError(t, tp.Shutdown(context.Background()))
	assert.Empty(t, contextMappings(t, os.Getpid()))
	// A span that was started before has its end after.
	p.OnEnd(nil)
	p.OnStart(context.Background(), &startedSpan{resource: resource.Default()})
	assert.Empty(t, contextMappings(t, os.Getpid()))
}

// startedSpan is a span as far as OnStart looks.
type startedSpan struct {
	sdktrace.ReadWriteSpan
	resource *resource.Resource
}

func (s *startedSpan) Resource() *resource.Resource { return s.resource }

func TestSpanPathDoesNotAllocate(t *testing.T) {
	p := publish(t, resource.Empty())
	span := &startedSpan{resource: resource.Empty()}
	ctx := context.Background()
	p.OnStart(ctx, span)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { p.OnStart(ctx, span); p.OnEnd(nil) }))
}
