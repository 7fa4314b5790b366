// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){roleWrapped: runWrapped})
}

// Tests write attribute lists as text: key=value pairs separated by spaces. All values are strings.

func list(text string) []attribute.KeyValue {
	var list []attribute.KeyValue
	for field := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(field, "=")
		list = append(list, attribute.String(key, value))
	}
	return list
}

// set is list as a set.
func set(text string) attribute.Set { return attribute.NewSet(list(text)...) }

// some returns the text of n attributes whose keys begin with prefix.
func some(prefix string, n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, " %s%d=", prefix, i)
	}
	return text.String()
}

// own returns n attributes to give to a span, record or measurement itself.
func own(n int) []attribute.KeyValue { return list(some("own", n)) }

// with returns a context derived from ctx to which the attributes of each layer have been added in
// turn.
func with(ctx context.Context, layers ...string) context.Context {
	for _, l := range layers {
		ctx = ContextWithAttributes(ctx, list(l)...)
	}
	return ctx
}

// withLists is like with, for parsed lists.
func withLists(ctx context.Context, lists [][]attribute.KeyValue) context.Context {
	for _, list := range lists {
		ctx = ContextWithAttributes(ctx, list...)
	}
	return ctx
}

// equal fails the test unless got has exactly the attributes in want, an attribute list as text.
// The order does not matter, but no key may occur twice.
func equal(t testing.TB, want string, got []attribute.KeyValue, msgAndArgs ...any) {
	t.Helper()
	var fields []string
	keys := map[attribute.Key]bool{}
	for _, kv := range got {
		assert.False(t, keys[kv.Key], "%s occurs twice in %v", kv.Key, got)
		keys[kv.Key] = true
		fields = append(fields, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	wanted := strings.Fields(want)
	slices.Sort(wanted)
	slices.Sort(fields)
	assert.Equal(t, wanted, append([]string{}, fields...), msgAndArgs...)
}

// endedSpan starts a span with the attributes in own, ends it and returns it.
func endedSpan(t testing.TB, ctx context.Context, own []attribute.KeyValue, opts ...sdktrace.TracerProviderOption) sdktrace.ReadOnlySpan {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	_, span := oteltest.Tracer(t, append(opts, sdktrace.WithSpanProcessor(spans))...).Start(ctx, "work", trace.WithAttributes(own...))
	span.End()
	return spans.Ended()[0]
}

// emitted emits record with the provider that wrap returns, and returns the record that the SDK's
// processor gets.
func emitted(t testing.TB, wrap func(log.LoggerProvider) log.LoggerProvider, ctx context.Context, record log.Record, opts ...sdklog.LoggerProviderOption) (got sdklog.Record) {
	t.Helper()
	keep := oteltest.LogProcessor{Emit: func(r *sdklog.Record) { got = r.Clone() }}
	lp := oteltest.LoggerProvider(t, append(opts, sdklog.WithProcessor(keep))...)
	wrap(lp).Logger("test").Emit(ctx, record)
	return got
}

func bareLogs(lp log.LoggerProvider) log.LoggerProvider { return lp }

func newRecord(list ...attribute.KeyValue) log.Record {
	var r log.Record
	r.SetBody(attribute.StringValue("body"))
	r.AddAttributes(list...)
	return r
}

// recordAttributes returns the attributes of a log record, of either the API's or the SDK's type.
func recordAttributes(r interface {
	WalkAttributes(visit func(attribute.KeyValue) bool)
},
) []attribute.KeyValue {
	list := []attribute.KeyValue{}
	r.WalkAttributes(func(kv attribute.KeyValue) bool {
		list = append(list, kv)
		return true
	})
	return list
}

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

// sequence decodes fuzzer input into attribute lists. It uses few keys, including the empty one, so
// that keys often collide.
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
