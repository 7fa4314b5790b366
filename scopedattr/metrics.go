// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/otelctx/otelctx/internal/selfwrap"
)

// AllKeys is a wildcard key for [NewMeterProvider]: it adds all attributes of a context.
const AllKeys attribute.Key = "*"

// NewMeterProvider returns a provider that wraps next. Its synchronous instruments add the
// attributes of the context to each measurement, for the given keys. If the call itself has an
// attribute with the same key, that one wins. Pass the result to instrumentation or to
// [otel.SetMeterProvider]; call ForceFlush and Shutdown on next.
//
// keys is an allow list: if it is empty, no attribute is added. With [AllKeys], all attributes are
// added, as OTEP 207 specifies for the other signals. Each value of an attribute adds a time series
// to every instrument, so allow only keys with few values: the name of an application or the class
// of a tenant, not a user or a request.
//
// Views, the instrument's advice and cardinality limits apply after the attributes are added.
// Enabled, asynchronous instruments and callbacks are those of next. A nil context is passed to
// next unchanged. If next's instruments have methods beyond the API's interfaces, these are not
// available. In SDK v1.47.0 there are none. A nil next stands for a no-op provider.
//
// If next is the global provider and no SDK has been set, do not set the result as the global
// provider: the two would pass measurements to each other. In this case the measurements are
// dropped, and the mistake is reported to [otel.Handle].
//
// Adding attributes does not allocate for frequent combinations of context attributes and call
// attributes: up to 1,024 combinations are cached.
//
// [otel.SetMeterProvider]: https://pkg.go.dev/go.opentelemetry.io/otel#SetMeterProvider
func NewMeterProvider(next metric.MeterProvider, keys ...attribute.Key) metric.MeterProvider {
	if next == nil {
		next = metricnoop.NewMeterProvider()
	}
	p := &meterProvider{MeterProvider: next, measurer: newMeasurer(keys)}
	p.detector.Init(next)
	return p
}

type meterProvider struct {
	metric.MeterProvider

	*measurer

	detector selfwrap.Detector
}

// Meter returns a meter whose synchronous instruments add the attributes of the context.
func (p *meterProvider) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	if p.detector.CalledByWrapped("MeterProvider") {
		return metricnoop.Meter{}
	}
	return &meter{p.MeterProvider.Meter(name, opts...), p.measurer}
}

// meter wraps synchronous instruments. It returns the observable instruments of the wrapped meter
// unchanged, because RegisterCallback depends on their types.
type meter struct {
	metric.Meter

	*measurer
}

func (m *meter) Int64Counter(name string, opts ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	i, err := m.Meter.Int64Counter(name, opts...)
	return &int64Counter{i, m.measurer}, err
}

func (m *meter) Int64UpDownCounter(name string, opts ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	i, err := m.Meter.Int64UpDownCounter(name, opts...)
	return &int64UpDownCounter{i, m.measurer}, err
}

func (m *meter) Int64Histogram(name string, opts ...metric.Int64HistogramOption) (metric.Int64Histogram, error) {
	i, err := m.Meter.Int64Histogram(name, opts...)
	return &int64Histogram{i, m.measurer}, err
}

func (m *meter) Int64Gauge(name string, opts ...metric.Int64GaugeOption) (metric.Int64Gauge, error) {
	i, err := m.Meter.Int64Gauge(name, opts...)
	return &int64Gauge{i, m.measurer}, err
}

func (m *meter) Float64Counter(name string, opts ...metric.Float64CounterOption) (metric.Float64Counter, error) {
	i, err := m.Meter.Float64Counter(name, opts...)
	return &float64Counter{i, m.measurer}, err
}

func (m *meter) Float64UpDownCounter(name string, opts ...metric.Float64UpDownCounterOption) (metric.Float64UpDownCounter, error) {
	i, err := m.Meter.Float64UpDownCounter(name, opts...)
	return &float64UpDownCounter{i, m.measurer}, err
}

func (m *meter) Float64Histogram(name string, opts ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	i, err := m.Meter.Float64Histogram(name, opts...)
	return &float64Histogram{i, m.measurer}, err
}

func (m *meter) Float64Gauge(name string, opts ...metric.Float64GaugeOption) (metric.Float64Gauge, error) {
	i, err := m.Meter.Float64Gauge(name, opts...)
	return &float64Gauge{i, m.measurer}, err
}

type (
	int64Counter struct {
		metric.Int64Counter

		*measurer
	}
	int64UpDownCounter struct {
		metric.Int64UpDownCounter

		*measurer
	}
	int64Histogram struct {
		metric.Int64Histogram

		*measurer
	}
	int64Gauge struct {
		metric.Int64Gauge

		*measurer
	}
	float64Counter struct {
		metric.Float64Counter

		*measurer
	}
	float64UpDownCounter struct {
		metric.Float64UpDownCounter

		*measurer
	}
	float64Histogram struct {
		metric.Float64Histogram

		*measurer
	}
	float64Gauge struct {
		metric.Float64Gauge

		*measurer
	}
)

func (i *int64Counter) Add(ctx context.Context, v int64, opts ...metric.AddOption) {
	i.Int64Counter.Add(ctx, v, i.addOptions(ctx, opts)...)
}

func (i *int64UpDownCounter) Add(ctx context.Context, v int64, opts ...metric.AddOption) {
	i.Int64UpDownCounter.Add(ctx, v, i.addOptions(ctx, opts)...)
}

func (i *int64Histogram) Record(ctx context.Context, v int64, opts ...metric.RecordOption) {
	i.Int64Histogram.Record(ctx, v, i.recordOptions(ctx, opts)...)
}

func (i *int64Gauge) Record(ctx context.Context, v int64, opts ...metric.RecordOption) {
	i.Int64Gauge.Record(ctx, v, i.recordOptions(ctx, opts)...)
}

func (i *float64Counter) Add(ctx context.Context, v float64, opts ...metric.AddOption) {
	i.Float64Counter.Add(ctx, v, i.addOptions(ctx, opts)...)
}

func (i *float64UpDownCounter) Add(ctx context.Context, v float64, opts ...metric.AddOption) {
	i.Float64UpDownCounter.Add(ctx, v, i.addOptions(ctx, opts)...)
}

func (i *float64Histogram) Record(ctx context.Context, v float64, opts ...metric.RecordOption) {
	i.Float64Histogram.Record(ctx, v, i.recordOptions(ctx, opts)...)
}

func (i *float64Gauge) Record(ctx context.Context, v float64, opts ...metric.RecordOption) {
	i.Float64Gauge.Record(ctx, v, i.recordOptions(ctx, opts)...)
}
