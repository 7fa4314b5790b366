// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package keymap encodes context-scoped attributes as OTEP 4947 specifies, so that they can be
// published with spans.
//
// The package does not depend on spans.
package keymap

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/gorecord"
)

var _ = attrcontext.Use()

// Map is a list of the attribute keys to publish. In the encoding of OTEP 4947, a key is
// represented by its index in the list. A Map is immutable: Append returns a new one.
type Map struct{ keys []attribute.Key }

// MaxKeys is the maximum number of keys. It is limited because the index of a key is a byte.
const MaxKeys = 256

// Append returns a Map that has the keys of m, followed by those in keys that are new. It skips
// empty keys and duplicates. If it adds no key, it returns m. refused is the number of new keys for
// which there was no room, because of the limit [MaxKeys]. m may be nil.
func (m *Map) Append(keys ...attribute.Key) (more *Map, refused int) {
	all := m.Keys()
	for _, key := range keys {
		switch {
		case key == "" || slices.Contains(all, key):
		case len(all) == MaxKeys:
			refused++
		default:
			all = append(slices.Clip(all), key)
		}
	}
	if len(all) == len(m.Keys()) {
		return m, refused
	}
	return &Map{all}, refused
}

// Keys returns the keys, which the caller must not change.
func (m *Map) Keys() []attribute.Key {
	if m == nil {
		return nil
	}
	return m.keys
}

// published is the encoding of the attributes of a context with one Map. It is cached with them.
type published struct {
	keys *Map
	// attributes is nil if the context has no attribute with one of the keys.
	attributes *gorecord.Attributes
}

// Of returns those attributes of ctx whose keys are in m, encoded, or nil if there are none. The result
// for one Map is cached with the attributes.
func (m *Map) Of(ctx context.Context) *gorecord.Attributes {
	if m == nil {
		return nil // saves the lookup in ctx
	}
	attrs := attrcontext.From(ctx)
	if attrs == nil {
		return nil
	}
	p, _ := attrs.Published.Load().(*published)
	if p == nil || p.keys != m {
		p = &published{m, m.encode(attrs)}
		attrs.Published.Store(p)
	}
	return p.attributes
}

func (m *Map) encode(a *attrcontext.Attributes) *gorecord.Attributes {
	attrs := a.Attrs()
	var entries []gorecord.Attribute
	for i, key := range m.keys {
		index, ok := slices.BinarySearchFunc(attrs, key, func(kv attribute.KeyValue, key attribute.Key) int {
			return strings.Compare(string(kv.Key), string(key))
		})
		if ok {
			entries = append(entries, gorecord.Attribute{
				Index: uint8(i), Key: string(key), Value: attrs[index].Value.String(),
			})
		}
	}
	return gorecord.NewAttributes(entries)
}

// Decode decodes the result of [gorecord.Attributes.Encoded] for attributes encoded with this
// Map.
func (m *Map) Decode(encoded []byte) *gorecord.Attributes {
	var entries []gorecord.Attribute
	for len(encoded) >= 2 && len(encoded) >= 2+int(encoded[1]) {
		end := 2 + int(encoded[1])
		entries = append(entries, gorecord.Attribute{
			Index: encoded[0], Key: string(m.keys[encoded[0]]), Value: string(encoded[2:end]),
		})
		encoded = encoded[end:]
	}
	return gorecord.NewAttributes(entries)
}
