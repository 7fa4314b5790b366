// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/scope"
)

// ContextWithAttributes returns a context that has attrs beside the attributes that ctx
// has already. Where keys are equal attrs win, and the last of them. ctx, and whatever
// else was derived from it, stays as it is.
//
// Attributes without a key are dropped. Without any other, ctx itself is returned. A
// nil ctx stands for [context.Background].
//
// The attributes are merged here, once, whatever number of spans, records and
// measurements are made below. attrs may be reused after the call.
func ContextWithAttributes(ctx context.Context, attrs ...attribute.KeyValue) context.Context {
	return scope.With(ctx, attrs...)
}

// AttributesFromContext returns the attributes that ctx has by [ContextWithAttributes]:
// the empty set if it has none, or is nil. It is for extensions of the SDK, such as
// processors; signals that are to carry the attributes need no help.
func AttributesFromContext(ctx context.Context) attribute.Set {
	return scope.Attributes(ctx)
}

// hasKey reports whether attrs has key.
func hasKey(attrs []attribute.KeyValue, key attribute.Key) bool {
	for i := range attrs {
		if attrs[i].Key == key {
			return true
		}
	}
	return false
}
