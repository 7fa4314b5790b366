// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"strings"
	"unicode"
	"unicode/utf8"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// The functions in this file sanitize all data from other processes and their files before it enters profiles.
// They make text valid and drop data that profiles cannot represent. Dictionaries look up entries by their
// sanitized content.

const (
	// maxForeignText is the maximum size of a text in bytes. Longer texts are cut.
	maxForeignText = 16 << 10
	// maxForeignAttributes is the maximum number of attributes of a resource or a sample, and maxDepth the
	// maximum nesting of their values.
	maxForeignAttributes = 1 << 10
	maxDepth             = 16
)

// replacement replaces invalid bytes and control characters.
const replacement = "�"

// validText cuts s to maxForeignText bytes, and then replaces invalid UTF-8 and control characters. The
// replacements can make the result up to three times as long.
func validText(s string) string {
	if len(s) > maxForeignText {
		s = s[:maxForeignText]
	}
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] < unicode.MaxASCII
	}
	if plain {
		return s
	}
	s = strings.ToValidUTF8(s, replacement)
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// validMapping returns m with valid text.
func validMapping(m symbols.Mapping) symbols.Mapping {
	m.Path, m.GNUBuildID, m.GoBuildID, m.HTLHash = validText(m.Path), validText(m.GNUBuildID), validText(m.GoBuildID), validText(m.HTLHash)
	return m
}

// validAttributes returns the attributes that profiles can represent, sorted by key, with only the last attribute
// of each key. It also returns the number of attributes that it dropped. It drops attributes whose key or value
// is an index of a string table, because that table is not available here.
func validAttributes(attributes []*commonpb.KeyValue, depth int) (valid []*commonpb.KeyValue, dropped int) {
	if len(attributes) > maxForeignAttributes {
		dropped = len(attributes) - maxForeignAttributes
		attributes = attributes[:maxForeignAttributes]
	}
	for _, a := range attributes {
		key := validText(a.GetKey())
		value, ok := validValue(a.GetValue(), depth)
		if key == "" || a.GetKeyStrindex() != 0 || !ok {
			dropped++
			continue
		}
		valid = append(valid, &commonpb.KeyValue{Key: key, Value: value})
	}
	return unique(valid), dropped
}

// validValue returns a sanitized copy of value, or false if profiles cannot represent value.
func validValue(value *commonpb.AnyValue, depth int) (*commonpb.AnyValue, bool) {
	if depth == maxDepth {
		return nil, false
	}
	switch v := value.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: validText(v.StringValue)}}, true
	case *commonpb.AnyValue_ArrayValue:
		array := &commonpb.ArrayValue{}
		for _, element := range v.ArrayValue.GetValues() {
			e, ok := validValue(element, depth+1)
			if !ok {
				return nil, false
			}
			array.Values = append(array.Values, e)
		}
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: array}}, true
	case *commonpb.AnyValue_KvlistValue:
		list, dropped := validAttributes(v.KvlistValue.GetValues(), depth+1)
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: list}}}, dropped == 0
	case *commonpb.AnyValue_BoolValue, *commonpb.AnyValue_IntValue, *commonpb.AnyValue_DoubleValue, *commonpb.AnyValue_BytesValue:
		return &commonpb.AnyValue{Value: value.GetValue()}, true
	case nil:
		return &commonpb.AnyValue{}, true
	default:
		return nil, false
	}
}
