// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

// signal makes a span, a log record or a measurement with the context ctx and the attributes own,
// and returns the resulting attributes. If wrapped is false, it uses the bare SDK provider. Metrics
// allow all attributes of the context.
type signal func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue

// signals returns every kind of signal by name.
func signals() map[string]signal {
	all := map[string]signal{
		"log record": func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue {
			t.Helper()
			wrap := bareLogs
			if wrapped {
				wrap = scopedlog.NewLoggerProvider
			}
			record := emitted(t, wrap, ctx, newRecord(own...))
			assert.Zero(t, record.DroppedAttributes())
			return recordAttributes(&record)
		},
	}
	for name, opts := range map[string][]sdktrace.TracerProviderOption{
		"span, by the sampler":   {WithSampler(nil)},
		"span, by the processor": {sdktrace.WithSpanProcessor(NewSpanProcessor())},
		"span, by both":          {WithSampler(nil), sdktrace.WithSpanProcessor(NewSpanProcessor())},
	} {
		all[name] = func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue {
			t.Helper()
			if !wrapped {
				opts = nil
			}
			span := endedSpan(t, ctx, own, opts...)
			assert.Zero(t, span.DroppedAttributes())
			return span.Attributes()
		}
	}
	for kind, instrument := range oteltest.Instruments {
		all[kind] = func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue {
			t.Helper()
			bare, reader := oteltest.MeterProvider(t)
			var mp metric.MeterProvider = bare
			if wrapped {
				var keys []attribute.Key
				scoped := AttributesFromContext(ctx)
				for _, kv := range scoped.ToSlice() {
					keys = append(keys, kv.Key)
				}
				mp = NewMeterProvider(mp, keys...)
			}
			measure, err := instrument(mp.Meter("test"))
			require.NoError(t, err)
			measure(ctx, 1, metric.WithAttributes(own...))
			points := collect(t, reader)[oteltest.InstrumentName]
			require.Len(t, points, 1)
			for set := range points {
				return set.ToSlice()
			}
			return nil
		}
	}
	return all
}

func TestEachSignal(t *testing.T) {
	for name, tt := range map[string]struct {
		ctx       []string
		own, want string
	}{
		"without any":                     {nil, "", ""},
		"the context's":                   {[]string{"a=ctx"}, "", "a=ctx"},
		"the context's later one wins":    {[]string{"a=outer b=outer", "a=inner"}, "", "a=inner b=outer"},
		"beside its own":                  {[]string{"a=ctx"}, "b=own", "a=ctx b=own"},
		"a key is needed":                 {[]string{"=x a=ctx"}, "", "a=ctx"},
		"its own win":                     {[]string{"a=ctx b=ctx"}, "a=own", "a=own b=ctx"},
		"more than fit into a log record": {[]string{"g=ctx h=ctx"}, "a=1 b=2 c=3 d=4 e=5 f=6 g=7", "a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=ctx"},
	} {
		for kind, signal := range signals() {
			t.Run(name+"/"+kind, func(t *testing.T) {
				ctx := with(t.Context(), tt.ctx...)
				equal(t, tt.want, signal(t, true, ctx, list(tt.own)))
				equal(t, tt.own, signal(t, false, ctx, list(tt.own)), "without wrapping")
			})
		}
	}
}

func TestEachSignalAndType(t *testing.T) {
	for kind, signal := range signals() {
		ctx := ContextWithAttributes(t.Context(), everyType()...)
		assert.ElementsMatch(t, everyType(), signal(t, true, ctx, nil), kind)
		got := signal(t, true, ctx, []attribute.KeyValue{attribute.Int("string", 8)})
		assert.Contains(t, got, attribute.Int("string", 8), kind)
		assert.Len(t, got, len(everyType()), kind)
	}
}

func TestEachSignalWithoutContext(t *testing.T) {
	for kind, signal := range signals() {
		equal(t, "a=own", signal(t, true, nil, list("a=own")), kind)
	}
}

// TestCountLimits checks which attributes of spans and records are dropped when the attribute count
// limit is exceeded.
func TestCountLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limit                   int
		own, sampler, ctx, want string
		dropped                 int
	}{
		"no room for the context's":  {2, "s1= s2=", "", "a= b=", "s1= s2=", 2},
		"room for some, by key":      {3, "s1= s2=", "", "a= b=", "s1= s2= a=", 1},
		"room for all":               {4, "s1= s2=", "", "a= b=", "s1= s2= a= b=", 0},
		"no attributes":              {0, "", "", "a= b=", "", 2},
		"no limit":                   {-1, "s1=", "", "a=", "s1= a=", 0},
		"an equal key needs no room": {1, "a=own", "", "a=ctx", "a=own", 0},
		"8 of 9":                     {8, some("s", 7), "", "a= b=", some("s", 7) + " a=", 1},
		"20 of 30":                   {20, some("s", 18), "p0=", some("a", 11), some("s", 18) + " p0= a0=", 10},
		"the sampler's and those given at Start come first": {2, "s1=", "p1=", "a=", "s1= p1=", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", strconv.Itoa(tt.limit))
			ctx := with(t.Context(), tt.ctx)
			span := endedSpan(t, ctx, list(tt.own), WithSampler(adding(sdktrace.RecordAndSample, list(tt.sampler)...)))
			equal(t, tt.want, span.Attributes(), "span")
			assert.Equal(t, tt.dropped, span.DroppedAttributes(), "span")
			if tt.sampler != "" {
				return
			}
			span = endedSpan(t, ctx, list(tt.own), sdktrace.WithSpanProcessor(NewSpanProcessor()))
			equal(t, tt.want, span.Attributes(), "span, by the processor")
			assert.Equal(t, tt.dropped, span.DroppedAttributes(), "span, by the processor")
			record := emitted(t, scopedlog.NewLoggerProvider, ctx, newRecord(list(tt.own)...), sdklog.WithAttributeCountLimit(tt.limit))
			equal(t, tt.want, recordAttributes(&record), "log record")
			assert.Equal(t, tt.dropped, record.DroppedAttributes(), "log record")
		})
	}
}

func TestValueLengthLimits(t *testing.T) {
	ctx, limits := with(t.Context(), "a=123456"), sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = 3
	equal(t, "a=123", endedSpan(t, ctx, nil, sdktrace.WithRawSpanLimits(limits), WithSampler(nil)).Attributes())
	record := emitted(t, scopedlog.NewLoggerProvider, ctx, newRecord(), sdklog.WithAttributeValueLengthLimit(3))
	equal(t, "a=123", recordAttributes(&record))
}
