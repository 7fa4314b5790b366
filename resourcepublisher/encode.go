// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/wire"
)

// MaxPayloadSize is the maximum size of an encoded process context in bytes: 65,536, the limit of
// the OpenTelemetry eBPF profiler.
const MaxPayloadSize = wire.MaxProcessContextPayload

// ErrTooLarge means that an encoded process context would exceed [MaxPayloadSize]. The error that
// reports attributes omitted to stay within the limit wraps it, too.
var ErrTooLarge = errors.New("process context is too large")

// encoded is an encoded ProcessContext message.
type encoded struct {
	payload []byte
	// problems joins one error for each attribute that was left out or changed because the format
	// cannot hold it, and one for all omitted attributes together. The other attributes are
	// published regardless.
	problems error
	// omitted is the number of resource attributes that were left out to stay within
	// MaxPayloadSize.
	omitted int
}

// encode encodes a process context. Its resource has the attributes of r that keep accepts. The
// extra attributes are published outside of the resource. If the result would be too large, encode
// leaves out the largest attributes of r. The error wraps ErrTooLarge if the rest does not fit even
// without any attribute of r.
func encode(r *resource.Resource, keep attribute.Filter, extra ...attributes) (e encoded, err error) {
	// Always set the resource, even if it has no attributes: a message without fields has no bytes,
	// and readers treat an empty payload as a missing context.
	msg := &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{}}
	problem := func(err error) {
		e.problems = errors.Join(e.problems, fmt.Errorf("publish process context: %w", err))
	}
	for it := r.Iter(); it.Next(); {
		kv := it.Attribute()
		if keep != nil && !keep(kv) {
			continue
		}
		pb, err := keyValue(kv)
		if err != nil {
			problem(fmt.Errorf("resource attribute %w", err))
		}
		if pb != nil {
			msg.Resource.Attributes = append(msg.Resource.Attributes, pb)
		}
	}
	for _, kvs := range extra {
		msg.Attributes = slices.AppendSeq(msg.GetAttributes(), maps.Values(kvs))
	}
	if url := r.SchemaURL(); url != "" {
		pb, err := keyValue(attribute.String(wire.AttributeSchemaURL, url))
		if err != nil {
			problem(fmt.Errorf("schema URL: %w", err))
		}
		msg.Attributes = append(msg.Attributes, pb)
	}
	slices.SortFunc(msg.GetAttributes(), func(a, b *commonpb.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })

	size := proto.Size(msg)
	if largest := fit(msg, size-MaxPayloadSize); len(largest) > 0 {
		e.omitted = len(largest)
		problem(fmt.Errorf("%d resource attributes, of which %q is the largest, are left out: %w: %d bytes, at most %d",
			len(largest), largest[0].GetKey(), ErrTooLarge, size, MaxPayloadSize))
	}
	if size := proto.Size(msg); size > MaxPayloadSize {
		return encoded{}, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, size, MaxPayloadSize)
	}
	e.payload, err = proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return encoded{}, fmt.Errorf("encode process context: %w", err)
	}
	return e, nil
}

// fit removes the largest attributes of the resource until the message has shrunk by at least
// excess bytes or none is left. It returns the removed attributes, largest first.
func fit(msg *processcontextpb.ProcessContext, excess int) (largest []*commonpb.KeyValue) {
	if excess <= 0 {
		return nil
	}
	bySize := slices.SortedStableFunc(slices.Values(msg.GetResource().GetAttributes()),
		func(a, b *commonpb.KeyValue) int { return cmp.Compare(proto.Size(b), proto.Size(a)) })
	n := 0
	for ; n < len(bySize) && excess > 0; n++ {
		excess -= protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(bySize[n]))
	}
	removed := make(map[*commonpb.KeyValue]bool, n)
	for _, kv := range bySize[:n] {
		removed[kv] = true
	}
	msg.Resource.Attributes = slices.DeleteFunc(msg.GetResource().GetAttributes(), func(kv *commonpb.KeyValue) bool { return removed[kv] })
	return bySize[:n]
}

// attributes maps keys to encoded attributes.
type attributes map[attribute.Key]*commonpb.KeyValue

// keyValue encodes kv. If the format cannot hold kv, keyValue returns nil and a problem. If the
// value contains invalid UTF-8, keyValue replaces it with U+FFFD and returns a problem, too. The
// text of a problem begins with the key.
func keyValue(kv attribute.KeyValue) (_ *commonpb.KeyValue, problem error) {
	if !utf8.ValidString(string(kv.Key)) {
		// Replacing invalid bytes in a key could turn it into the key of another attribute.
		return nil, fmt.Errorf("%q is left out: key is not valid UTF-8", kv.Key)
	}
	var e encoder
	value, err := e.value(kv.Value, 0)
	if err != nil {
		return nil, fmt.Errorf("%q is left out: %w", kv.Key, err)
	}
	if e.repaired {
		problem = fmt.Errorf("%q is changed: value is not valid UTF-8", kv.Key)
	}
	return &commonpb.KeyValue{Key: string(kv.Key), Value: value}, problem
}

// encoder converts one attribute.
type encoder struct {
	// repaired is true once text has replaced invalid UTF-8.
	repaired bool
}

// text returns s with U+FFFD in place of invalid UTF-8.
func (e *encoder) text(s string) string {
	valid := strings.ToValidUTF8(s, "\uFFFD")
	e.repaired = e.repaired || valid != s
	return valid
}

// value converts v to OTLP, which has an equivalent for every type of the attribute package. depth
// is the number of slices and maps that enclose v.
func (e *encoder) value(v attribute.Value, depth int) (*commonpb.AnyValue, error) {
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
		return e.stringValue(v.AsString())
	case attribute.BYTESLICE:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: v.AsByteSlice()}}, nil
	case attribute.BOOLSLICE:
		return arrayValue(v.AsBoolSlice(), boolValue)
	case attribute.INT64SLICE:
		return arrayValue(v.AsInt64Slice(), intValue)
	case attribute.FLOAT64SLICE:
		return arrayValue(v.AsFloat64Slice(), doubleValue)
	case attribute.STRINGSLICE:
		return arrayValue(v.AsStringSlice(), e.stringValue)
	case attribute.SLICE:
		return arrayValue(v.AsSlice(), func(v attribute.Value) (*commonpb.AnyValue, error) {
			return e.value(v, depth+1)
		})
	case attribute.MAP:
		return e.mapValue(v.AsMap(), depth)
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

func (e *encoder) stringValue(v string) (*commonpb.AnyValue, error) {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: e.text(v)}}, nil
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

// mapValue converts a map. Keys must be unique at every level, so it keeps only the last entry for
// each key, as the SDK does for resources.
func (e *encoder) mapValue(kvs []attribute.KeyValue, depth int) (*commonpb.AnyValue, error) {
	list := &commonpb.KeyValueList{}
	positions := make(map[string]int, len(kvs))
	for _, kv := range kvs {
		value, err := e.value(kv.Value, depth+1)
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", kv.Key, err)
		}
		pb := &commonpb.KeyValue{Key: e.text(string(kv.Key)), Value: value}
		if i, ok := positions[pb.GetKey()]; ok {
			list.Values[i] = pb
			continue
		}
		positions[pb.GetKey()] = len(list.GetValues())
		list.Values = append(list.Values, pb)
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: list}}, nil
}
