// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// with returns a context derived from ctx with these attributes added. kvs alternates between keys
// and values.
func with(ctx context.Context, kvs ...string) context.Context {
	for i := 0; i < len(kvs); i += 2 {
		ctx = attrcontext.With(ctx, attribute.String(kvs[i], kvs[i+1]))
	}
	return ctx
}

// advertisedKeys returns the list of attribute keys that p advertises.
func advertisedKeys(t *testing.T, c *carriers) []string {
	t.Helper()
	for _, kv := range c.advertisement(c.path.Features().Keys) {
		if kv.Key == wire.KeyAttributeKeyMap {
			return kv.Value.AsStringSlice()
		}
	}
	require.Fail(t, "no key map is advertised")
	return nil
}

// decoded decodes attributes that are encoded as in OTEP 4947.
func decoded(t testing.TB, keys []attribute.Key, encoded string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for len(encoded) > 0 {
		size := 2 + int(encoded[1])
		m[string(keys[encoded[0]])] = encoded[2:size]
		encoded = encoded[size:]
	}
	return m
}

// labelsInSpan returns the labels of each goroutine whose labels contain the ids of span. It omits
// these ids. The labels come from runtime/pprof.
func labelsInSpan(t testing.TB, span trace.Span) (all []map[string]string) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	for line := range strings.Lines(b.String()) {
		if text, ok := strings.CutPrefix(line, "# labels: "); ok {
			m := map[string]string{}
			require.NoError(t, json.Unmarshal([]byte(text), &m))
			if m["span_id"] == span.SpanContext().SpanID().String() && m["trace_id"] == span.SpanContext().TraceID().String() {
				delete(m, "span_id")
				delete(m, "trace_id")
				all = append(all, m)
			}
		}
	}
	return all
}

// assertAttributes checks that all carriers publish a span with these attributes for the calling
// goroutine, which is locked to its thread.
func (s *service) assertAttributes(t testing.TB, span trace.Span, kvs ...string) {
	t.Helper()
	want := map[string]string{}
	for i := 0; i < len(kvs); i += 2 {
		want[kvs[i]] = kvs[i+1]
	}
	keys := s.path.Features().Keys.Keys()
	if m := s.threads; m != nil {
		at := m.at(t, uint64(syscall.Gettid()))
		assert.Equal(t, number(span), at.spanID)
		assert.Equal(t, want, decoded(t, keys, at.attributes), "slot")
	}
	if s.carriers.records {
		assert.Equal(t, number(span), recorded(t, s.cells.Address(), goid()))
		assert.Equal(t, want, decoded(t, keys, string(installed().Attributes())), "record")
		if s.carriers.names != nil {
			want["span_name"], want["endpoint"] = "span", "span" // the name of all spans in these tests
		}
		assert.Contains(t, labelsInSpan(t, span), want, "labels")
	}
}

func carrierOptions() map[string][]Option {
	return map[string][]Option{
		"everything": nil,
		"slots":      {WithLabels(LabelsOff)},
		"record":     {WithThreadSlots(false), hideTable{}},
	}
}

// TestAttachedAttributesUnderUserLabels checks that a goroutine that has attached a span stays in
// that span after the user replaces its labels, and publishes the attached attributes or none.
func TestAttachedAttributesUnderUserLabels(t *testing.T) {
	s := serve(t, WithAttributeKeys("tenant"))
	apart(func() {
		ctx, a := s.start(with(context.Background(), "tenant", "one"))
		two := with(ctx, "tenant", "two")
		attached := Attach(two)
		Do(two, pprof.Labels("user", "label"), func(context.Context) {
			assert.Equal(t, "two", decoded(t, s.path.Features().Keys.Keys(), string(installed().Attributes()))["tenant"])
		})
		s.assertAttributes(t, a, "tenant", "two")
		pprof.SetGoroutineLabels(context.Background())
		Refresh(two)
		s.assertAttributes(t, a, "tenant", "two")
		pprof.Do(two, pprof.Labels("user", "label"), func(context.Context) {
			_, child := s.start(two)
			child.End()
			assert.Equal(t, number(a), s.shown(t).goroutine)
			assert.Empty(t, installed().Attributes(), "unknown attributes must be omitted")
		})
		Refresh(two)
		s.assertAttributes(t, a, "tenant", "two")
		attached.Detach()
		s.assertAttributes(t, a, "tenant", "one")
		a.End()
	})
	s.assertNowhere(t)
}

// TestAttachAttributesWhileItEnds checks that no record of a span stays valid if a goroutine
// attaches the span with different attributes while another goroutine ends it.
func TestAttachAttributesWhileItEnds(t *testing.T) {
	s := serve(t, WithSlotCapacity(64), WithAttributeKeys("app"))
	old := runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	defer runtime.GOMAXPROCS(old)
	type round struct {
		ctx   context.Context
		begun atomic.Bool
		left  chan *gorecord.Record
	}
	rounds := make(chan *round)
	var worker sync.WaitGroup
	worker.Go(func() {
		// With many labels, it takes a long time to create a record.
		var kvs []string
		for i := range 200 {
			kvs = append(kvs, fmt.Sprint("key", i), "value")
		}
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(kvs...)))
		for r := range rounds {
			r.begun.Store(true)
			attached := Attach(r.ctx)
			r.left <- installed()
			attached.Detach()
		}
	})
	missed, seen := 0, 0
	for n := range testenv.Rounds(2000, 10_000) {
		apart(func() {
			ctx, span := s.root()
			r := &round{ctx: with(ctx, "app", "x"), left: make(chan *gorecord.Record, 1)}
			root := installed()
			rounds <- r
			for !r.begun.Load() {
				runtime.Gosched()
			}
			for range n * 37 % 4096 {
				_ = root.Ref()
			}
			span.End()
			if at := <-r.left; at != nil {
				seen++
				assert.False(t, isValid(t, at), "its span has ended")
			} else {
				missed++
			}
		})
	}
	close(rounds)
	worker.Wait()
	t.Logf("attached %d times, too late %d times", seen, missed)
	s.assertNowhere(t)
}

// isValid reports whether a record is valid for readers.
func isValid(t testing.TB, r *gorecord.Record) bool {
	t.Helper()
	var valid [1]byte
	_, err := selfMemory().ReadAt(valid[:], int64(uintptr(unsafe.Pointer(r)))+int64(gorecord.Offset)+24)
	require.NoError(t, err)
	return valid[0] == 1
}

// TestAttributesThatDoNotFit checks that an attribute that does not fit is omitted, and that
// shorter ones after it are still published.
func TestAttributesThatDoNotFit(t *testing.T) {
	long := strings.Repeat("x", 200)
	s := serve(t, WithAttributeKeys("a", "b", "c", "d"))
	assert.Equal(t, 256, s.carriers.slots.Description().SlotSize)
	ctx := with(context.Background(), "a", long, "b", "1", "c", long, "d", "2")
	apart(func() {
		_, span := s.start(ctx)
		at := s.threads.at(t, uint64(syscall.Gettid()))
		assert.Equal(t, "\x01\x011\x03\x012", at.attributes)
		want := "\x00\xc8" + long + "\x01\x011\x02\xc8" + long + "\x03\x012"
		assert.Equal(t, want, string(installed().Attributes()))
		ctxB, child := s.start(trace.ContextWithSpan(context.Background(), span))
		assert.Empty(t, s.threads.at(t, uint64(syscall.Gettid())).attributes)
		_ = ctxB
		child.End()
		assert.Equal(t, "\x01\x011\x03\x012", s.threads.at(t, uint64(syscall.Gettid())).attributes)
		span.End()
	})
	require.NoError(t, s.processor.Shutdown(context.Background()))

	s = serve(t, WithAttributeKeys("a", "b"), WithSlotAttributeSpace(612))
	assert.Equal(t, 1024, s.carriers.slots.Description().SlotSize)
	apart(func() {
		_, span := s.start(ctx)
		assert.Equal(t, "\x00\xc8"+long+"\x01\x011", s.threads.at(t, uint64(syscall.Gettid())).attributes)
		span.End()
	})
}

// TestNoAttributeKeys checks that without keys contexts are not searched for attributes and slots
// have no room for them.
func TestNoAttributeKeys(t *testing.T) {
	s := serve(t, WithAttributeKeys())
	assert.Equal(t, []string{}, advertisedKeys(t, s.carriers))
	assert.Equal(t, 64, s.carriers.slots.Description().SlotSize)
	apart(func() {
		_, span := s.start(untouched{with(context.Background(), "app", "shop")})
		s.assertAttributes(t, span)
		span.End()
	})
	// Keys that are added later get no room in the slots.
	require.NoError(t, s.processor.AddAttributeKeys("app"))
	apart(func() {
		_, span := s.start(with(context.Background(), "app", "shop"))
		assert.Equal(t, "\x00\x04shop", string(installed().Attributes()))
		assert.Empty(t, s.threads.at(t, uint64(syscall.Gettid())).attributes)
		span.End()
	})
}

// untouched is a context that panics if its attributes are looked up.
type untouched struct{ context.Context }

func (c untouched) Value(key any) any {
	if strings.Contains(fmt.Sprintf("%T", key), "attrcontext.") {
		panic("the attributes were looked up")
	}
	return c.Context.Value(key)
}

// TestAddAttributeKeys checks that spans are published with the attributes for keys that were added
// before they started.
func TestAddAttributeKeys(t *testing.T) {
	errs := handled(t)
	s := serve(t, WithAttributeKeys("a"))
	ctx := with(context.Background(), "a", "1", "b", "2", "c", "3")
	apart(func() {
		_, old := s.start(ctx)
		s.assertAttributes(t, old, "a", "1")
		require.NoError(t, s.processor.AddAttributeKeys("b", "a", ""))
		assert.Equal(t, []string{"a", "b"}, advertisedKeys(t, s.carriers))
		s.assertAttributes(t, old, "a", "1")
		_, young := s.start(ctx)
		s.assertAttributes(t, young, "a", "1", "b", "2")
		young.End()
		old.End()

		// Another provider adds its keys.
		tp := sdktrace.NewTracerProvider(WithPublishing(WithAttributeKeys("c", "b")))
		assert.Equal(t, []string{"a", "b", "c"}, advertisedKeys(t, s.carriers))
		_, span := tp.Tracer("").Start(ctx, "span")
		s.assertAttributes(t, span, "a", "1", "b", "2", "c", "3")
		span.End()
		require.NoError(t, tp.Shutdown(context.Background()))
	})
	// A call that fails adds no keys.
	_, err := New(WithAttributeKeys("d"), WithThreadSlots(false))
	require.ErrorContains(t, err, "WithThreadSlots")
	assert.Equal(t, []string{"a", "b", "c"}, advertisedKeys(t, s.carriers))
	assert.Empty(t, *errs)
	require.NoError(t, s.processor.Shutdown(context.Background()))
	require.NoError(t, s.processor.AddAttributeKeys("d"))
	assert.Equal(t, []string{}, advertisedKeys(t, s.carriers), "after Shutdown")
}

func TestTooManyAttributeKeys(t *testing.T) {
	errs := handled(t)
	var keys []attribute.Key
	for i := range 257 {
		keys = append(keys, attribute.Key(fmt.Sprintf("key.%d", i)))
	}
	s := serve(t, WithAttributeKeys(keys...))
	assert.Len(t, advertisedKeys(t, s.carriers), 256)
	assert.EqualValues(t, 1, s.processor.Stats().RefusedAttributeKeys)
	require.Len(t, *errs, 1)
	require.ErrorContains(t, (*errs)[0], "publish attribute keys: 1 rejected, there are already 256")
	require.NoError(t, s.processor.AddAttributeKeys("more", "and more", "key.7"))
	other, err := New(WithAttributeKeys("yet more"))
	require.NoError(t, err)
	_, span := s.root() // the first provider is alive, too
	require.NoError(t, other.Shutdown(context.Background()))
	span.End()
	assert.EqualValues(t, 4, s.processor.Stats().RefusedAttributeKeys)
	assert.Len(t, *errs, 1, "once")
	apart(func() {
		_, span := s.start(with(context.Background(), "key.255", "last", "key.256", "refused", "key.0", "first"))
		s.assertAttributes(t, span, "key.255", "last", "key.0", "first")
		span.End()
	})
	// The error handler may call AddAttributeKeys.
	var reported atomic.Int64
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {
		reported.Add(1)
		assert.NoError(t, s.processor.AddAttributeKeys("still more"))
	}))
	s.carriers.refusedKeys.Store(0)
	require.NoError(t, s.processor.AddAttributeKeys("one more"))
	assert.EqualValues(t, 1, reported.Load())
	// AddAttributeKeys fails and changes nothing if the keys make the process context too large.
	require.NoError(t, s.processor.Shutdown(context.Background()))
	s = serve(t, WithAttributeKeys("a"))
	publisher, err := resourcepublisher.New(resource.Empty())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Shutdown(context.Background())) })
	require.ErrorIs(t, s.processor.AddAttributeKeys(attribute.Key(strings.Repeat("k", 1<<17))), resourcepublisher.ErrTooLarge)
	assert.Equal(t, []string{"a"}, advertisedKeys(t, s.carriers))

	var none *SpanProcessor
	assert.NoError(t, none.AddAttributeKeys("a"))
	assert.Zero(t, none.Stats())
}

// TestAttributesUnderLoad checks that no span is published with the attributes of another while
// many goroutines, whose threads share few slots, start and end spans with attributes, and that no slot names an ended
// span afterwards.
func TestAttributesUnderLoad(t *testing.T) {
	for name, opts := range map[string][]Option{
		"everything": {WithSlotCapacity(4)},
		"slots":      {WithLabels(LabelsOff), WithSlotCapacity(4)},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(opts, WithAttributeKeys("trace"))...)
			done := make(chan struct{})
			const workers = 8
			for range workers {
				go func() {
					defer func() { done <- struct{}{} }()
					for n := range testenv.Rounds(50, max(50, long(2000))) {
						ctx, a := s.root()
						// The attribute's value identifies its trace.
						own := with(ctx, "trace", a.SpanContext().TraceID().String())
						at := Attach(own)
						ctxB, b := s.start(own)
						if n%3 == 0 {
							handed := make(chan struct{})
							Go(ctxB, func(ctx context.Context) {
								_, c := s.start(ctx)
								c.End()
								if n%2 == 0 {
									b.End()
								}
								close(handed)
							})
							<-handed
						}
						b.End()
						at.Detach()
						a.End()
					}
				}()
			}
			looks, shown := 0, 0
			for left := workers; left > 0; {
				select {
				case <-done:
					left--
				default:
				}
				if m := s.threads; m != nil {
					b := make([]byte, m.info.Capacity*m.info.SlotSize)
					again := bytes.Clone(b)
					_, err := m.ReadAt(b, int64(m.address(0)))
					require.NoError(t, err)
					_, err = m.ReadAt(again, int64(m.address(0)))
					require.NoError(t, err)
					for n := range m.info.Capacity {
						one := b[n*m.info.SlotSize:][:m.info.SlotSize]
						at, free := m.decode(one)
						if !free || at.spanID == 0 || !bytes.Equal(one, again[n*m.info.SlotSize:][:m.info.SlotSize]) {
							continue
						}
						looks++
						if at.attributes != "" {
							shown++
							want := fmt.Sprintf("\x00\x20%016x%016x", at.traceIDHigh, at.traceIDLow)
							if !assert.Equal(t, want, at.attributes) {
								return
							}
						}
					}
				}
			}
			s.assertNowhere(t)
			t.Logf("%d slots read, %d with attributes", looks, shown)
		})
	}
}
