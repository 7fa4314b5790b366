// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package attrcontext

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/attribute"
)

// TestFromWithoutAttributes checks contexts without attributes. The tests of package scopedattr cover contexts with them.
func TestFromWithoutAttributes(t *testing.T) {
	for _, ctx := range []context.Context{nil, context.Background(), context.WithValue(context.Background(), contextKey{}, "something else")} {
		assert.Nil(t, From(ctx))
		assert.Nil(t, From(ctx).Attrs())
		set := SetOf(ctx)
		assert.Zero(t, set.Len())
		assert.Zero(t, testing.AllocsPerRun(100, func() { From(ctx) }))
	}
}

// TestUse checks that With does nothing before Use is called. The tests of package scopedattr cover
// the rest.
func TestUse(t *testing.T) {
	before := used.Load()
	t.Cleanup(func() { used.Store(before) })
	used.Store(false)
	assert.Equal(t, t.Context(), With(t.Context(), attribute.String("http.app", "shop")))
	assert.True(t, Use())
	set := SetOf(With(t.Context(), attribute.String("http.app", "shop")))
	assert.Equal(t, []attribute.KeyValue{attribute.String("http.app", "shop")}, set.ToSlice())
}
