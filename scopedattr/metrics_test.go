// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
)

// collect returns the values of all metrics, by metric name and attribute set. The value is a sum,
// a last value, or the sum of a histogram.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]map[attribute.Set]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	all := map[string]map[attribute.Set]float64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				all[m.Name] = values(d.DataPoints)
			case metricdata.Sum[float64]:
				all[m.Name] = values(d.DataPoints)
			case metricdata.Gauge[int64]:
				all[m.Name] = values(d.DataPoints)
			case metricdata.Gauge[float64]:
				all[m.Name] = values(d.DataPoints)
			case metricdata.Histogram[int64]:
				all[m.Name] = sums(d.DataPoints)
			case metricdata.Histogram[float64]:
				all[m.Name] = sums(d.DataPoints)
			default:
				t.Fatalf("unexpected %T", d)
			}
		}
	}
	return all
}

func values[N int64 | float64](points []metricdata.DataPoint[N]) map[attribute.Set]float64 {
	m := map[attribute.Set]float64{}
	for _, p := range points {
		m[p.Attributes] = float64(p.Value)
	}
	return m
}

func sums[N int64 | float64](points []metricdata.HistogramDataPoint[N]) map[attribute.Set]float64 {
	m := map[attribute.Set]float64{}
	for _, p := range points {
		m[p.Attributes] = float64(p.Sum)
	}
	return m
}

// newCounter returns a counter of a wrapped provider, and a function that collects its values by
// attribute set.
func newCounter(t *testing.T, keys []attribute.Key, opts ...sdkmetric.Option) (metric.Int64Counter, func() map[attribute.Set]float64) {
	t.Helper()
	mp, reader := oteltest.MeterProvider(t, opts...)
	counter, err := NewMeterProvider(mp, keys...).Meter("test").Int64Counter("x")
	require.NoError(t, err)
	return counter, func() map[attribute.Set]float64 { return collect(t, reader)["x"] }
}

func option(text string) metric.MeasurementOption { return metric.WithAttributes(list(text)...) }

func TestMetrics(t *testing.T) {
	for name, tt := range map[string]struct {
		keys []attribute.Key
		ctx  []string
		call []string // attributes of the call, one option each
		want string
	}{
		"the call's last wins":                    {[]attribute.Key{"a", "b"}, []string{"a=ctx b=ctx"}, []string{"a=1", "a=2 c=3"}, "a=2 b=ctx c=3"},
		"only what is allowed":                    {[]attribute.Key{"b"}, []string{"a=ctx b=ctx c=ctx"}, []string{"d=call"}, "b=ctx d=call"},
		"nothing that is allowed":                 {[]attribute.Key{"z"}, []string{"a=ctx"}, []string{"d=call"}, "d=call"},
		"nothing that is allowed, nor the call's": {[]attribute.Key{"z"}, []string{"a=ctx"}, nil, ""},
		"nothing allowed":                         {nil, []string{"a=ctx"}, []string{"d=call"}, "d=call"},
		"the call's need no allowing":             {[]attribute.Key{"b"}, []string{"b=ctx"}, []string{"a=call"}, "a=call b=ctx"},
		"all keys":                                {[]attribute.Key{AllKeys}, []string{"a=ctx b=ctx"}, []string{"b=call"}, "a=ctx b=call"},
		"an empty option":                         {[]attribute.Key{"a"}, []string{"a=ctx"}, []string{""}, "a=ctx"},
	} {
		for kind, instrument := range oteltest.Instruments {
			t.Run(name+"/"+kind, func(t *testing.T) {
				mp, reader := oteltest.MeterProvider(t)
				measure, err := instrument(NewMeterProvider(mp, tt.keys...).Meter("test"))
				require.NoError(t, err)
				ctx := with(t.Context(), tt.ctx...)
				var opts []metric.MeasurementOption
				for _, c := range tt.call {
					opts = append(opts, option(c))
				}
				for range 3 { // the first measurement fills the cache
					measure(ctx, 7, opts...)
				}
				want := 21.0
				if strings.HasSuffix(kind, "gauge") {
					want = 7
				}
				assert.Equal(t, map[string]map[attribute.Set]float64{oteltest.InstrumentName: {set(tt.want): want}}, collect(t, reader))
			})
		}
	}
}

// TestMetricsBeforeViews checks that the SDK's filters and cardinality limits see the added attributes.
func TestMetricsBeforeViews(t *testing.T) {
	ctx := with(t.Context(), "a=ctx b=ctx")
	t.Run("view", func(t *testing.T) {
		counter, counted := newCounter(t, []attribute.Key{"a", "b"}, sdkmetric.WithView(sdkmetric.NewView(
			sdkmetric.Instrument{Name: "x"}, sdkmetric.Stream{AttributeFilter: attribute.NewAllowKeysFilter("a", "c")})))
		counter.Add(ctx, 1, option("c=call d=call"))
		assert.Equal(t, map[attribute.Set]float64{set("a=ctx c=call"): 1}, counted())
	})
	t.Run("cardinality limit", func(t *testing.T) {
		counter, counted := newCounter(t, []attribute.Key{"a"}, sdkmetric.WithCardinalityLimit(3))
		for i := range 10 {
			counter.Add(with(ctx, fmt.Sprint("a=", i)), 1)
		}
		assert.Equal(t, map[attribute.Set]float64{
			set("a=0"): 1, set("a=1"): 1, attribute.NewSet(attribute.Bool("otel.metric.overflow", true)): 8,
		}, counted())
	})
	t.Run("advice", func(t *testing.T) {
		mp, reader := oteltest.MeterProvider(t)
		counter, err := NewMeterProvider(mp, "a", "b").Meter("test").Int64Counter("x", adviseKeys{keys: []attribute.Key{"a"}})
		require.NoError(t, err)
		counter.Add(ctx, 1, option("c=call"))
		assert.Equal(t, map[attribute.Set]float64{set("a=ctx"): 1}, collect(t, reader)["x"])
	})
}

// adviseKeys imitates an experimental instrument option of go.opentelemetry.io/otel/metric/x. It
// lists the attribute keys that the instrument keeps.
type adviseKeys struct {
	metric.InstrumentOption

	keys []attribute.Key
}

func (adviseKeys) Experimental()                  {}
func (a adviseKeys) AllowedKeys() []attribute.Key { return a.keys }

// rawAttributes imitates an experimental measurement option of the same module.
type rawAttributes struct {
	metric.MeasurementOption

	attrs []attribute.KeyValue
}

func (rawAttributes) Experimental()                         {}
func (r rawAttributes) RawAttributes() []attribute.KeyValue { return r.attrs }

// TestMetricsExperimentalOptions checks that attributes are added beside options that only the SDK
// understands.
func TestMetricsExperimentalOptions(t *testing.T) {
	for kind, instrument := range oteltest.Instruments {
		mp, reader := oteltest.MeterProvider(t)
		measure, err := instrument(NewMeterProvider(mp, "a", "b", "e").Meter("test"))
		require.NoError(t, err)
		measure(with(t.Context(), "a=ctx b=ctx e=ctx"), 1, rawAttributes{attrs: list("a=raw c=raw")}, option("d=call e=call"))
		assert.Equal(t, map[attribute.Set]float64{set("a=raw b=ctx c=raw d=call e=call"): 1}, collect(t, reader)[oteltest.InstrumentName], kind)
	}
}

// TestMetricsReusedOption checks that an option may be modified between measurements, which the API
// allows.
func TestMetricsReusedOption(t *testing.T) {
	counter, counted := newCounter(t, []attribute.Key{"a"})
	ctx := with(t.Context(), "a=ctx")
	o := option("")
	for i := range 4 {
		o.(interface{ Set(set attribute.Set) }).Set(set(fmt.Sprint("b=", i%2)))
		counter.Add(ctx, 1, o)
	}
	assert.Equal(t, map[attribute.Set]float64{set("a=ctx b=0"): 2, set("a=ctx b=1"): 2}, counted())
}

// TestObservables checks that asynchronous instruments get no attributes, and that callbacks
// work.
func TestObservables(t *testing.T) {
	mp, reader := oteltest.MeterProvider(t)
	meter := NewMeterProvider(mp, "a").Meter("test")
	ctx := with(t.Context(), "a=ctx")
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

// TestInstrumentErrors checks that the SDK's errors are returned together with usable instruments.
func TestInstrumentErrors(t *testing.T) {
	mp, reader := oteltest.MeterProvider(t)
	counter, err := NewMeterProvider(mp, "a").Meter("test").Int64Counter("7")
	require.ErrorIs(t, err, sdkmetric.ErrInstrumentName)
	counter.Add(with(t.Context(), "a=ctx"), 1)
	assert.Equal(t, map[attribute.Set]float64{set("a=ctx"): 1}, collect(t, reader)["7"])
}

func TestInstrumentEnabled(t *testing.T) {
	dropped, _ := oteltest.MeterProvider(t, sdkmetric.WithView(sdkmetric.NewView(
		sdkmetric.Instrument{Name: "*"}, sdkmetric.Stream{Aggregation: sdkmetric.AggregationDrop{}})))
	kept, _ := oteltest.MeterProvider(t)
	for mp, want := range map[metric.MeterProvider]bool{dropped: false, kept: true, nil: false} {
		meter := NewMeterProvider(mp, "a").Meter("test")
		counter, err := meter.Int64Counter("x")
		require.NoError(t, err)
		histogram, err := meter.Float64Histogram("y")
		require.NoError(t, err)
		ctx := with(t.Context(), "a=ctx")
		assert.Equal(t, want, counter.Enabled(ctx))
		assert.Equal(t, want, histogram.Enabled(ctx))
		counter.Add(ctx, 1)
	}
}

// TestTwoMeterProviders checks that two MeterProviders with different allow lists can use the same
// context.
func TestTwoMeterProviders(t *testing.T) {
	ctx := with(t.Context(), "a=ctx b=ctx")
	var wg sync.WaitGroup
	for _, key := range []string{"a", "b", "a", "b"} {
		counter, counted := newCounter(t, []attribute.Key{attribute.Key(key)})
		wg.Go(func() {
			for range 50 {
				counter.Add(ctx, 1)
			}
			assert.Equal(t, map[attribute.Set]float64{set(key + "=ctx"): 50}, counted())
		})
	}
	wg.Wait()
}

// globalSet is true once the global provider has been set. Only the first global provider adopts
// instruments that were created before it was set.
var globalSet bool

// TestGlobalMeterProvider checks that attributes are added even if instruments were created before
// the global provider was set.
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
	mp, reader := oteltest.MeterProvider(t)
	otel.SetMeterProvider(NewMeterProvider(mp, "a"))
	t.Cleanup(func() { otel.SetMeterProvider(NewMeterProvider(nil)) })
	counter.Add(with(t.Context(), "a=ctx"), 1)
	assert.Equal(t, map[string]map[attribute.Set]float64{"x": {set("a=ctx"): 1}, "y": {attribute.NewSet(): 5}}, collect(t, reader))
}

// TestDroppedMeasurers checks that a context used with many MeterProviders caches a bounded number
// of allowed sets.
func TestDroppedMeasurers(t *testing.T) {
	ctx := with(t.Context(), "a=ctx")
	for i := range 3 * maxAllowedSets {
		counter, counted := newCounter(t, []attribute.Key{"a"})
		for range 2 {
			counter.Add(ctx, 1)
		}
		assert.Equal(t, map[attribute.Set]float64{set("a=ctx"): 2}, counted(), "provider %d", i)
	}
	n := 0
	for m, _ := attrcontext.From(ctx).Measured.Load().(*allowedSet); m != nil; m = m.next {
		n++
	}
	assert.Equal(t, maxAllowedSets, n)
}

// TestMetricsManySets checks that concurrent measurements with more combinations than the cache
// holds get the correct attributes.
func TestMetricsManySets(t *testing.T) {
	counter, counted := newCounter(t, []attribute.Key{"a"}, sdkmetric.WithCardinalityLimit(-1))
	const contexts, calls, rounds = 60, 60, 2
	want := map[attribute.Set]float64{}
	var ctxs [contexts]context.Context
	for i := range contexts {
		ctxs[i] = with(t.Context(), fmt.Sprint("a=", i))
		for j := range calls {
			want[set(fmt.Sprintf("a=%d b=%d", i, j))] = 4 * rounds
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				for i := range contexts {
					for j := range calls {
						counter.Add(ctxs[i], 1, option(fmt.Sprint("b=", j)))
					}
				}
			}
		})
	}
	wg.Wait()
	assert.Equal(t, want, counted())
}

// FuzzMeasurement checks the attributes of measurements against a map. It determines them twice:
// the second time, they may come from the cache.
func FuzzMeasurement(f *testing.F) {
	f.Add([]byte{0, 1, 2, 31, 0xff, 1, 2, 3, 0xff, 0x65})
	m := newMeasurer([]attribute.Key{"a", "b", "c", "d", "e", "f"})
	f.Fuzz(func(t *testing.T, data []byte) {
		lists := sequence(data)
		ctx := withLists(t.Context(), lists[1:])
		oracle := map[attribute.Key]attribute.Value{}
		all := AttributesFromContext(ctx)
		for _, kv := range all.ToSlice() {
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
