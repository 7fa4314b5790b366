// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package keymap

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/attrcontext"
)

func keyMap(t *testing.T, keys ...attribute.Key) *Map {
	t.Helper()
	m, refused := (*Map)(nil).Append(keys...)
	require.Zero(t, refused)
	return m
}

func manyKeys(n int) (keys []attribute.Key) {
	for i := range n {
		keys = append(keys, attribute.Key(fmt.Sprintf("key.%03d", i)))
	}
	return keys
}

func TestAppend(t *testing.T) {
	var none *Map
	assert.Nil(t, none.Keys())
	m, refused := none.Append()
	assert.Nil(t, m)
	assert.Zero(t, refused)
	m, refused = none.Append("")
	assert.Nil(t, m)
	assert.Zero(t, refused)

	m = keyMap(t, "b", "a", "b", "")
	assert.Equal(t, []attribute.Key{"b", "a"}, m.Keys())
	same, _ := m.Append("a", "b")
	assert.Same(t, m, same)
	more, _ := m.Append("c", "a", "d")
	other, _ := m.Append("e")
	assert.Equal(t, []attribute.Key{"b", "a", "c", "d"}, more.Keys())
	assert.Equal(t, []attribute.Key{"b", "a", "e"}, other.Keys())
	assert.Equal(t, []attribute.Key{"b", "a"}, m.Keys(), "a Map is immutable")

	full, refused := none.Append(manyKeys(258)...)
	assert.Len(t, full.Keys(), 256)
	assert.Equal(t, 2, refused)
	same, refused = full.Append("key.000", "one more", "")
	assert.Same(t, full, same)
	assert.Equal(t, 1, refused)
}

// Strings of at most 255 bytes are published unchanged; longer ones are cut at a character. Other
// values are converted to strings by OpenTelemetry's rule for protocols other than OTLP.
func TestValues(t *testing.T) {
	long := strings.Repeat("ä", 200) // 400 bytes
	for _, tt := range []struct {
		kv   attribute.KeyValue
		want string
	}{
		{attribute.String("k", "a b"), "a b"},
		{attribute.String("k", ""), ""},
		{attribute.String("k", "\xff\xfe"), "\xff\xfe"},
		{attribute.String("k", long), strings.Repeat("ä", 127)},
		{attribute.String("k", strings.Repeat("\x80", 300)), strings.Repeat("\x80", 255)},
		{attribute.String("k", strings.Repeat("x", 252)+"\U0001F600y"), strings.Repeat("x", 252)},
		{attribute.String("k", strings.Repeat("x", 251)+"\U0001F600y"), strings.Repeat("x", 251) + "\U0001F600"},
		{attribute.Bool("k", true), "true"},
		{attribute.Int64("k", -1<<63), "-9223372036854775808"},
		{attribute.Float64("k", 0.5), "0.5"},
		{attribute.StringSlice("k", []string{"a", "b"}), `["a","b"]`},
		{attribute.Int64Slice("k", []int64{1, 2}), "[1,2]"},
		{attribute.BoolSlice("k", []bool{true, false}), "[true,false]"},
		{attribute.ByteSlice("k", []byte("abc")), "YWJj"},
	} {
		a := keyMap(t, "other", "k").Of(attrcontext.With(context.Background(), tt.kv))
		want := append([]byte{1, byte(len(tt.want))}, tt.want...)
		assert.Equal(t, want, a.Encoded(), "%v", tt.kv.Value.Type())
	}
}

func TestOf(t *testing.T) {
	m := keyMap(t, "b", "a")
	assert.Nil(t, m.Of(context.Background()))
	assert.Nil(t, m.Of(attrcontext.With(context.Background(), attribute.String("c", "1"))))
	ctx := attrcontext.With(context.Background(), attribute.String("a", "1"), attribute.String("b", "2"), attribute.String("c", "3"))
	a := m.Of(ctx)
	assert.Equal(t, []byte("\x00\x012\x01\x011"), a.Encoded(), "in the order of the keys")
	assert.Same(t, a, m.Of(ctx), "the result is cached")
	assert.Zero(t, testing.AllocsPerRun(100, func() { m.Of(ctx) }))
	more, _ := m.Append("c")
	assert.Equal(t, []byte("\x00\x012\x01\x011\x02\x013"), more.Of(ctx).Encoded())
	assert.Same(t, more.Of(ctx), more.Of(context.WithValue(ctx, new(int), 1)))
}

func TestOfConcurrently(t *testing.T) {
	m := keyMap(t, "a")
	more, _ := m.Append("b")
	for range 100 {
		ctx := attrcontext.With(context.Background(), attribute.String("a", "1"), attribute.String("b", "2"))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { assert.Equal(t, "\x00\x011", string(m.Of(ctx).Encoded())) })
			all.Go(func() { assert.Equal(t, "\x00\x011\x01\x012", string(more.Of(ctx).Encoded())) })
		}
		all.Wait()
	}
}

// FuzzEncode decodes the encoded attributes as OTEP 4947 specifies, and compares them with the
// input.
func FuzzEncode(f *testing.F) {
	f.Add([]byte(`{"a":"1","b":"x"}`), "b,a")
	f.Add([]byte(`{"a":"`+strings.Repeat("é", 300)+`","b":"`+strings.Repeat("x", 255)+`","c":"`+strings.Repeat("y", 255)+`","d":"z"}`), "d,c,b,a,e")
	f.Add([]byte(`{"a":"1"}`), "")
	f.Add([]byte(`{"span_id":"1","trace_id":""}`), "trace_id,span_id,")
	f.Fuzz(func(t *testing.T, data []byte, order string) {
		var all map[string]string
		if json.Unmarshal(data, &all) != nil {
			return
		}
		ctx := context.Background()
		for key, value := range all {
			ctx = attrcontext.With(ctx, attribute.String(key, value))
		}
		var keys []attribute.Key
		for key := range strings.SplitSeq(order, ",") {
			keys = append(keys, attribute.Key(key))
		}
		m, _ := (*Map)(nil).Append(keys...)
		encoded := m.Of(ctx).Encoded()
		require.LessOrEqual(t, len(encoded), 640-28)
		shown := map[int]string{}
		for b := encoded; len(b) > 0; {
			require.GreaterOrEqual(t, len(b), 2)
			require.NotContains(t, shown, int(b[0]))
			require.GreaterOrEqual(t, len(b), 2+int(b[1]))
			shown[int(b[0])] = string(b[2 : 2+int(b[1])])
			b = b[2+int(b[1]):]
		}
		used := 0
		for i, key := range m.Keys() {
			value, ok := all[string(key)]
			if !ok {
				require.NotContains(t, shown, i)
				continue
			}
			got, ok := shown[i]
			size := len(value)
			if size > 255 {
				size = 255
				for utf8.ValidString(value) && !utf8.ValidString(value[:size]) {
					size--
				}
			}
			if ok {
				require.True(t, strings.HasPrefix(value, got))
				if utf8.ValidString(value) {
					require.Len(t, got, size)
				}
				used += 2 + len(got)
			} else {
				require.Greater(t, used+2+255, 612, "%q was left out though there is room", key)
				require.Greater(t, used+2+len(value), 612, "%q was left out though there is room", key)
			}
		}
		require.Len(t, encoded, used)
	})
}
