// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package attrcontext stores context-scoped attributes (OTEP 4931) in contexts. It imports only the
// OpenTelemetry API, so that libraries that just set attributes link nothing else. It does not
// depend on the packages that read the attributes.
package attrcontext

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
)

// contextKey is the key of the Attributes in a context.
type contextKey struct{}

// Attributes are the attributes of a context. They are immutable except for their caches, and safe for
// concurrent use.
type Attributes struct {
	set attribute.Set
	// attrs are the attributes of set, sorted by key.
	attrs []attribute.KeyValue
	// Published caches the encoding that package keymap creates.
	Published atomic.Value
	// Measured caches the attributes that package scopedattr adds to measurements.
	Measured atomic.Value
}

// used is true if the program links a package that uses the attributes.
var used atomic.Bool

// Use enables [With]. Packages that use the attributes call it during initialization. It always
// returns true, so that a variable declaration can call it.
func Use() bool {
	used.Store(true)
	return true
}

// With returns a context derived from ctx that has attrs in addition to the attributes of ctx. An
// attribute in attrs replaces one of ctx with the same key, and a later one in attrs replaces an
// earlier one.
//
// Attributes without a key are dropped. If no attribute is left, With returns ctx. A nil ctx means
// [context.Background]. The caller may reuse attrs. Until [Use] is called, With returns ctx
// unchanged, just as the OpenTelemetry API does nothing without an SDK.
func With(ctx context.Context, attrs ...attribute.KeyValue) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	if !used.Load() {
		return ctx
	}
	inherited := From(ctx).Attrs()
	merged := make([]attribute.KeyValue, len(inherited), len(inherited)+len(attrs))
	copy(merged, inherited)
	for _, kv := range attrs {
		if kv.Valid() {
			merged = append(merged, kv)
		}
	}
	if len(merged) == len(inherited) {
		return ctx
	}
	// If keys are equal, NewSet keeps the last attribute.
	set := attribute.NewSet(merged...)
	return context.WithValue(ctx, contextKey{}, &Attributes{set: set, attrs: set.ToSlice()})
}

// From returns the attributes set on ctx by [With], or nil if there are none or ctx is nil.
func From(ctx context.Context) *Attributes {
	if ctx == nil {
		return nil
	}
	a, _ := ctx.Value(contextKey{}).(*Attributes)
	return a
}

// SetOf returns the attributes set on ctx by [With]. The set is empty if there are none or ctx is nil.
func SetOf(ctx context.Context) attribute.Set {
	return From(ctx).Set()
}

// Set returns the attributes as a set, which is empty if a is nil.
func (a *Attributes) Set() attribute.Set {
	if a == nil {
		return *attribute.EmptySet()
	}
	return a.set
}

// Attrs returns the attributes sorted by key, without duplicates. It returns nil if a is nil.
// The caller must not modify them.
func (a *Attributes) Attrs() []attribute.KeyValue {
	if a == nil {
		return nil
	}
	return a.attrs
}

// HasKey reports whether attrs has key.
func HasKey(attrs []attribute.KeyValue, key attribute.Key) bool {
	for i := range attrs {
		if attrs[i].Key == key {
			return true
		}
	}
	return false
}
