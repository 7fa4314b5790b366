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

// All data from other processes and their files enters profiles here: text is made valid, and data that
// profiles cannot represent is dropped. All tables are keyed by the result.

const (
	// maxForeignText bounds a text in bytes. Longer texts are truncated.
	maxForeignText = 16 << 10
	// maxForeignAttributes bounds the number of attributes of a resource or a sample. maxDepth bounds the
	// nesting of their values.
	maxForeignAttributes = 1 << 10
	maxDepth             = 16
)

// replacement replaces invalid bytes and control characters.
const replacement = "�"

// validText returns s as valid UTF-8 without control characters, cut to maxForeignText.
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

// validAttributes returns the attributes that profiles can represent, the last one of each key, sorted by
// key, and the number of dropped ones. Attributes that refer to a dictionary of strings are dropped, because
// these strings are in the sender's dictionary.
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

// validValue returns a value that profiles can represent, or false.
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
