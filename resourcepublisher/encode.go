// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/wire"
)

// MaxPayloadSize is the largest process context, encoded, in bytes: 65,536, the limit of
// the OpenTelemetry eBPF profiler.
const MaxPayloadSize = wire.MaxProcessContextPayload

// ErrTooLarge is wrapped by the error for a process context of more than
// [MaxPayloadSize] bytes.
var ErrTooLarge = errors.New("process context is too large")

// encode returns the ProcessContext message for r, less the attributes that keep
// declines, and extra.
func encode(r *resource.Resource, keep attribute.Filter, extra map[attribute.Key]attribute.Value) ([]byte, error) {
	// The message always has a resource, also an empty one: without any field it
	// would have no bytes, which readers take for no context.
	msg := &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{}}
	for it := r.Iter(); it.Next(); {
		kv := it.Attribute()
		if keep != nil && !keep(kv) {
			continue
		}
		pb, err := keyValue(kv)
		if err != nil {
			return nil, fmt.Errorf("resource attribute %w", err)
		}
		msg.Resource.Attributes = append(msg.Resource.Attributes, pb)
	}
	for key, value := range extra {
		pb, err := keyValue(attribute.KeyValue{Key: key, Value: value})
		if err != nil {
			return nil, fmt.Errorf("attribute %w", err)
		}
		msg.Attributes = append(msg.Attributes, pb)
	}
	if url := r.SchemaURL(); url != "" {
		pb, err := keyValue(attribute.String(wire.AttributeSchemaURL, url))
		if err != nil {
			return nil, fmt.Errorf("attribute %w", err)
		}
		msg.Attributes = append(msg.Attributes, pb)
	}
	slices.SortFunc(msg.GetAttributes(), func(a, b *commonpb.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })

	if size := proto.Size(msg); size > MaxPayloadSize {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, size, MaxPayloadSize)
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("encode process context: %w", err)
	}
	return payload, nil
}

// keyValue returns kv as OTLP has it. Every value of the attribute package has an
// equivalent there. The error says which key it is about.
func keyValue(kv attribute.KeyValue) (*commonpb.KeyValue, error) { return nestedKeyValue(kv, 0) }

func nestedKeyValue(kv attribute.KeyValue, depth int) (*commonpb.KeyValue, error) {
	// The wire format allows nothing else, and protobuf's error would not say which
	// attribute it is about.
	if !utf8.ValidString(string(kv.Key)) {
		return nil, fmt.Errorf("%q: key is not valid UTF-8", kv.Key)
	}
	value, err := anyValue(kv.Value, depth)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", kv.Key, err)
	}
	return &commonpb.KeyValue{Key: string(kv.Key), Value: value}, nil
}

// anyValue converts a value inside of depth others.
func anyValue(v attribute.Value, depth int) (*commonpb.AnyValue, error) {
	if depth > wire.MaxValueNesting {
		return nil, fmt.Errorf("value nests deeper than %d levels", wire.MaxValueNesting)
	}
	switch v.Type() {
	case attribute.EMPTY:
		return &commonpb.AnyValue{}, nil
	case attribute.BOOL:
		return boolValue(v.AsBool())
	case attribute.INT64:
		return intValue(v.AsInt64())
	case attribute.FLOAT64:
		return doubleValue(v.AsFloat64())
	case attribute.STRING:
		return stringValue(v.AsString())
	case attribute.BYTESLICE:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: v.AsByteSlice()}}, nil
	case attribute.BOOLSLICE:
		return arrayValue(v.AsBoolSlice(), boolValue)
	case attribute.INT64SLICE:
		return arrayValue(v.AsInt64Slice(), intValue)
	case attribute.FLOAT64SLICE:
		return arrayValue(v.AsFloat64Slice(), doubleValue)
	case attribute.STRINGSLICE:
		return arrayValue(v.AsStringSlice(), stringValue)
	case attribute.SLICE:
		return arrayValue(v.AsSlice(), func(v attribute.Value) (*commonpb.AnyValue, error) {
			return anyValue(v, depth+1)
		})
	case attribute.MAP:
		return mapValue(v.AsMap(), depth)
	default:
		return nil, fmt.Errorf("value of unknown type %v", v.Type())
	}
}

func boolValue(v bool) (*commonpb.AnyValue, error) {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v}}, nil
}

func intValue(v int64) (*commonpb.AnyValue, error) {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}, nil
}

func doubleValue(v float64) (*commonpb.AnyValue, error) {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}, nil
}

func stringValue(v string) (*commonpb.AnyValue, error) {
	if !utf8.ValidString(v) {
		return nil, errors.New("value is not valid UTF-8")
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}, nil
}

func arrayValue[T any](vs []T, element func(T) (*commonpb.AnyValue, error)) (*commonpb.AnyValue, error) {
	array := &commonpb.ArrayValue{Values: make([]*commonpb.AnyValue, len(vs))}
	for i, v := range vs {
		var err error
		if array.Values[i], err = element(v); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: array}}, nil
}

// mapValue keeps the last of entries with the same key, as the SDK does in
// resources: keys must be unique at every level.
func mapValue(kvs []attribute.KeyValue, depth int) (*commonpb.AnyValue, error) {
	list := &commonpb.KeyValueList{}
	at := make(map[attribute.Key]int, len(kvs))
	for _, kv := range kvs {
		pb, err := nestedKeyValue(kv, depth+1)
		if err != nil {
			return nil, fmt.Errorf("entry %w", err)
		}
		if i, ok := at[kv.Key]; ok {
			list.Values[i] = pb
			continue
		}
		at[kv.Key] = len(list.GetValues())
		list.Values = append(list.Values, pb)
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: list}}, nil
}
