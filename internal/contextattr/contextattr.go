// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package contextattr

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
)

// contextKey finds the Scope in a context.
type contextKey struct{}

// Scope is the attributes that a context carries. It never changes, but for what is
// noted in it, and is safe for concurrent use.
type Scope struct {
	set attribute.Set
	// attrs are the set's, sorted by key.
	attrs []attribute.KeyValue
	// Published is what package scope has encoded of it last.
	Published atomic.Value
	// Measured is what package scopedattr adds of it to measurements.
	Measured atomic.Value
}

// used is whether this program links anything that uses the attributes.
var used atomic.Bool

// Use turns [With] on, and returns true. Packages that use the attributes of contexts call it
// when they are initialized.
func Use() bool {
	used.Store(true)
	return true
}

// With returns a context that has attrs beside the attributes that ctx has already.
// Where keys are equal attrs win, and the last of them. ctx, and whatever else was
// derived from it, stays as it is.
//
// Attributes without a key are dropped. Without any other, ctx itself is returned. A
// nil ctx stands for [context.Background]. attrs may be reused after the call. Before [Use]
// it returns ctx, as an API without an SDK does nothing.
func With(ctx context.Context, attrs ...attribute.KeyValue) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	if !used.Load() {
		return ctx
	}
	above := From(ctx).Attrs()
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
	return context.WithValue(ctx, contextKey{}, &Scope{set: set, attrs: set.ToSlice()})
}

// From returns the Scope of ctx, or nil if it has none or is nil.
func From(ctx context.Context) *Scope {
	if ctx == nil {
		return nil
	}
	s, _ := ctx.Value(contextKey{}).(*Scope)
	return s
}

// Attributes returns the attributes that ctx has by [With]: the empty set if it has none,
// or is nil.
func Attributes(ctx context.Context) attribute.Set {
	return From(ctx).Set()
}

// Set returns the attributes of s; those of nil are the empty set.
func (s *Scope) Set() attribute.Set {
	if s == nil {
		return *attribute.EmptySet()
	}
	return s.set
}

// Attrs returns the attributes of s, sorted by key, none twice; those of nil are none.
// The caller must not change them.
func (s *Scope) Attrs() []attribute.KeyValue {
	if s == nil {
		return nil
	}
	return s.attrs
}
