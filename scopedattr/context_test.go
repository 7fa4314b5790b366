// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"cmp"
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

func TestContext(t *testing.T) {
	for name, tt := range map[string]struct {
		layers []string
		want   string
	}{
		"nothing set":                          {nil, ""},
		"one call":                             {[]string{"a=1 b=2"}, "a=1 b=2"},
		"a later call overrides equal keys":    {[]string{"a=1", "a=2"}, "a=2"},
		"a later call leaves other keys":       {[]string{"a=1 b=1", "b=2 c=3"}, "a=1 b=2 c=3"},
		"an empty call changes nothing":        {[]string{"a=1", ""}, "a=1"},
		"an empty value is a value":            {[]string{"a=1", "a="}, "a="},
		"attributes without a key are dropped": {[]string{"=1 a=1"}, "a=1"},
		"the last of equal keys wins":          {[]string{"a=1 b= a=2"}, "a=2 b="},
	} {
		t.Run(name, func(t *testing.T) {
			got := AttributesFromContext(with(t.Context(), tt.layers...))
			equal(t, tt.want, got.ToSlice())
		})
	}
	got := AttributesFromContext(ContextWithAttributes(t.Context(), everyType()...))
	want := attribute.NewSet(everyType()...)
	assert.True(t, want.Equals(&got), "types are preserved")
}

func TestContextUnchanged(t *testing.T) {
	ctx := with(t.Context(), "a=1")
	assert.Equal(t, ctx, ContextWithAttributes(ctx))
	assert.Equal(t, ctx, ContextWithAttributes(ctx, attribute.String("", "x")))
}

//nolint:staticcheck // SA1012: the test passes nil contexts on purpose
func TestNilContext(t *testing.T) {
	assert.Equal(t, attribute.NewSet(), AttributesFromContext(nil))
	got := AttributesFromContext(ContextWithAttributes(nil, attribute.Int("a", 1)))
	assert.Equal(t, attribute.NewSet(attribute.Int("a", 1)), got)
	assert.NotNil(t, ContextWithAttributes(nil))
}

// TestImmutable checks that a context does not change when other contexts are derived from it, or
// when slices that were passed to it or returned by it are modified.
func TestImmutable(t *testing.T) {
	given := list("b=1 a=1")
	base := ContextWithAttributes(t.Context(), given...)
	assert.Equal(t, list("b=1 a=1"), given, "the caller's slice")
	given[0] = attribute.Int("b", 99)
	left, right := with(base, "a=2"), with(base, "c=3")
	for ctx, want := range map[context.Context]string{base: "a=1 b=1", left: "a=2 b=1", right: "a=1 b=1 c=3"} {
		got := AttributesFromContext(ctx)
		equal(t, want, got.ToSlice())
		clear(got.ToSlice())
	}
}

// TestNotPropagated checks that a context's attributes are neither injected into a carrier nor
// extracted from it.
func TestNotPropagated(t *testing.T) {
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	bag, err := baggage.Parse("key=value")
	require.NoError(t, err)
	propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	carrier := propagation.MapCarrier{}
	propagator.Inject(with(baggage.ContextWithBaggage(ctx, bag), "tenant=secret"), carrier)
	assert.Equal(t, propagation.MapCarrier{
		"baggage":     "key=value",
		"traceparent": "00-01000000000000000000000000000000-0200000000000000-01",
	}, carrier)
	got := AttributesFromContext(propagator.Extract(t.Context(), carrier))
	assert.Zero(t, got.Len())
}

// FuzzContext checks the attributes of contexts against a map to which the same attributes are
// added.
func FuzzContext(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0xff, 1, 31, 12, 0x80, 0xe0, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx := t.Context()
		oracle := map[attribute.Key]attribute.Value{}
		for _, list := range sequence(data) {
			parentSet, parent := AttributesFromContext(ctx), ctx
			parentAttrs := parentSet.ToSlice()
			ctx = ContextWithAttributes(ctx, list...)
			for _, kv := range list {
				if kv.Key != "" {
					oracle[kv.Key] = kv.Value
				}
			}
			all := AttributesFromContext(ctx)
			got := all.ToSlice()
			require.Len(t, got, len(oracle))
			require.True(t, slices.IsSortedFunc(got, func(a, b attribute.KeyValue) int { return cmp.Compare(a.Key, b.Key) }))
			for _, kv := range got {
				require.Equal(t, oracle[kv.Key], kv.Value)
			}
			after := AttributesFromContext(parent)
			require.Equal(t, parentAttrs, after.ToSlice(), "the parent context")
		}
	})
}
