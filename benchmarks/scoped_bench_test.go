// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

// three lists the attributes that are set on a context, or passed explicitly with each call.
var three = []attribute.KeyValue{
	attribute.String("http.app", "shop"), attribute.String("tenant.class", "gold"), attribute.Int("shard", 7),
}

// own lists attributes that belong to a single span, log record or measurement.
var own = []attribute.KeyValue{
	attribute.String("http.request.method", "GET"), attribute.String("http.route", "/cart/{id}"),
	attribute.Int("http.response.status_code", 200), attribute.Bool("cached", true),
}

// layer is the key of an unrelated value in a context.
type layer int

// owns lists the sets of own attributes to benchmark.
var owns = []struct {
	own  string
	list []attribute.KeyValue
}{{"0", nil}, {"4", own}}

// requestContexts returns two contexts with six layers of unrelated values, as in a handler. bare has
// no attributes. scoped has three, set between the third and the fourth layer.
func requestContexts(ctx context.Context) (bare, scoped context.Context) {
	scoped = ctx
	for i := range layer(6) {
		ctx, scoped = context.WithValue(ctx, i, i), context.WithValue(scoped, i, i)
		if i == 2 {
			scoped = scopedattr.ContextWithAttributes(scoped, three...)
		}
	}
	return ctx, scoped
}

// beside compares a bare instrument of the SDK with a scoped one of package scopedattr. do uses an
// instrument n times; hand tells it to pass the three attributes explicitly.
//
//   - attributes=bare: bare compared with itself, which shows the noise;
//   - attributes=none: scoped without attributes on the context, compared with bare;
//   - attributes=hand: bare with three explicit attributes, compared with bare;
//   - attributes=context: scoped with three attributes on the context, compared with bare and three explicit ones.
func beside[T any](b *testing.B, bare, scoped T, do func(ctx context.Context, with T, hand bool, n int)) {
	b.Helper()
	without, ctx := requestContexts(b.Context())
	plain := func(n int) { do(without, bare, false, n) }
	hand := func(n int) { do(without, bare, true, n) }
	for _, c := range []struct {
		attributes          string
		baseline, candidate func(int)
	}{
		{"bare", plain, plain},
		{"none", plain, func(n int) { do(without, scoped, false, n) }},
		{"hand", plain, hand},
		{"context", hand, func(n int) { do(ctx, scoped, false, n) }},
	} {
		b.Run("attributes="+c.attributes, func(b *testing.B) { alternate(b, batch, c.baseline, c.candidate) })
	}
}

// BenchmarkScopedSpan starts and ends spans.
func BenchmarkScopedSpan(b *testing.B) {
	for _, o := range owns {
		b.Run("own="+o.own, func(b *testing.B) {
			bare := provider(b, sdktrace.WithSpanProcessor(noop)).Tracer("benchmarks")
			scoped := provider(b, sdktrace.WithSpanProcessor(noop), scopedattr.WithSampler(nil)).Tracer("benchmarks")
			beside(b, bare, scoped, func(ctx context.Context, tracer trace.Tracer, hand bool, n int) {
				for range n {
					var span trace.Span
					switch {
					case hand && o.list != nil:
						_, span = tracer.Start(ctx, "work", trace.WithAttributes(o.list...), trace.WithAttributes(three...))
					case hand:
						_, span = tracer.Start(ctx, "work", trace.WithAttributes(three...))
					case o.list != nil:
						_, span = tracer.Start(ctx, "work", trace.WithAttributes(o.list...))
					default:
						_, span = tracer.Start(ctx, "work")
					}
					span.End()
				}
			})
		})
	}
}

// BenchmarkScopedLog creates and emits records.
func BenchmarkScopedLog(b *testing.B) {
	for _, o := range owns {
		b.Run("own="+o.own, func(b *testing.B) {
			lp := oteltest.LoggerProvider(b, sdklog.WithProcessor(oteltest.LogProcessor{}))
			beside(b, lp.Logger("benchmarks"), scopedlog.NewLoggerProvider(lp).Logger("benchmarks"),
				func(ctx context.Context, logger log.Logger, hand bool, n int) {
					for range n {
						var record log.Record
						record.SetBody(attribute.StringValue("work"))
						record.AddAttributes(o.list...)
						if hand {
							record.AddAttributes(three...)
						}
						logger.Emit(ctx, record)
					}
				})
		})
	}
}

// BenchmarkScopedMeasurement records measurements with each kind of instrument. The option with the
// attributes is created once (set=ready) or for each measurement (set=made).
func BenchmarkScopedMeasurement(b *testing.B) {
	both := func(own []attribute.KeyValue, hand bool) []attribute.KeyValue {
		if hand {
			return slices.Concat(own, three)
		}
		return own
	}
	var keys []attribute.Key
	for _, kv := range three {
		keys = append(keys, kv.Key)
	}
	for _, kind := range slices.Sorted(maps.Keys(oteltest.Instruments)) {
		for _, o := range owns {
			for _, set := range []string{"ready", "made"} {
				if set == "made" && kind != "int64counter" && kind != "float64histogram" {
					continue // Two kinds of instrument are enough for set=made.
				}
				b.Run("instrument="+kind+"/own="+o.own+"/set="+set, func(b *testing.B) {
					mp, _ := oteltest.MeterProvider(b)
					bare, err := oteltest.Instruments[kind](mp.Meter("benchmarks"))
					require.NoError(b, err)
					scoped, err := oteltest.Instruments[kind](scopedattr.NewMeterProvider(mp, keys...).Meter("benchmarks"))
					require.NoError(b, err)
					beside(b, bare, scoped, func(ctx context.Context, measure oteltest.Measure, hand bool, n int) {
						list := both(o.list, hand)
						var options []metric.MeasurementOption
						if len(list) > 0 {
							options = append(options, metric.WithAttributes(list...))
						}
						for range n {
							if set == "made" && len(list) > 0 {
								options[0] = metric.WithAttributes(list...)
							}
							measure(ctx, 1, options...)
						}
					})
				})
			}
		}
	}
}

// BenchmarkContextWithAttributes sets three attributes on a context that has no attributes (have=0)
// or three others (have=3).
func BenchmarkContextWithAttributes(b *testing.B) {
	for _, have := range []string{"0", "3"} {
		b.Run("have="+have, func(b *testing.B) {
			ctx := b.Context()
			if have == "3" {
				ctx = scopedattr.ContextWithAttributes(ctx, own[:3]...)
			}
			b.ReportAllocs()
			for b.Loop() {
				scopedattr.ContextWithAttributes(ctx, three...)
			}
		})
	}
}
