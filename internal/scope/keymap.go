// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scope

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/contextattr"
	"github.com/otelctx/otelctx/internal/gorecord"
)

var _ = contextattr.Use()

// KeyMap is the keys of the attributes that are published: the index of a key is its key
// byte in the encoding of OTEP 4947. It never changes; another one that begins with its
// keys may take its place.
type KeyMap struct{ keys []attribute.Key }

// MaxKeys is how many keys there are at most, each being a byte.
const MaxKeys = 256

// Append returns m with those of keys that it does not have, and how many it has no
// room for. nil stands for an empty m. Empty keys are passed over. If none is new it is
// m itself.
func (m *KeyMap) Append(keys ...attribute.Key) (more *KeyMap, refused int) {
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
	return &KeyMap{all}, refused
}

// Keys returns the keys, which the caller must not change.
func (m *KeyMap) Keys() []attribute.Key {
	if m == nil {
		return nil
	}
	return m.keys
}

// published is what a Scope has of the keys of a map.
type published struct {
	by *KeyMap
	// attributes are nil if it has none of them.
	attributes *gorecord.Attributes
}

// Of returns what ctx has of the keys, or nil if that is nothing. It is encoded once for
// each Scope, and again for each map.
func (m *KeyMap) Of(ctx context.Context) *gorecord.Attributes {
	if m == nil {
		return nil // and ctx is not even looked at
	}
	s := contextattr.From(ctx)
	if s == nil {
		return nil
	}
	p, _ := s.Published.Load().(*published)
	if p == nil || p.by != m {
		p = &published{m, m.encode(s)}
		s.Published.Store(p)
	}
	return p.attributes
}

func (m *KeyMap) encode(s *contextattr.Scope) *gorecord.Attributes {
	attrs := s.Attrs()
	var entries []gorecord.Attribute
	for i, key := range m.keys {
		at, ok := slices.BinarySearchFunc(attrs, key, func(kv attribute.KeyValue, key attribute.Key) int {
			return strings.Compare(string(kv.Key), string(key))
		})
		if ok {
			entries = append(entries, gorecord.Attribute{
				Index: uint8(i), Key: string(key), Value: attrs[at].Value.String(),
			})
		}
	}
	return gorecord.NewAttributes(entries)
}

// Decode returns what Encoded returned of attributes of these keys.
func (m *KeyMap) Decode(encoded []byte) *gorecord.Attributes {
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
