// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

func procPath(pid int, entry string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), entry)
}

// everyType returns values of every type of the attribute package, including edge cases.
func everyType() []attribute.KeyValue {
	return []attribute.KeyValue{
		{Key: "empty"},
		attribute.Bool("bool", true),
		attribute.Bool("bool.zero", false),
		attribute.Int64("int", math.MinInt64),
		attribute.Int64("int.zero", 0),
		attribute.Float64("float", 1.5),
		attribute.Float64("float.nan", math.NaN()),
		attribute.Float64("float.inf", math.Inf(-1)),
		attribute.Float64("float.negative zero", math.Copysign(0, -1)),
		attribute.String("string", "läuft \x00 weiter"),
		attribute.String("string.empty", ""),
		{Key: "bytes", Value: attribute.ByteSliceValue([]byte{0xff, 0, 0xfe})},
		attribute.BoolSlice("bools", []bool{true, false}),
		attribute.Int64Slice("ints", []int64{1, -2}),
		attribute.Float64Slice("floats", []float64{0.5, math.Inf(1)}),
		attribute.StringSlice("strings", []string{"a", "", "c"}),
		attribute.StringSlice("strings.empty", nil),
		{Key: "slice", Value: attribute.SliceValue(
			attribute.IntValue(1), attribute.StringValue("two"), attribute.Value{},
			attribute.SliceValue(attribute.BoolValue(true)),
		)},
		{Key: "map", Value: attribute.MapValue(
			attribute.String("k", "v"),
			attribute.KeyValue{Key: "inner", Value: attribute.MapValue(attribute.Int("n", 7))},
		)},
	}
}

// nested returns an attribute whose value is a map nested to the given number of levels.
func nested(levels int) attribute.KeyValue {
	deep := attribute.IntValue(1)
	for range levels {
		deep = attribute.MapValue(attribute.KeyValue{Key: "k", Value: deep})
	}
	return attribute.KeyValue{Key: "nested", Value: deep}
}

func TestPublishesTheResource(t *testing.T) {
	for name, res := range map[string]*resource.Resource{
		"with a schema":                resource.NewWithAttributes("https://opentelemetry.io/schemas/1.43.0", attribute.Int("a", 1)),
		"nested to the readers' limit": resource.NewSchemaless(nested(wire.MaxValueNesting)),
	} {
		t.Run(name, func(t *testing.T) {
			p := publish(t, res)
			pc := read(t)
			assert.Equal(t, plainAttributes(res.Attributes()), plainMap(pc.Resource.GetAttributes()))
			assert.Equal(t, res.SchemaURL(), pc.SchemaURL())
			assert.Equal(t, uint32(2), pc.Version)
			assert.NotNil(t, pc.Resource)
			assert.NotEmpty(t, pc.Payload)
			assert.Len(t, contextMappings(t, os.Getpid()), 1)
			require.NoError(t, p.Update(resource.NewSchemaless(attribute.Int("a", 1))))
			assert.Empty(t, read(t).SchemaURL())
		})
	}
}

// TestAttributesThatCannotBeEncoded checks that such an attribute does not affect the others.
func TestAttributesThatCannotBeEncoded(t *testing.T) {
	long := attribute.String("long", strings.Repeat("x", 64_000))
	tests := map[string]struct {
		attributes []attribute.KeyValue
		want       map[string]any
		problem    string
	}{
		"value is not UTF-8": {
			[]attribute.KeyValue{attribute.String("bad", "a\xff\xfeb")},
			map[string]any{"bad": "a\uFFFDb"},
			`"bad" is changed: value is not valid UTF-8`,
		},
		"element is not UTF-8": {
			[]attribute.KeyValue{attribute.StringSlice("bad", []string{"a", "\xff"})},
			map[string]any{"bad": []any{"a", "\uFFFD"}},
			`"bad" is changed`,
		},
		"nested text is not UTF-8": {
			[]attribute.KeyValue{attribute.Map("bad", attribute.String("\xff", "\xff"))},
			map[string]any{"bad": map[string]any{"\uFFFD": "\uFFFD"}},
			`"bad" is changed`,
		},
		"key is not UTF-8": {
			[]attribute.KeyValue{attribute.String("\xff", "x"), attribute.String("\uFFFD", "another")},
			map[string]any{"\uFFFD": "another"},
			`"\\xff" is left out: key is not valid UTF-8`,
		},
		"too deep": {
			[]attribute.KeyValue{nested(wire.MaxValueNesting + 1)},
			nil, `"nested" is left out: entry .* deeper than 64 levels`,
		},
		"larger than the payload limit": {
			[]attribute.KeyValue{attribute.String("bad", strings.Repeat("x", 65_536))},
			nil, `1 resource attributes, of which "bad" is the largest, are left out: .* too large: 655\d\d bytes, at most 65536`,
		},
		"too large together": {
			[]attribute.KeyValue{attribute.String("longer", strings.Repeat("x", 65_000)), long},
			map[string]any{"long": long.Value.AsString()},
			`1 resource attributes, of which "longer" is the largest`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			service := attribute.String("service.name", "checkout")
			bad := resource.NewSchemaless(append(tt.attributes, service)...)
			want := maps.Clone(tt.want)
			if want == nil {
				want = map[string]any{}
			}
			want["service.name"] = "checkout"
			handled := oteltest.HandledErrors(t)
			check := func() {
				t.Helper()
				assert.Equal(t, want, attributes(t))
				errs := handled.Take()
				require.Len(t, errs, 1)
				assert.Regexp(t, tt.problem, errs[0])
			}
			withdrawAtEnd(t)
			resourcepublisher.WithResource(bad)
			check()
			p := resourcepublisher.Current()
			require.NoError(t, p.Update(resource.Empty()))
			require.NoError(t, p.Update(bad))
			check()
			require.NoError(t, resourcepublisher.SetAttributes(attribute.Int("n", 1)))
			require.NoError(t, resourcepublisher.RemoveAttributes("n"))
			assert.Empty(t, handled.Take(), "reported once for each resource")
			require.NoError(t, p.Update(resource.NewSchemaless(service)))
			require.NoError(t, p.Shutdown(t.Context()))
			_, err := resourcepublisher.New(bad)
			require.NoError(t, err)
			check()

			// Unlike New, SetAttributes returns an error.
			before := read(t)
			require.Error(t, resourcepublisher.SetAttributes(append(tt.attributes, long)...))
			assert.Equal(t, before, read(t))
		})
	}
}

func TestPayloadMayBeExactlyTheLimit(t *testing.T) {
	text := func(n int) *resource.Resource {
		return resource.NewSchemaless(attribute.String("text", strings.Repeat("x", n)))
	}
	p := publish(t, text(0))
	handled := oteltest.HandledErrors(t)
	n := wire.MaxProcessContextPayload + 1
	for left := 0; left == 0; left = len(attributes(t)) {
		n--
		require.NoError(t, p.Update(text(n)))
	}
	pc := read(t)
	assert.Len(t, pc.Payload, wire.MaxProcessContextPayload)
	assert.Len(t, pc.Resource.GetAttributes()[0].GetValue().GetStringValue(), n)
	assert.Len(t, handled.Take(), wire.MaxProcessContextPayload-n)

	// No other attribute fits, and setting one changes nothing.
	require.ErrorIs(t, resourcepublisher.SetAttributes(attribute.Int("n", 1)), resourcepublisher.ErrTooLarge)
	assert.Equal(t, pc, read(t))
}

func TestOneContextPerProcess(t *testing.T) {
	first := publish(t, resource.NewSchemaless(attribute.Int("n", 1)))
	assert.Same(t, first, resourcepublisher.Current())

	second := publish(t, resource.NewSchemaless(attribute.Int("n", 2)))
	assert.Same(t, second, resourcepublisher.Current())
	assert.Len(t, contextMappings(t, os.Getpid()), 1)
	assert.Equal(t, map[string]any{"n": int64(2)}, attributes(t))
	require.ErrorIs(t, first.Update(resource.Empty()), resourcepublisher.ErrShutdown, "the second has replaced it")
	// A late Shutdown of the first publisher must not affect the second.
	require.NoError(t, first.Shutdown(context.Background()))
	assert.Same(t, second, resourcepublisher.Current())
	assert.Equal(t, map[string]any{"n": int64(2)}, attributes(t))

	require.NoError(t, second.Shutdown(context.Background()))
	require.NoError(t, second.Shutdown(context.Background()))
	assert.Nil(t, resourcepublisher.Current())
	assert.Empty(t, contextMappings(t, os.Getpid()))
	_, err := readPID(os.Getpid())
	require.ErrorIs(t, err, reader.ErrNoContext)
	require.ErrorIs(t, second.Update(resource.Empty()), resourcepublisher.ErrShutdown)
}

func TestNilPublisherDoesNothing(t *testing.T) {
	var p *resourcepublisher.Publisher
	require.NoError(t, p.Shutdown(context.Background()))
	require.NoError(t, p.ForceFlush(context.Background()))
	require.ErrorIs(t, p.Update(resource.Empty()), resourcepublisher.ErrShutdown)
	p.OnStart(context.Background(), nil)
	p.OnEnd(nil)
}

func TestPublishingLeaksNothing(t *testing.T) {
	count := func() (fds, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries), runtime.NumGoroutine()
	}
	round := func() {
		p, err := resourcepublisher.New(resource.Default())
		require.NoError(t, err)
		require.NoError(t, p.Update(resource.Empty()))
		require.NoError(t, p.Shutdown(context.Background()))
	}
	round()
	fdsBefore, goroutinesBefore := count()
	for range testenv.Rounds(50, 1000) {
		round()
	}
	fds, goroutines := count()
	assert.Equal(t, fdsBefore, fds)
	assert.LessOrEqual(t, goroutines, goroutinesBefore)
	assert.Empty(t, contextMappings(t, os.Getpid()))
}

func TestExtraAttributes(t *testing.T) {
	t.Cleanup(func() { assert.NoError(t, resourcepublisher.RemoveAttributes("a", "b", "nested")) })
	extra := func() map[string]any { return plainMap(read(t).Attributes) }

	// Set attributes before there is a publisher; the last of two equal keys wins.
	require.NoError(t, resourcepublisher.SetAttributes(attribute.Int("a", 0), attribute.Int("a", 1)))
	p := publish(t, resource.NewSchemaless(attribute.Int("a", 99)))
	assert.Equal(t, map[string]any{"a": int64(1)}, extra())

	// Set several at once while the context is published.
	nested := attribute.KeyValue{Key: "nested", Value: attribute.MapValue(
		attribute.KeyValue{Key: "list", Value: attribute.SliceValue(attribute.ByteSliceValue([]byte{1}), attribute.Value{})},
		attribute.Int("twice", 1), attribute.Int("twice", 2),
	)}
	before := read(t)
	require.NoError(t, resourcepublisher.SetAttributes(attribute.String("b", "x"), nested, attribute.Int("a", 2)))
	want := map[string]any{
		"a": int64(2), "b": "x",
		"nested": map[string]any{"list": []any{[]byte{1}, nil}, "twice": int64(2)},
	}
	assert.Equal(t, want, extra())
	assert.Greater(t, read(t).PublishedAtNS, before.PublishedAtNS)

	// The attributes outlive updates of the resource, and the publisher.
	require.NoError(t, p.Update(resource.Empty()))
	assert.Equal(t, want, extra())
	require.NoError(t, p.Shutdown(context.Background()))
	publish(t, resource.Empty())
	assert.Equal(t, want, extra())

	// Unknown keys are ignored.
	require.NoError(t, resourcepublisher.RemoveAttributes("nested", "b", "unknown"))
	assert.Equal(t, map[string]any{"a": int64(2)}, extra())

	// A failed call changes nothing.
	require.ErrorIs(t, resourcepublisher.SetAttributes(
		attribute.Int("a", 3), attribute.String("b", strings.Repeat("x", 70_000)),
	), resourcepublisher.ErrTooLarge)
	assert.Equal(t, map[string]any{"a": int64(2)}, extra())
	for _, key := range []attribute.Key{"", wire.AttributeSchemaURL, "threadlocal.spans.address", "threadlocal."} {
		require.ErrorContains(t, resourcepublisher.SetAttributes(key.Int(1)), "reserved")
	}
	assert.Equal(t, map[string]any{"a": int64(2)}, extra())
}

func TestDisabling(t *testing.T) {
	tests := []struct {
		env       string
		opts      []resourcepublisher.Option
		published bool
		reported  int
	}{
		{env: "", published: true},
		{env: "false", published: true},
		{env: "TRUE", published: false},
		{env: " true ", published: false},
		{env: "1", published: false},
		{env: "yes", published: true, reported: 1},
		{env: "true", opts: []resourcepublisher.Option{resourcepublisher.WithEnabled(true)}, published: true},
		{env: "false", opts: []resourcepublisher.Option{resourcepublisher.WithEnabled(false)}, published: false},
		{env: "nonsense", opts: []resourcepublisher.Option{resourcepublisher.WithEnabled(true)}, published: true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%q with %d options", tt.env, len(tt.opts)), func(t *testing.T) {
			t.Setenv("OTELCTX_PROCESS_CONTEXT_DISABLED", tt.env)
			environment.Forget()
			handled := oteltest.HandledErrors(t)
			withdrawAtEnd(t)
			p, err := resourcepublisher.New(nil, tt.opts...)
			if tt.published {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, resourcepublisher.ErrDisabled)
				assert.Nil(t, p)
				// SetAttributes succeeds even if publishing is disabled.
				require.NoError(t, resourcepublisher.SetAttributes(attribute.Int("a", 1)))
				require.NoError(t, resourcepublisher.RemoveAttributes("a"))
			}
			assert.Len(t, contextMappings(t, os.Getpid()), map[bool]int{true: 1}[tt.published])
			assert.Len(t, handled.Take(), tt.reported)
		})
	}
}

// TestFilter checks that filtered attributes are not published, even when the resource is updated,
// and that the option overrides the filter in the environment.
func TestFilter(t *testing.T) {
	for name, tt := range map[string]struct {
		hidden string
		opts   []resourcepublisher.Option
		want   string
	}{
		"by option":      {"", []resourcepublisher.Option{resourcepublisher.WithAttributeFilter(attribute.NewDenyKeysFilter("secret", "args"))}, "n"},
		"by environment": {"secret, args", nil, "n"},
		"overridden":     {"secret, args", []resourcepublisher.Option{resourcepublisher.WithAttributeFilter(attribute.NewAllowKeysFilter("secret"))}, "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTELCTX_PROCESS_CONTEXT_HIDDEN_KEYS", tt.hidden)
			all := func(n int64) *resource.Resource {
				return resource.NewSchemaless(attribute.Int64("n", n), attribute.Int64("secret", n), attribute.Int64("args", n))
			}
			p := publish(t, all(1), tt.opts...)
			assert.Equal(t, map[string]any{tt.want: int64(1)}, attributes(t))
			require.NoError(t, p.Update(all(2)))
			assert.Equal(t, map[string]any{tt.want: int64(2)}, attributes(t))
			t.Cleanup(func() { assert.NoError(t, resourcepublisher.RemoveAttributes("x")) })
			require.NoError(t, resourcepublisher.SetAttributes(attribute.Int("x", 1)))
			assert.Equal(t, map[string]any{tt.want: int64(2)}, attributes(t))
		})
	}
}

func TestForeignContextIsDetected(t *testing.T) {
	tests := map[string]struct {
		header  wire.ProcessContextHeader
		foreign bool
	}{
		"published":       {wire.ProcessContextHeader{Signature: signature("OTEL_CTX"), Version: 2, PublishedAtNS: 1}, true},
		"withdrawn":       {wire.ProcessContextHeader{Signature: signature("OTEL_CTX"), Version: 2}, false},
		"another version": {wire.ProcessContextHeader{Signature: signature("OTEL_CTX"), Version: 1, PublishedAtNS: 1}, false},
		"something else":  {wire.ProcessContextHeader{Signature: signature("OTEL_XXX"), Version: 2, PublishedAtNS: 1}, false},
		"blank":           {wire.ProcessContextHeader{}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			other, err := vma.New(wire.ProcessContextName, wire.ProcessContextHeaderSize)
			require.NoError(t, err)
			defer other.Close()
			*wire.ProcessContextHeaderIn(other.Bytes()) = tt.header
			_ = other.Announce()

			p, err := resourcepublisher.New(nil)
			if tt.foreign {
				require.ErrorIs(t, err, resourcepublisher.ErrForeignContext)
				require.ErrorContains(t, err, "OTEL_CTX")
				handled := oteltest.HandledErrors(t)
				resourcepublisher.WithResource(resource.Empty())
				if errs := handled.Take(); assert.Len(t, errs, 1) {
					require.ErrorIs(t, errs[0], resourcepublisher.ErrForeignContext)
				}
				assert.Len(t, contextMappings(t, os.Getpid()), 1)
				require.NoError(t, other.Close())
				p, err = resourcepublisher.New(nil)
			}
			require.NoError(t, err)
			require.NoError(t, p.Shutdown(context.Background()))
		})
	}
}

func signature(s string) [8]byte { return [8]byte([]byte(s)) }

func TestConcurrentUse(t *testing.T) {
	withdrawAtEnd(t)
	t.Cleanup(func() { assert.NoError(t, resourcepublisher.RemoveAttributes("extra")) })
	allowed := []error{
		resourcepublisher.ErrShutdown, reader.ErrNoContext, reader.ErrBusy,
	}
	check := func(err error) {
		if !slices.ContainsFunc(allowed, func(a error) bool { return errors.Is(err, a) }) {
			assert.NoError(t, err)
		}
	}
	// published counts the publishers created so far. All goroutines run until it is large enough.
	var published atomic.Int64
	wanted := int64(testenv.Rounds(100, 2000))
	work := []func(int){
		func(n int) {
			_, err := resourcepublisher.New(resource.NewSchemaless(attribute.Int("n", n)))
			check(err)
			if err == nil {
				published.Add(1)
			}
		},
		func(n int) {
			check(resourcepublisher.Current().Update(resource.NewSchemaless(attribute.Int("n", -n))))
		},
		func(int) { check(resourcepublisher.Current().Shutdown(context.Background())) },
		func(n int) { check(resourcepublisher.SetAttributes(attribute.Int("extra", n))) },
		func(int) { check(resourcepublisher.RemoveAttributes("extra")) },
		func(int) {
			pc, err := readPID(os.Getpid())
			check(err)
			if err == nil {
				assert.Len(t, pc.Resource.GetAttributes(), 1)
			}
		},
	}
	var wg sync.WaitGroup
	for _, f := range work {
		wg.Go(func() {
			for n := 0; published.Load() < wanted; n++ {
				f(n)
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
}
