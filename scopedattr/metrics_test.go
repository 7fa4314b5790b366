// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// newMeterProvider returns a provider of the SDK and its reader.
func newMeterProvider(t testing.TB, opts ...sdkmetric.Option) (*sdkmetric.MeterProvider, *sdkmetric.ManualReader) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(append(opts, sdkmetric.WithReader(reader))...)
	t.Cleanup(func() { require.NoError(t, mp.Shutdown(context.Background())) })
	return mp, reader
}

// collect returns the attribute sets of the metrics, each with what was measured: the
// sum, the last value, or the sum of a histogram.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]map[attribute.Set]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	all := map[string]map[attribute.Set]float64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			points := map[attribute.Set]float64{}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				addPoints(points, d.DataPoints)
			case metricdata.Sum[float64]:
				addPoints(points, d.DataPoints)
			case metricdata.Gauge[int64]:
				addPoints(points, d.DataPoints)
			case metricdata.Gauge[float64]:
				addPoints(points, d.DataPoints)
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					points[p.Attributes] = float64(p.Sum)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					points[p.Attributes] = p.Sum
				}
			default:
				t.Fatalf("unexpected %T", d)
			}
			all[m.Name] = points
		}
	}
	return all
}

func addPoints[N int64 | float64](points map[attribute.Set]float64, list []metricdata.DataPoint[N]) {
	for _, p := range list {
		points[p.Attributes] = float64(p.Value)
	}
}

// set returns a's attributes as the key of a point.
func (a attrs) set() attribute.Set { return attribute.NewSet(a.list()...) }

// instruments measure v with each kind of synchronous instrument.
var instruments = map[string]func(metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error){
	"int64counter": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Int64Counter("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Add(ctx, int64(v), as[metric.AddOption](o)...)
		}, err
	},
	"int64updowncounter": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Int64UpDownCounter("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Add(ctx, int64(v), as[metric.AddOption](o)...)
		}, err
	},
	"int64histogram": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Int64Histogram("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Record(ctx, int64(v), as[metric.RecordOption](o)...)
		}, err
	},
	"int64gauge": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Int64Gauge("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Record(ctx, int64(v), as[metric.RecordOption](o)...)
		}, err
	},
	"float64counter": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Float64Counter("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Add(ctx, float64(v), as[metric.AddOption](o)...)
		}, err
	},
	"float64updowncounter": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Float64UpDownCounter("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Add(ctx, float64(v), as[metric.AddOption](o)...)
		}, err
	},
	"float64histogram": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Float64Histogram("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Record(ctx, float64(v), as[metric.RecordOption](o)...)
		}, err
	},
	"float64gauge": func(m metric.Meter) (func(context.Context, int, ...metric.MeasurementOption), error) {
		i, err := m.Float64Gauge("x")
		return func(ctx context.Context, v int, o ...metric.MeasurementOption) {
			i.Record(ctx, float64(v), as[metric.RecordOption](o)...)
		}, err
	},
}

// as returns options for one kind of instrument.
func as[O any](opts []metric.MeasurementOption) []O {
	var list []O
	for _, o := range opts {
		list = append(list, o.(O))
	}
	return list
}

func option(a attrs) metric.MeasurementOption { return metric.WithAttributes(a.list()...) }

func TestMetrics(t *testing.T) {
	for _, tt := range []struct {
		name string
		keys []attribute.Key
		ctx  []attrs
		call []attrs // each an option
		want attrs
	}{
		{"a measurement without any", []attribute.Key{"a"}, nil, nil, attrs{}},
		{"the call's alone", []attribute.Key{"a"}, nil, []attrs{{"a": "call"}}, attrs{"a": "call"}},
		{"on the measurement", []attribute.Key{"a"}, []attrs{{"a": "ctx"}}, nil, attrs{"a": "ctx"}},
		{"the later of the context's wins", []attribute.Key{"a", "b"}, []attrs{{"a": "outer", "b": "outer"}, {"a": "inner"}}, nil, attrs{"a": "inner", "b": "outer"}},
		{"beside the call's", []attribute.Key{"a"}, []attrs{{"a": "ctx"}}, []attrs{{"b": "call"}}, attrs{"a": "ctx", "b": "call"}},
		{"the call's win", []attribute.Key{"a", "b"}, []attrs{{"a": "ctx", "b": "ctx"}}, []attrs{{"a": "call"}}, attrs{"a": "call", "b": "ctx"}},
		{"the call's last wins", []attribute.Key{"a", "b"}, []attrs{{"a": "ctx", "b": "ctx"}}, []attrs{{"a": "1"}, {"a": "2", "c": "3"}}, attrs{"a": "2", "b": "ctx", "c": "3"}},
		{"only what is allowed", []attribute.Key{"b"}, []attrs{{"a": "ctx", "b": "ctx", "c": "ctx"}}, []attrs{{"d": "call"}}, attrs{"b": "ctx", "d": "call"}},
		{"nothing that is allowed", []attribute.Key{"z"}, []attrs{{"a": "ctx"}}, []attrs{{"d": "call"}}, attrs{"d": "call"}},
		{"nothing that is allowed, nor of the call", []attribute.Key{"z"}, []attrs{{"a": "ctx"}}, nil, attrs{}},
		{"nothing allowed", nil, []attrs{{"a": "ctx"}}, []attrs{{"d": "call"}}, attrs{"d": "call"}},
		{"the call's need no allowing", []attribute.Key{"b"}, []attrs{{"b": "ctx"}}, []attrs{{"a": "call"}}, attrs{"a": "call", "b": "ctx"}},
		{"an empty option", []attribute.Key{"a"}, []attrs{{"a": "ctx"}}, []attrs{{}}, attrs{"a": "ctx"}},
	} {
		for kind, instrument := range instruments {
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				mp, reader := newMeterProvider(t)
				measure, err := instrument(NewMeterProvider(mp, tt.keys...).Meter("test"))
				require.NoError(t, err)
				ctx := with(t.Context(), tt.ctx...)
				var opts []metric.MeasurementOption
				for _, c := range tt.call {
					opts = append(opts, option(c))
				}
				for range 3 { // the first, and what is remembered of it
					measure(ctx, 7, opts...)
				}
				want := 21.0
				if kind == "int64gauge" || kind == "float64gauge" {
					want = 7
				}
				assert.Equal(t, map[string]map[attribute.Set]float64{"x": {tt.want.set(): want}}, collect(t, reader))
			})
		}
	}
}

func TestMetricTypes(t *testing.T) {
	mp, reader := newMeterProvider(t)
	var keys []attribute.Key
	for _, kv := range everyType() {
		keys = append(keys, kv.Key)
	}
	counter, err := NewMeterProvider(mp, keys...).Meter("test").Int64Counter("x")
	require.NoError(t, err)
	ctx := ContextWithAttributes(t.Context(), everyType()...)
	counter.Add(ctx, 1)
	counter.Add(ctx, 1, metric.WithAttributes(attribute.Int("int", 8)))
	assert.Equal(t, map[attribute.Set]float64{
		attribute.NewSet(everyType()...):                                  1,
		attribute.NewSet(append(everyType(), attribute.Int("int", 8))...): 1,
	}, collect(t, reader)["x"])
}

// TestMetricsBeforeViews filters attributes and limits cardinality in the SDK.
func TestMetricsBeforeViews(t *testing.T) {
	ctx := with(t.Context(), attrs{"a": "ctx", "b": "ctx"})
	t.Run("view", func(t *testing.T) {
		mp, reader := newMeterProvider(t, sdkmetric.WithView(sdkmetric.NewView(
			sdkmetric.Instrument{Name: "x"}, sdkmetric.Stream{AttributeFilter: attribute.NewAllowKeysFilter("a", "c")})))
		counter, err := NewMeterProvider(mp, "a", "b").Meter("test").Int64Counter("x")
		require.NoError(t, err)
		counter.Add(ctx, 1, option(attrs{"c": "call", "d": "call"}))
		assert.Equal(t, map[attribute.Set]float64{attrs{"a": "ctx", "c": "call"}.set(): 1}, collect(t, reader)["x"])
	})
	t.Run("cardinality limit", func(t *testing.T) {
		mp, reader := newMeterProvider(t, sdkmetric.WithCardinalityLimit(3))
		counter, err := NewMeterProvider(mp, "a").Meter("test").Int64Counter("x")
		require.NoError(t, err)
		for i := range 10 {
			counter.Add(with(ctx, attrs{"a": strconv.Itoa(i)}), 1)
		}
		assert.Equal(t, map[attribute.Set]float64{
			attrs{"a": "0"}.set(): 1, attrs{"a": "1"}.set(): 1,
			attribute.NewSet(attribute.Bool("otel.metric.overflow", true)): 8,
		}, collect(t, reader)["x"])
	})
	t.Run("advice", func(t *testing.T) {
		mp, reader := newMeterProvider(t)
		counter, err := NewMeterProvider(mp, "a", "b").Meter("test").Int64Counter("x", adviseKeys{keys: []attribute.Key{"a"}})
		require.NoError(t, err)
		counter.Add(ctx, 1, option(attrs{"c": "call"}))
		assert.Equal(t, map[attribute.Set]float64{attrs{"a": "ctx"}.set(): 1}, collect(t, reader)["x"])
	})
}

// adviseKeys is the experimental advice of which attributes an instrument keeps, as
// go.opentelemetry.io/otel/metric/x has it.
type adviseKeys struct {
	metric.InstrumentOption

	keys []attribute.Key
}

func (adviseKeys) Experimental()                  {}
func (a adviseKeys) AllowedKeys() []attribute.Key { return a.keys }

// rawAttributes is that module's experimental option for measurements.
type rawAttributes struct {
	metric.MeasurementOption

	attrs attrs
}

func (rawAttributes) Experimental()                         {}
func (r rawAttributes) RawAttributes() []attribute.KeyValue { return r.attrs.list() }

// TestMetricsExperimentalOptions gives options that only the SDK understands.
func TestMetricsExperimentalOptions(t *testing.T) {
	for kind, instrument := range instruments {
		mp, reader := newMeterProvider(t)
		measure, err := instrument(NewMeterProvider(mp, "a", "b", "e").Meter("test"))
		require.NoError(t, err)
		ctx := with(t.Context(), attrs{"a": "ctx", "b": "ctx", "e": "ctx"})
		measure(ctx, 1, rawAttributes{attrs: attrs{"a": "raw", "c": "raw"}}, option(attrs{"d": "call", "e": "call"}))
		assert.Equal(t, map[attribute.Set]float64{attrs{"a": "raw", "b": "ctx", "c": "raw", "d": "call", "e": "call"}.set(): 1}, collect(t, reader)["x"], kind)
	}
}

// TestMetricsReusedOption changes an option between measurements, which the API allows.
func TestMetricsReusedOption(t *testing.T) {
	mp, reader := newMeterProvider(t)
	counter, err := NewMeterProvider(mp, "a").Meter("test").Int64Counter("x")
	require.NoError(t, err)
	ctx := with(t.Context(), attrs{"a": "ctx"})
	o := option(nil)
	for i := range 4 {
		o.(interface{ Set(set attribute.Set) }).Set(attrs{"b": strconv.Itoa(i % 2)}.set())
		counter.Add(ctx, 1, o)
	}
	assert.Equal(t, map[attribute.Set]float64{
		attrs{"a": "ctx", "b": "0"}.set(): 2, attrs{"a": "ctx", "b": "1"}.set(): 2,
	}, collect(t, reader)["x"])
}

// TestObservables shows that asynchronous instruments get nothing, and that callbacks
// work.
func TestObservables(t *testing.T) {
	mp, reader := newMeterProvider(t)
	meter := NewMeterProvider(mp, "a").Meter("test")
	ctx := with(t.Context(), attrs{"a": "ctx"})
	_, err := meter.Int64ObservableCounter("callback", metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(1, metric.WithAttributes(attribute.Int("n", 1)))
		return nil
	}))
	require.NoError(t, err)
	up, err := meter.Int64ObservableUpDownCounter("updown")
	require.NoError(t, err)
	gauge, err := meter.Float64ObservableGauge("gauge")
	require.NoError(t, err)
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(up, 2)
		o.ObserveFloat64(gauge, 3)
		return nil
	}, up, gauge)
	require.NoError(t, err)
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &rm))
	assert.Equal(t, map[string]map[attribute.Set]float64{
		"callback": {attribute.NewSet(attribute.Int("n", 1)): 1},
		"updown":   {attribute.NewSet(): 2},
		"gauge":    {attribute.NewSet(): 3},
	}, collect(t, reader))
	require.NoError(t, registration.Unregister())
	assert.Equal(t, map[string]map[attribute.Set]float64{"callback": {attribute.NewSet(attribute.Int("n", 1)): 1}}, collect(t, reader))
}

// TestInstrumentErrors gets the SDK's errors and its instruments.
func TestInstrumentErrors(t *testing.T) {
	mp, reader := newMeterProvider(t)
	counter, err := NewMeterProvider(mp, "a").Meter("test").Int64Counter("7")
	require.ErrorIs(t, err, sdkmetric.ErrInstrumentName)
	counter.Add(with(t.Context(), attrs{"a": "ctx"}), 1)
	assert.Equal(t, map[attribute.Set]float64{attrs{"a": "ctx"}.set(): 1}, collect(t, reader)["7"])
}

func TestInstrumentEnabled(t *testing.T) {
	dropped, _ := newMeterProvider(t, sdkmetric.WithView(sdkmetric.NewView(
		sdkmetric.Instrument{Name: "*"}, sdkmetric.Stream{Aggregation: sdkmetric.AggregationDrop{}})))
	kept, _ := newMeterProvider(t)
	for mp, want := range map[metric.MeterProvider]bool{dropped: false, kept: true, nil: false} {
		meter := NewMeterProvider(mp, "a").Meter("test")
		counter, err := meter.Int64Counter("x")
		require.NoError(t, err)
		histogram, err := meter.Float64Histogram("y")
		require.NoError(t, err)
		ctx := with(t.Context(), attrs{"a": "ctx"})
		assert.Equal(t, want, counter.Enabled(ctx))
		assert.Equal(t, want, histogram.Enabled(ctx))
		counter.Add(ctx, 1)
	}
}

// TestMetricsOptIn uses the provider that was not wrapped.
func TestMetricsOptIn(t *testing.T) {
	mp, reader := newMeterProvider(t)
	counter, err := mp.Meter("test").Int64Counter("x")
	require.NoError(t, err)
	counter.Add(with(t.Context(), attrs{"a": "ctx"}), 1)
	assert.Equal(t, map[attribute.Set]float64{attribute.NewSet(): 1}, collect(t, reader)["x"])
}

func TestMetricNilContext(t *testing.T) {
	for _, instrument := range instruments {
		mp, reader := newMeterProvider(t)
		measure, err := instrument(NewMeterProvider(mp, "a").Meter("test"))
		require.NoError(t, err)
		measure(nil, 1, option(attrs{"b": "call"}))
		assert.Equal(t, map[attribute.Set]float64{attrs{"b": "call"}.set(): 1}, collect(t, reader)["x"])
	}
}

// TestTwoMeterProviders measures with one context and two lists of what is allowed.
func TestTwoMeterProviders(t *testing.T) {
	ctx := with(t.Context(), attrs{"a": "ctx", "b": "ctx"})
	var wg sync.WaitGroup
	for _, key := range []string{"a", "b", "a", "b"} {
		mp, reader := newMeterProvider(t)
		counter, err := NewMeterProvider(mp, attribute.Key(key)).Meter("test").Int64Counter("x")
		require.NoError(t, err)
		wg.Go(func() {
			for range 50 {
				counter.Add(ctx, 1)
			}
			assert.Equal(t, map[attribute.Set]float64{attrs{key: "ctx"}.set(): 50}, collect(t, reader)["x"])
		})
	}
	wg.Wait()
}

// globalSet says that the global provider has been set, which moves older instruments once.
var globalSet bool

// TestGlobalMeterProvider has instruments that are older than the provider.
func TestGlobalMeterProvider(t *testing.T) {
	if globalSet {
		t.Skip("the global provider can be set for older instruments once in a process")
	}
	globalSet = true
	meter := otel.Meter("test")
	counter, err := meter.Int64Counter("x")
	require.NoError(t, err)
	gauge, err := meter.Int64ObservableGauge("y")
	require.NoError(t, err)
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(gauge, 5)
		return nil
	}, gauge)
	require.NoError(t, err)
	mp, reader := newMeterProvider(t)
	otel.SetMeterProvider(NewMeterProvider(mp, "a"))
	t.Cleanup(func() { otel.SetMeterProvider(NewMeterProvider(nil)) })
	counter.Add(with(t.Context(), attrs{"a": "ctx"}), 1)
	assert.Equal(t, map[string]map[attribute.Set]float64{"x": {attrs{"a": "ctx"}.set(): 1}, "y": {attribute.NewSet(): 5}}, collect(t, reader))
}

// TestMetricsManySets measures with more combinations than are remembered, from many
// goroutines.
func TestMetricsManySets(t *testing.T) {
	mp, reader := newMeterProvider(t, sdkmetric.WithCardinalityLimit(-1))
	counter, err := NewMeterProvider(mp, "a").Meter("test").Int64Counter("x")
	require.NoError(t, err)
	const contexts, calls, rounds = 60, 60, 2
	want := map[attribute.Set]float64{}
	ctxs := make([]context.Context, contexts)
	for i := range contexts {
		ctxs[i] = with(t.Context(), attrs{"a": strconv.Itoa(i)})
		for j := range calls {
			want[attrs{"a": strconv.Itoa(i), "b": strconv.Itoa(j)}.set()] = 4 * rounds
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				for i := range contexts {
					for j := range calls {
						counter.Add(ctxs[i], 1, option(attrs{"b": strconv.Itoa(j)}))
					}
				}
			}
		})
	}
	wg.Wait()
	assert.Equal(t, want, collect(t, reader)["x"])
}

// FuzzMeasurement compares with a map, twice: what is found, and what is remembered.
func FuzzMeasurement(f *testing.F) {
	f.Add([]byte{0, 1, 2, 31, 0xff, 1, 2, 3, 0xff, 0x65})
	m := newMeasurer([]attribute.Key{"a", "b", "c", "d", "e", "f"})
	f.Fuzz(func(t *testing.T, data []byte) {
		lists := sequence(data)
		ctx := t.Context()
		for _, list := range lists[1:] {
			ctx = ContextWithAttributes(ctx, list...)
		}
		oracle := map[attribute.Key]attribute.Value{}
		set := AttributesFromContext(ctx)
		for _, kv := range set.ToSlice() {
			if kv.Key <= "f" {
				oracle[kv.Key] = kv.Value
			}
		}
		for _, kv := range lists[0] {
			oracle[kv.Key] = kv.Value
		}
		var want []attribute.KeyValue
		for k, v := range oracle {
			want = append(want, attribute.KeyValue{Key: k, Value: v})
		}
		for range 2 {
			add := metric.NewAddConfig(m.addOptions(ctx, []metric.AddOption{metric.WithAttributes(lists[0]...)}))
			record := metric.NewRecordConfig(m.recordOptions(ctx, []metric.RecordOption{metric.WithAttributes(lists[0]...)}))
			require.Equal(t, attribute.NewSet(want...), add.Attributes())
			require.Equal(t, attribute.NewSet(want...), record.Attributes())
		}
	})
}
