// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package oteltest

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// Measure records a value with an instrument, whatever its kind. Without options it makes no
// allocations besides the instrument's.
type Measure func(ctx context.Context, value int, opts ...metric.MeasurementOption)

// InstrumentName is the name of the instruments made by [Instruments].
const InstrumentName = "measured"

// Instruments maps each kind of synchronous instrument to a constructor.
var Instruments = map[string]func(metric.Meter) (Measure, error){
	"int64counter":         adding(metric.Meter.Int64Counter, metric.Int64Counter.Add),
	"int64updowncounter":   adding(metric.Meter.Int64UpDownCounter, metric.Int64UpDownCounter.Add),
	"int64histogram":       recording(metric.Meter.Int64Histogram, metric.Int64Histogram.Record),
	"int64gauge":           recording(metric.Meter.Int64Gauge, metric.Int64Gauge.Record),
	"float64counter":       adding(metric.Meter.Float64Counter, metric.Float64Counter.Add),
	"float64updowncounter": adding(metric.Meter.Float64UpDownCounter, metric.Float64UpDownCounter.Add),
	"float64histogram":     recording(metric.Meter.Float64Histogram, metric.Float64Histogram.Record),
	"float64gauge":         recording(metric.Meter.Float64Gauge, metric.Float64Gauge.Record),
}

func adding[I, O any, N int64 | float64](
	of func(metric.Meter, string, ...O) (I, error), add func(I, context.Context, N, ...metric.AddOption),
) func(metric.Meter) (Measure, error) {
	return func(m metric.Meter) (Measure, error) {
		instrument, err := of(m, InstrumentName)
		return func(ctx context.Context, value int, opts ...metric.MeasurementOption) {
			converted := make([]metric.AddOption, len(opts))
			for i, o := range opts {
				converted[i] = o
			}
			add(instrument, ctx, N(value), converted...)
		}, err
	}
}

func recording[I, O any, N int64 | float64](
	of func(metric.Meter, string, ...O) (I, error), record func(I, context.Context, N, ...metric.RecordOption),
) func(metric.Meter) (Measure, error) {
	return func(m metric.Meter) (Measure, error) {
		instrument, err := of(m, InstrumentName)
		return func(ctx context.Context, value int, opts ...metric.MeasurementOption) {
			converted := make([]metric.RecordOption, len(opts))
			for i, o := range opts {
				converted[i] = o
			}
			record(instrument, ctx, N(value), converted...)
		}, err
	}
}
