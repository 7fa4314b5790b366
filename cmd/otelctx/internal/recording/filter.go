// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/hex"
	"slices"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// Filter passes only samples that have an attribute with this key and value. The attribute may belong to the
// sample, to its span or to the resource of its process. Numbers and booleans are compared as text. The keys
// trace_id and span_id match the ids in lower-case hexadecimal.
type Filter struct{ Key, Value string }

// passes reports whether a sample passes all filters.
func passes(filters []Filter, span *sampler.Span, attributes ...[]*commonpb.KeyValue) bool {
	for _, f := range filters {
		if !f.passes(span, attributes) {
			return false
		}
	}
	return true
}

func (f Filter) passes(span *sampler.Span, attributes [][]*commonpb.KeyValue) bool {
	switch {
	case f.Key == "trace_id" && span.Exists():
		return f.Value == hex.EncodeToString(span.TraceID[:])
	case f.Key == "span_id" && span.Exists():
		return f.Value == hex.EncodeToString(span.SpanID[:])
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

// Bounds of the attributes remembered from filtered samples.
const (
	maxFilteredKeys   = 256
	maxFilteredValues = 8
	maxFilteredText   = 256 // bytes of a key or a value
)

// addFiltered adds the attributes of a dropped sample to seen. It adds values only for keys that occur in
// filters.
func addFiltered(seen map[string][]string, filters []Filter, span *sampler.Span, attributes ...[]*commonpb.KeyValue) {
	add := func(key, value string) {
		values, known := seen[key]
		if len(key) > maxFilteredText || !known && len(seen) >= maxFilteredKeys {
			return
		}
		wanted := slices.ContainsFunc(filters, func(f Filter) bool { return f.Key == key })
		if wanted && len(values) < maxFilteredValues && len(value) <= maxFilteredText && !slices.Contains(values, value) {
			values = append(values, value)
		}
		seen[key] = values
	}
	if span.Exists() {
		add("trace_id", hex.EncodeToString(span.TraceID[:]))
		add("span_id", hex.EncodeToString(span.SpanID[:]))
	}
	for _, kvs := range attributes {
		for _, kv := range kvs {
			if text, ok := profile.Text(kv.GetValue()); ok {
				add(kv.GetKey(), text)
			}
		}
	}
}
