// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scope

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/attribute"
)

func texts(kvs []attribute.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range kvs {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

func TestWith(t *testing.T) {
	one := With(context.Background(), attribute.String("a", "1"), attribute.String("b", "1"))
	two := With(one, attribute.Int("b", 2), attribute.String("c", "2"), attribute.String("c", "3"))
	assert.Equal(t, map[string]string{"a": "1", "b": "1"}, texts(From(one).Attrs()), "it stays as it was")
	assert.Equal(t, map[string]string{"a": "1", "b": "2", "c": "3"}, texts(From(two).Attrs()))
	set := Attributes(two)
	assert.Equal(t, From(two).Attrs(), set.ToSlice())

	assert.Equal(t, one, With(one), "nothing to add")
	assert.Equal(t, one, With(one, attribute.KeyValue{}), "no key")
	assert.Equal(t, map[string]string{"a": "1"}, texts(From(With(nil, attribute.String("a", "1"))).Attrs())) //nolint:staticcheck // nil is allowed
	kvs := []attribute.KeyValue{attribute.String("a", "1")}
	three := With(context.Background(), kvs...)
	kvs[0] = attribute.String("a", "changed")
	assert.Equal(t, map[string]string{"a": "1"}, texts(From(three).Attrs()))
}

func TestWithout(t *testing.T) {
	for _, ctx := range []context.Context{nil, context.Background(), context.WithValue(context.Background(), contextKey{}, "no scope")} {
		assert.Nil(t, From(ctx))
		assert.Nil(t, From(ctx).Attrs())
		set := Attributes(ctx)
		assert.Zero(t, set.Len())
	}
	ctx := context.Background()
	assert.Zero(t, testing.AllocsPerRun(100, func() { From(ctx) }))
}
