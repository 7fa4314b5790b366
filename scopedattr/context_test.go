// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

func TestContext(t *testing.T) {
	for _, tt := range []struct {
		name   string
		layers []attrs
		want   attrs
	}{
		{"nothing set", nil, attrs{}},
		{"one call", []attrs{{"a": "1", "b": "2"}}, attrs{"a": "1", "b": "2"}},
		{"a later call overrides equal keys", []attrs{{"a": "1"}, {"a": "2"}}, attrs{"a": "2"}},
		{"a later call leaves other keys", []attrs{{"a": "1", "b": "1"}, {"b": "2", "c": "3"}}, attrs{"a": "1", "b": "2", "c": "3"}},
		{"an empty call changes nothing", []attrs{{"a": "1"}, {}}, attrs{"a": "1"}},
		{"an empty value is a value", []attrs{{"a": "1"}, {"a": ""}}, attrs{"a": ""}},
		{"a key is needed", []attrs{{"": "1", "a": "1"}}, attrs{"a": "1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := AttributesFromContext(with(t.Context(), tt.layers...))
			assert.Equal(t, tt.want, asAttrs(t, set.ToSlice()))
		})
	}
}

func TestContextLastOfEqualKeys(t *testing.T) {
	set := AttributesFromContext(ContextWithAttributes(t.Context(), attribute.Int("a", 1), attribute.String("b", ""), attribute.Int("a", 2)))
	want := attribute.NewSet(attribute.Int("a", 2), attribute.String("b", ""))
	assert.True(t, want.Equals(&set))
}

func TestContextKeepsTypes(t *testing.T) {
	set := AttributesFromContext(ContextWithAttributes(t.Context(), everyType()...))
	want := attribute.NewSet(everyType()...)
	assert.True(t, want.Equals(&set))
}

func TestContextUnchanged(t *testing.T) {
	ctx := with(t.Context(), attrs{"a": "1"})
	assert.Equal(t, ctx, ContextWithAttributes(ctx))
	assert.Equal(t, ctx, ContextWithAttributes(ctx, attribute.String("", "x")))
}

//nolint:staticcheck // SA1012: nil contexts are what is tested
func TestNilContext(t *testing.T) {
	assert.Equal(t, attribute.NewSet(), AttributesFromContext(nil))
	set := AttributesFromContext(ContextWithAttributes(nil, attribute.Int("a", 1)))
	assert.Equal(t, 1, set.Len())
	assert.NotNil(t, ContextWithAttributes(nil))
}

// TestImmutable derives from one context twice, and changes what it was made of.
func TestImmutable(t *testing.T) {
	given := []attribute.KeyValue{attribute.Int("b", 1), attribute.Int("a", 1)}
	base := ContextWithAttributes(t.Context(), given...)
	assert.Equal(t, []attribute.KeyValue{attribute.Int("b", 1), attribute.Int("a", 1)}, given, "the caller's")
	given[0] = attribute.Int("b", 99)
	left := ContextWithAttributes(base, attribute.Int("a", 2))
	right := ContextWithAttributes(base, attribute.Int("c", 3))
	for _, tt := range []struct {
		ctx  context.Context
		want attrs
	}{
		{base, attrs{"a": "1", "b": "1"}},
		{left, attrs{"a": "2", "b": "1"}},
		{right, attrs{"a": "1", "b": "1", "c": "3"}},
	} {
		set := AttributesFromContext(tt.ctx)
		assert.Equal(t, tt.want, asAttrs(t, set.ToSlice()))
		clear(set.ToSlice())
	}
}

func TestContextShared(t *testing.T) {
	base := with(t.Context(), attrs{"a": "1", "b": "1"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				set := AttributesFromContext(ContextWithAttributes(base, attribute.Int("a", i)))
				got, _ := set.Value("a")
				assert.EqualValues(t, i, got.AsInt64())
			}
		})
	}
	wg.Wait()
}

// TestNotPropagated sends a context to another service.
func TestNotPropagated(t *testing.T) {
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	member, err := baggage.NewMember("key", "value")
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	ctx = with(baggage.ContextWithBaggage(ctx, bag), attrs{"tenant": "secret"})
	propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	assert.Equal(t, propagation.MapCarrier{
		"baggage":     "key=value",
		"traceparent": "00-01000000000000000000000000000000-0200000000000000-01",
	}, carrier)
	set := AttributesFromContext(propagator.Extract(t.Context(), carrier))
	assert.Zero(t, set.Len())
}

// FuzzContext adds lists of attributes to a context, and to a map.
func FuzzContext(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0xff, 1, 31, 12, 0x80, 0xe0, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx := t.Context()
		oracle := map[attribute.Key]attribute.Value{}
		for _, list := range sequence(data) {
			above, before := AttributesFromContext(ctx), ctx
			aboveList := above.ToSlice()
			ctx = ContextWithAttributes(ctx, list...)
			for _, kv := range list {
				if kv.Key != "" {
					oracle[kv.Key] = kv.Value
				}
			}
			set := AttributesFromContext(ctx)
			got := set.ToSlice()
			require.Len(t, got, len(oracle))
			require.True(t, slices.IsSortedFunc(got, func(a, b attribute.KeyValue) int {
				if a.Key < b.Key {
					return -1
				}
				return 1
			}))
			for _, kv := range got {
				require.Equal(t, oracle[kv.Key], kv.Value)
			}
			after := AttributesFromContext(before)
			require.Equal(t, aboveList, after.ToSlice(), "the context that it was derived from")
		}
	})
}
