// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package providers

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// processor calls a handle as the processors of otelctx do.
type processor struct{ *Handle }

func (p processor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) { p.Started(s) }
func (processor) OnEnd(sdktrace.ReadOnlySpan)                           {}
func (processor) ForceFlush(context.Context) error                      { return nil }
func (p processor) Shutdown(context.Context) error                      { return p.Handle.Shutdown() }

// open returns a processor, and publishes owner.
func open(t *testing.T, owner string) processor {
	t.Helper()
	h, err := Spans.Open(owner, nil)
	require.NoError(t, err)
	return processor{h}
}

// published returns the owner of the newest reference, or nil.
func published() any {
	defer Lock()()
	if newest := Spans.Newest(); newest != nil {
		return newest.Handle.Owner
	}
	return nil
}

func provider(p processor) *sdktrace.TracerProvider {
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
}

func start(tp *sdktrace.TracerProvider) {
	_, span := tp.Tracer("").Start(context.Background(), "span")
	span.End()
}

func shutDown(t *testing.T, tps ...*sdktrace.TracerProvider) {
	t.Helper()
	for _, tp := range tps {
		require.NoError(t, tp.Shutdown(context.Background()))
	}
}

// withApply sets Spans.Apply for the test.
func withApply(t *testing.T) {
	t.Helper()
	Spans.Apply = func(*Reference) error { return nil }
	t.Cleanup(func() {
		Spans.Apply = nil
		assert.Empty(t, Spans.references)
	})
}

// TestSDK checks that this release of the SDK has the field by which the package knows that a provider has
// been shut down, and that the field is set before the processors are called.
func TestSDK(t *testing.T) {
	withApply(t)
	p := open(t, "a")
	tp := provider(p)
	_, known := isShutdown(tp)
	require.True(t, known)
	assert.False(t, isDown(tp))
	start(tp)
	assert.Same(t, p.find(tp), p.StartedUnrecorded(tp))
	shutDown(t, tp)
	assert.True(t, isDown(tp))
	assert.Nil(t, published())
	assert.Nil(t, p.Adopt(tp, resource.Empty()), "a late span")
	assert.Nil(t, p.StartedUnrecorded(tp), "a late span")
}

// TestUnrecorded checks that a provider counts from its first span even if that is not recorded, with the resource that
// recorded spans have.
func TestUnrecorded(t *testing.T) {
	withApply(t)
	p := open(t, "a")
	r := resource.NewSchemaless(attribute.String("service.name", "a"))
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p), sdktrace.WithResource(r))
	ref := p.StartedUnrecorded(tp)
	require.NotNil(t, ref)
	_, span := tp.Tracer("").Start(context.Background(), "span")
	assert.Same(t, span.(sdktrace.ReadOnlySpan).Resource(), ref.Resource)
	assert.Same(t, ref, p.find(tp))
	assert.True(t, ref.Counts())
	shutDown(t, tp)
	assert.False(t, ref.Counts())
	assert.Nil(t, published())
}

// TestUnknownShutdown checks what happens with a release of the SDK that does not tell which provider has
// been shut down: the references are dropped after as many calls of Shutdown as providers have started.
func TestUnknownShutdown(t *testing.T) {
	withApply(t)
	t.Cleanup(func() { isShutdown = sdkspan.IsShutdown })
	isShutdown = func(*sdktrace.TracerProvider) (shutdown, known bool) { return false, false }
	p := open(t, "a")
	first, second, third := provider(p), provider(p), provider(p)
	start(first)
	start(second)
	shutDown(t, first)
	assert.Equal(t, "a", published())
	shutDown(t, second)
	assert.Nil(t, published())

	start(third)
	assert.Equal(t, "a", published(), "again with the next span")
	other := open(t, "b")
	fourth := provider(other)
	start(fourth)
	shutDown(t, third)
	assert.Equal(t, "b", published(), "another processor's provider stays")
	shutDown(t, fourth)
	assert.Nil(t, published())
}

// TestCollected checks that a provider that the program has dropped without Shutdown counts no longer, and
// that the package does not keep providers alive.
func TestCollected(t *testing.T) {
	withApply(t)
	p := open(t, "a")
	start(provider(p))
	assert.Equal(t, "a", published())
	require.Eventually(t, func() bool {
		runtime.GC()
		return Spans.references[0].provider.Value() == nil
	}, testenv.Patience, time.Millisecond)
	other := open(t, "b")
	tp := provider(other)
	start(tp)
	shutDown(t, tp)
	assert.Nil(t, published())
}

// TestSameAddress checks that a provider at the address of a collected one gets a reference of its own.
func TestSameAddress(t *testing.T) {
	withApply(t)
	// Little runs between a collection and the next provider, so cleanups may come after that.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	p := open(t, "a")
	addresses, numbers := map[uintptr]bool{}, map[uint16]bool{}
	for reused := 0; reused < 60; {
		tp := provider(p)
		start(tp)
		number := p.find(tp).Number
		if numbers[number] {
			t.Error("a provider has the reference of a collected one")
			break
		}
		address := uintptr(unsafe.Pointer(tp))
		if addresses[address] {
			reused++
		}
		addresses[address], numbers[number] = true, true
	}
	last := provider(p)
	start(last)
	runtime.GC()
	shutDown(t, last)
	assert.Nil(t, published())
}

// TestAge checks that the age of a provider is that of the call that it was set up with.
func TestAge(t *testing.T) {
	withApply(t)
	old, young := open(t, "old"), open(t, "young")
	first, second := provider(old), provider(young)
	start(first)
	assert.Equal(t, "young", published(), "although it is idle")
	shutDown(t, first)
	assert.Equal(t, "young", published())
	start(second)
	shutDown(t, second)
	assert.Nil(t, published())
}

// TestAsking checks that a provider belongs to the handle that was opened with its resource, even if only
// another handle sees its spans, and that the handles remembered are limited.
func TestAsking(t *testing.T) {
	withApply(t)
	Resources.Apply = func(*Reference) error { return nil }
	t.Cleanup(func() { Resources.Apply, Resources.asking = nil, nil })
	numbered := func(n int) *resource.Resource { return resource.NewSchemaless(attribute.Int("n", n)) }
	var handles []*Handle
	for n := range maxAsking + 1 {
		h, err := Resources.Open(n, numbered(n))
		require.NoError(t, err)
		handles = append(handles, h)
	}
	assert.Len(t, Resources.asking, maxAsking)
	for n, want := range map[int]bool{0: false, 1: true, maxAsking: true, maxAsking + 1: false} {
		p := open(t, "spans")
		tp := sdktrace.NewTracerProvider(sdktrace.WithResource(numbered(n)), sdktrace.WithSpanProcessor(p))
		start(tp)
		assert.Equal(t, want, n < len(handles) && handles[n].find(tp) != nil, n)
		shutDown(t, tp)
	}
	assert.Nil(t, published())
	assert.Empty(t, Resources.references)
}

// TestManyProviders checks that Numbers are unique among the references that count.
func TestManyProviders(t *testing.T) {
	withApply(t)
	p := open(t, "a")
	var tps []*sdktrace.TracerProvider
	seen := map[uint16]bool{}
	numbers = 1<<16 - 3
	for range 6 {
		tp := provider(p)
		start(tp)
		n := p.find(tp).Number
		assert.NotZero(t, n)
		assert.False(t, seen[n])
		seen[n] = true
		tps = append(tps, tp)
	}
	numbers = 1<<16 - 3
	tp := provider(p)
	start(tp)
	assert.False(t, seen[p.find(tp).Number], "the numbers in use are skipped")
	shutDown(t, append(tps, tp)...)
}
