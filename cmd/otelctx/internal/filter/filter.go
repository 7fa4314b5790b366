// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package filter selects samples by their attributes.
package filter

import (
	"encoding/hex"
	"slices"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// Filter passes only samples that have an attribute with this key and value. The attribute may belong to the
// sample, to its span or to the resource of its process. Numbers and booleans are compared as text. The keys
// trace_id and span_id match the ids in lower-case hexadecimal.
type Filter struct{ Key, Value string }

// Filters pass samples that all of them pass.
type Filters []Filter

// IDs are the ids of a sample's span. The zero value means no span.
type IDs struct {
	TraceID [16]byte
	SpanID  [8]byte
}

func (i *IDs) exist() bool { return *i != IDs{} }

// Pass reports whether a sample passes.
func (f Filters) Pass(ids IDs, attributes ...[]*commonpb.KeyValue) bool {
	for _, one := range f {
		if !one.passes(&ids, attributes) {
			return false
		}
	}
	return true
}

func (f Filter) passes(ids *IDs, attributes [][]*commonpb.KeyValue) bool {
	switch {
	case f.Key == "trace_id" && ids.exist():
		return f.Value == hex.EncodeToString(ids.TraceID[:])
	case f.Key == "span_id" && ids.exist():
		return f.Value == hex.EncodeToString(ids.SpanID[:])
	}
	for _, kvs := range attributes {
		for _, kv := range kvs {
			if text, ok := profile.Text(kv.GetValue()); ok && kv.GetKey() == f.Key && text == f.Value {
				return true
			}
		}
	}
	return false
}

// Bounds of [Dropped].
const (
	maxKeys   = 256
	maxValues = 8
	maxText   = 256 // bytes of a key or a value
)

// Dropped maps the attribute keys of samples that did not pass to values. It has values only for keys that occur in the
// filters. Its size is bounded.
type Dropped map[string][]string

// Add adds the attributes of a sample that did not pass.
func (d Dropped) Add(filters Filters, ids IDs, attributes ...[]*commonpb.KeyValue) {
	add := func(key, value string) {
		values, known := d[key]
		if len(key) > maxText || !known && len(d) >= maxKeys {
			return
		}
		wanted := slices.ContainsFunc(filters, func(f Filter) bool { return f.Key == key })
		if wanted && len(values) < maxValues && len(value) <= maxText && !slices.Contains(values, value) {
			values = append(values, value)
		}
		d[key] = values
	}
	if ids.exist() {
		add("trace_id", hex.EncodeToString(ids.TraceID[:]))
		add("span_id", hex.EncodeToString(ids.SpanID[:]))
	}
	for _, kvs := range attributes {
		for _, kv := range kvs {
			if text, ok := profile.Text(kv.GetValue()); ok {
				add(kv.GetKey(), text)
			}
		}
	}
}
