// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// signal makes one thing of a kind with a context, and attributes of its own, by a provider
// that is wrapped or a bare one, and returns which attributes it has in the end. On metrics
// all attributes are allowed.
type signal func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue

// signals are all kinds that there are.
func signals() map[string]signal {
	all := map[string]signal{
		"span": func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue {
			t.Helper()
			rec := newRecorder("")
			opts := []sdktrace.TracerProviderOption{sdktrace.WithSpanProcessor(rec)}
			if wrapped {
				opts = append(opts, WithSampler(nil))
			}
			_, span := newTracer(t, opts...).Start(ctx, "work", trace.WithAttributes(own...))
			span.End()
			assert.Zero(t, rec.Ended()[0].DroppedAttributes())
			return rec.Ended()[0].Attributes()
		},
		"log record": func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue {
			t.Helper()
			e := &logExporter{}
			var lp log.LoggerProvider = newLogProvider(t, sdklog.WithProcessor(sdklog.NewSimpleProcessor(e)))
			if wrapped {
				lp = NewLoggerProvider(lp)
			}
			lp.Logger("test").Emit(ctx, newRecord(own...))
			assert.Zero(t, e.records[0].DroppedAttributes())
			return e.attributes(t)
		},
	}
	for kind, instrument := range instruments {
		all[kind] = func(t *testing.T, wrapped bool, ctx context.Context, own []attribute.KeyValue) []attribute.KeyValue {
			t.Helper()
			bare, reader := newMeterProvider(t)
			var mp metric.MeterProvider = bare
			if wrapped {
				scoped := AttributesFromContext(ctx)
				var keys []attribute.Key
				for _, kv := range scoped.ToSlice() {
					keys = append(keys, kv.Key)
				}
				mp = NewMeterProvider(mp, keys...)
			}
			measure, err := instrument(mp.Meter("test"))
			require.NoError(t, err)
			measure(ctx, 1, metric.WithAttributes(own...))
			points := collect(t, reader)["x"]
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
		"the later of the context's wins": {[]string{"a=outer b=outer", "a=inner"}, "", "a=inner b=outer"},
		"beside its own":                  {[]string{"a=ctx"}, "b=own", "a=ctx b=own"},
		"its own win":                     {[]string{"a=ctx b=ctx"}, "a=own", "a=own b=ctx"},
		"more than fit into a log record": {[]string{"g=ctx h=ctx"}, "a=1 b=2 c=3 d=4 e=5 f=6 g=7", "a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=ctx"},
	} {
		for kind, signal := range signals() {
			t.Run(name+"/"+kind, func(t *testing.T) {
				ctx := with(t.Context(), tt.ctx...)
				equal(t, tt.want, signal(t, true, ctx, list(tt.own)))
				equal(t, tt.own, signal(t, false, ctx, list(tt.own)), "by a provider that was not asked to")
			})
		}
	}
}

func TestEachSignalAndType(t *testing.T) {
	for kind, signal := range signals() {
		got := signal(t, true, ContextWithAttributes(t.Context(), everyType()...), nil)
		assert.ElementsMatch(t, everyType(), got, kind)
		got = signal(t, true, ContextWithAttributes(t.Context(), everyType()...), []attribute.KeyValue{attribute.Int("string", 8)})
		assert.Contains(t, got, attribute.Int("string", 8), kind)
		assert.Len(t, got, len(everyType()), kind)
	}
}

func TestEachSignalWithoutContext(t *testing.T) {
	for kind, signal := range signals() {
		equal(t, "a=own", signal(t, true, nil, list("a=own")), kind)
	}
}
