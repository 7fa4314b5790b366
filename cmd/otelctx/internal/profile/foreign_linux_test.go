// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// hostileAttributes returns several attributes. Profiles can represent only the first.
func hostileAttributes() []*commonpb.KeyValue {
	text := func(s string) *commonpb.AnyValue {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
	}
	list := func(kvs ...*commonpb.KeyValue) *commonpb.AnyValue {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: kvs}}}
	}
	index := &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 1 << 30}}
	deep := text("deep")
	for range 2 * maxDepth {
		deep = &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{deep}}}}
	}
	return []*commonpb.KeyValue{
		{Key: "bell\a", Value: text("\xff\x1b[31m")},
		{Key: "", Value: text("no key")},
		{Key: "value of a table", Value: index},
		{Key: "key of a table", KeyStrindex: 7, Value: text("x")},
		{Key: "nested", Value: list(&commonpb.KeyValue{Key: "x", Value: index})},
		{Key: "nested key", Value: list(&commonpb.KeyValue{Value: text("x")})},
		{Key: "deep", Value: deep},
	}
}

// TestForeign checks that profiles are valid even if a process publishes attributes that they cannot represent, and
// its files and functions have invalid or long names.
func TestForeign(t *testing.T) {
	resource, dropped := NewResource(hostileAttributes(), "\xff")
	assert.Equal(t, len(hostileAttributes())-1, dropped)
	mapping := func(path string) *symbols.Mapping { return &symbols.Mapping{Start: 1, Limit: 9, Path: path} }
	b := New(Options{Start: time.Unix(1, 0), Frequency: 1})
	for _, path := range []string{"/a\xff", "/a\xfe", "/a�", "/a\x1b", strings.Repeat("x", 1<<20)} {
		stack := []*symbols.Location{{Mapping: mapping(path), Address: 3, Lines: []symbols.Line{{Function: "f\x00\x1b", File: path}}}}
		b.Add(resource, stack, [16]byte{}, [8]byte{}, hostileAttributes(), time.Unix(1, 0), time.Unix(1, 1))
	}
	assert.EqualValues(t, 5*(len(hostileAttributes())-1), b.Dropped(), "once for all samples of a kind")
	data := b.Data(time.Unix(2, 0))
	require.NoError(t, Check(data))
	dropped = len(hostileAttributes()) - 1
	assert.EqualValues(t, dropped, data.GetResourceProfiles()[0].GetResource().GetDroppedAttributesCount())
	assert.EqualValues(t, 5*dropped, onlyProfile(t, data).GetDroppedAttributesCount())
	var counted uint32
	for part, err := range Split(data, proto.Size(data)*3/4) {
		if err == nil {
			counted += onlyProfile(t, part).GetDroppedAttributesCount()
		}
	}
	assert.LessOrEqual(t, counted, uint32(5*dropped), "once for all parts")
	assert.Len(t, data.GetDictionary().GetMappingTable(), 3, "valid forms that are the same are one")
	for _, s := range data.GetDictionary().GetStringTable() {
		assert.Equal(t, validText(s), s)
	}
	first := onlyProfile(t, data).GetSamples()[0]
	assert.Equal(t, "��[31m", attributes(data.GetDictionary(), first.GetAttributeIndices())["bell�"])
	_, err := collect(data, 1<<10)
	require.ErrorContains(t, err, "one sample takes", "what is too large is left out of what can be sent")
}
