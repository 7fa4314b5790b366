// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/otelctx/otelctx/internal/wire"
)

// maxPayloadSize is the maximum size of an encoded process context in bytes: 65,536, the limit of
// the OpenTelemetry eBPF profiler.
const maxPayloadSize = wire.MaxProcessContextPayload

// ErrTooLarge means that an encoded process context would exceed 65,536 bytes. The error that reports
// attributes omitted to stay within the limit wraps it, too.
var ErrTooLarge = errors.New("process context is too large")

type encoded struct {
	payload []byte
	// problems joins one error for each attribute that was left out or changed because the format
	// cannot hold it, and one for all omitted attributes together. The other attributes are
	// published regardless.
	problems error
	// omitted is the number of resource attributes that were left out to stay within
	// the limit.
	omitted int
}

// encode encodes a process context. Its resource has the attributes of r that keep accepts. The
// extra attributes are published outside of the resource. If the result would be too large, encode
// leaves out the largest attributes of r. The error wraps ErrTooLarge if the rest does not fit even
// without any attribute of r.
func encode(r *resource.Resource, keep attribute.Filter, extra ...attributes) (e encoded, err error) {
	var resourceAttributes, extraAttributes []encodedAttribute
	problem := func(err error) {
		e.problems = errors.Join(e.problems, fmt.Errorf("publish process context: %w", err))
	}
	for it := r.Iter(); it.Next(); {
		kv := it.Attribute()
		if keep != nil && !keep(kv) {
			continue
		}
		b, err := keyValue(kv)
		if err != nil {
			problem(fmt.Errorf("resource attribute %w", err))
		}
		if b != nil {
			resourceAttributes = append(resourceAttributes, encodedAttribute{kv.Key, b})
		}
	}
	for _, kvs := range extra {
		for key, b := range kvs {
			extraAttributes = append(extraAttributes, encodedAttribute{key, b})
		}
	}
	if url := r.SchemaURL(); url != "" {
		kv := attribute.String(wire.AttributeSchemaURL, url)
		b, err := keyValue(kv)
		if err != nil {
			problem(fmt.Errorf("schema URL: %w", err))
		}
		extraAttributes = append(extraAttributes, encodedAttribute{kv.Key, b})
	}
	// Equal contexts have equal bytes.
	slices.SortFunc(extraAttributes, func(a, b encodedAttribute) int { return cmp.Compare(a.key, b.key) })

	payload := appendContext(nil, resourceAttributes, extraAttributes)
	if size := len(payload); size > maxPayloadSize {
		var largest []encodedAttribute
		if largest, resourceAttributes = fit(resourceAttributes, size-maxPayloadSize); len(largest) > 0 {
			e.omitted = len(largest)
			problem(fmt.Errorf("%d resource attributes, of which %q is the largest, are left out: %w: %d bytes, at most %d",
				len(largest), largest[0].key, ErrTooLarge, size, maxPayloadSize))
		}
		payload = appendContext(nil, resourceAttributes, extraAttributes)
	}
	if len(payload) > maxPayloadSize {
		return encoded{}, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(payload), maxPayloadSize)
	}
	e.payload = payload
	return e, nil
}

// The numbers of protobuf fields, from the messages ProcessContext (OTEP 4719), Resource, KeyValue,
// AnyValue, ArrayValue and KeyValueList (OTLP). Package protowire encodes them without reflection.
// The generated messages would leave 57 KiB of state on the heap.
const (
	contextResource, contextAttributes = 1, 2
	resourceAttribute                  = 1
	keyValueKey, keyValueValue         = 1, 2
	anyString, anyBool, anyInt         = 1, 2, 3
	anyDouble, anyArray, anyMap        = 4, 5, 6
	anyBytes                           = 7
	elements                           = 1 // of ArrayValue and KeyValueList
)

// encodedAttribute is a KeyValue message and its key.
type encodedAttribute struct {
	key     attribute.Key
	message []byte
}

// appendContext appends a ProcessContext message. The resource is always present: a message without
// fields has no bytes, and readers treat an empty payload as a missing context.
func appendContext(b []byte, resourceAttributes, extraAttributes []encodedAttribute) []byte {
	var r []byte
	for _, kv := range resourceAttributes {
		r = appendMessage(r, resourceAttribute, kv.message)
	}
	b = appendMessage(b, contextResource, r)
	for _, kv := range extraAttributes {
		b = appendMessage(b, contextAttributes, kv.message)
	}
	return b
}

// appendMessage appends a field that is a message, a string or bytes.
func appendMessage[T []byte | string](b []byte, field protowire.Number, message T) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return append(protowire.AppendVarint(b, uint64(len(message))), message...)
}

// fit removes the largest attributes of the resource until the context has shrunk by at least excess
// bytes or none is left. It returns the removed attributes, largest first, and the remaining ones.
func fit(kvs []encodedAttribute, excess int) (largest, remaining []encodedAttribute) {
	bySize := slices.Clone(kvs)
	slices.SortStableFunc(bySize, func(a, b encodedAttribute) int { return cmp.Compare(len(b.message), len(a.message)) })
	n := 0
	for ; n < len(bySize) && excess > 0; n++ {
		excess -= protowire.SizeTag(resourceAttribute) + protowire.SizeBytes(len(bySize[n].message))
	}
	largest = bySize[:n]
	removed := make(map[attribute.Key]bool, n)
	for _, kv := range largest {
		removed[kv.key] = true // keys of a resource are unique
	}
	return largest, slices.DeleteFunc(kvs, func(kv encodedAttribute) bool { return removed[kv.key] })
}

// attributes maps keys to KeyValue messages.
type attributes map[attribute.Key][]byte

// keyValue encodes kv. If the format cannot hold kv, keyValue returns nil and a problem. If the
// value contains invalid UTF-8, keyValue replaces it with U+FFFD and returns a problem, too. The
// text of a problem begins with the key.
func keyValue(kv attribute.KeyValue) (_ []byte, problem error) {
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
	return keyValueMessage(string(kv.Key), value), problem
}

func keyValueMessage(key string, value []byte) []byte {
	b := []byte{}
	if key != "" {
		b = appendMessage(b, keyValueKey, key)
	}
	return appendMessage(b, keyValueValue, value)
}

// encoder encodes one attribute.
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

// value returns v as an AnyValue message, which has an equivalent for every type of the attribute
// package. depth is the number of slices and maps that enclose v.
func (e *encoder) value(v attribute.Value, depth int) ([]byte, error) {
	if depth > wire.MaxValueNesting {
		return nil, fmt.Errorf("value nests deeper than %d levels", wire.MaxValueNesting)
	}
	switch v.Type() {
	case attribute.EMPTY:
		return nil, nil
	case attribute.BOOL:
		return boolValue(v.AsBool())
	case attribute.INT64:
		return intValue(v.AsInt64())
	case attribute.FLOAT64:
		return doubleValue(v.AsFloat64())
	case attribute.STRING:
		return e.stringValue(v.AsString())
	case attribute.BYTESLICE:
		return appendMessage(nil, anyBytes, v.AsByteSlice()), nil
	case attribute.BOOLSLICE:
		return arrayValue(v.AsBoolSlice(), boolValue)
	case attribute.INT64SLICE:
		return arrayValue(v.AsInt64Slice(), intValue)
	case attribute.FLOAT64SLICE:
		return arrayValue(v.AsFloat64Slice(), doubleValue)
	case attribute.STRINGSLICE:
		return arrayValue(v.AsStringSlice(), e.stringValue)
	case attribute.SLICE:
		return arrayValue(v.AsSlice(), func(v attribute.Value) ([]byte, error) { return e.value(v, depth+1) })
	case attribute.MAP:
		return e.mapValue(v.AsMap(), depth)
	default:
		return nil, fmt.Errorf("value of unknown type %v", v.Type())
	}
}

func boolValue(v bool) ([]byte, error) {
	return protowire.AppendVarint(protowire.AppendTag(nil, anyBool, protowire.VarintType), protowire.EncodeBool(v)), nil
}

func intValue(v int64) ([]byte, error) {
	return protowire.AppendVarint(protowire.AppendTag(nil, anyInt, protowire.VarintType), uint64(v)), nil
}

func doubleValue(v float64) ([]byte, error) {
	return protowire.AppendFixed64(protowire.AppendTag(nil, anyDouble, protowire.Fixed64Type), math.Float64bits(v)), nil
}

func (e *encoder) stringValue(v string) ([]byte, error) {
	return appendMessage(nil, anyString, e.text(v)), nil
}

func arrayValue[T any](vs []T, element func(T) ([]byte, error)) ([]byte, error) {
	var array []byte
	for i, v := range vs {
		b, err := element(v)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		array = appendMessage(array, elements, b)
	}
	return appendMessage(nil, anyArray, array), nil
}

// mapValue converts a map. Keys must be unique at every level, so it keeps only the last entry for
// each key, as the SDK does for resources.
func (e *encoder) mapValue(kvs []attribute.KeyValue, depth int) ([]byte, error) {
	var entries [][]byte
	positions := make(map[string]int, len(kvs))
	for _, kv := range kvs {
		value, err := e.value(kv.Value, depth+1)
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", kv.Key, err)
		}
		key := e.text(string(kv.Key))
		entry := keyValueMessage(key, value)
		if i, ok := positions[key]; ok {
			entries[i] = entry
			continue
		}
		positions[key] = len(entries)
		entries = append(entries, entry)
	}
	var list []byte
	for _, entry := range entries {
		list = appendMessage(list, elements, entry)
	}
	return appendMessage(nil, anyMap, list), nil
}
