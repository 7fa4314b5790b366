// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// attrs is what a test gives or expects: strings by key.
type attrs map[string]string

// list returns the attributes, in any order.
func (a attrs) list() []attribute.KeyValue {
	var list []attribute.KeyValue
	for k, v := range a {
		list = append(list, attribute.String(k, v))
	}
	return list
}

// with returns a context that has had each of layers added.
func with(ctx context.Context, layers ...attrs) context.Context {
	for _, l := range layers {
		ctx = ContextWithAttributes(ctx, l.list()...)
	}
	return ctx
}

// asAttrs returns list as a test expects it. It fails the test if a key comes twice.
func asAttrs(t *testing.T, list []attribute.KeyValue) attrs {
	t.Helper()
	a := attrs{}
	for _, kv := range list {
		if _, ok := a[string(kv.Key)]; ok {
			t.Errorf("%s comes twice in %v", kv.Key, list)
		}
		a[string(kv.Key)] = kv.Value.String()
	}
	return a
}

// everyType has an attribute of each type.
func everyType() []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.Bool("bool", true),
		attribute.BoolSlice("bools", []bool{true, false}),
		attribute.Int64("int", -7),
		attribute.Int64Slice("ints", []int64{1, 2}),
		attribute.Float64("float", 0.5),
		attribute.Float64Slice("floats", []float64{0.25, 4}),
		attribute.String("string", "s"),
		attribute.StringSlice("strings", []string{"a", "b"}),
		attribute.ByteSlice("bytes", []byte{0, 0xff}),
		attribute.Slice("slice", attribute.IntValue(1), attribute.StringValue("x")),
		attribute.Map("map", attribute.String("k", "v")),
		{Key: "empty"},
	}
}

// sequence decodes what a fuzzer made up: lists of attributes with few keys, among them
// the empty one, so that they meet.
func sequence(data []byte) [][]attribute.KeyValue {
	lists := [][]attribute.KeyValue{nil}
	for i, b := range data {
		if b >= 0xe0 {
			lists = append(lists, nil)
			continue
		}
		key := string("abcdefghijkl"[b%12])
		if b%32 == 31 {
			key = ""
		}
		last := &lists[len(lists)-1]
		switch b / 32 {
		case 0, 1, 2:
			*last = append(*last, attribute.Int(key, i))
		case 3:
			*last = append(*last, attribute.StringSlice(key, []string{"x", string(rune(i))}))
		case 4:
			*last = append(*last, attribute.Bool(key, i%2 == 0))
		default:
			*last = append(*last, attribute.String(key, string(rune('A'+i%26))))
		}
	}
	return lists
}
