// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
)

// contextKey finds the scope in a context.
type contextKey struct{}

// scope is what a context carries. It never changes, but for what MeterProviders note
// in it.
type scope struct {
	set attribute.Set
	// attrs are the set's attributes, sorted by key. Others only ever get copies: samplers may
	// sort what they are shown.
	attrs    []attribute.KeyValue
	measured measuredList
}

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
	if ctx == nil {
		ctx = context.Background()
	}
	var above []attribute.KeyValue
	if s := scopeOf(ctx); s != nil {
		above = s.attrs
	}
	merged := make([]attribute.KeyValue, len(above), len(above)+len(attrs))
	copy(merged, above)
	for _, kv := range attrs {
		if kv.Valid() {
			merged = append(merged, kv)
		}
	}
	if len(merged) == len(above) {
		return ctx
	}
	// The last of equal keys wins in a set.
	set := attribute.NewSet(merged...)
	return context.WithValue(ctx, contextKey{}, &scope{set: set, attrs: set.ToSlice()})
}

// AttributesFromContext returns the attributes that ctx has by [ContextWithAttributes]:
// the empty set if it has none, or is nil. It is for extensions of the SDK, such as
// processors; signals that are to carry the attributes need no help.
func AttributesFromContext(ctx context.Context) attribute.Set {
	if s := scopeOf(ctx); s != nil {
		return s.set
	}
	return *attribute.EmptySet()
}

// scopeOf returns what ctx carries, or nil.
func scopeOf(ctx context.Context) *scope {
	if ctx == nil {
		return nil
	}
	s, _ := ctx.Value(contextKey{}).(*scope)
	return s
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
