// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package oteltest has OpenTelemetry helpers for tests and benchmarks: processors that do nothing
// or call a function, providers that are shut down at the end of the test, all kinds of
// instruments, and a collector of the errors passed to otel.Handle.
//
// The package is for tests only.
package oteltest

import (
	"context"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// SpanProcessor calls Start for each span that starts. Without Start it does nothing, but its
// presence makes a provider record spans.
type SpanProcessor struct{ Start func(sdktrace.ReadWriteSpan) }

// OnStart calls p.Start, unless it is nil.
func (p SpanProcessor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if p.Start != nil {
		p.Start(s)
	}
}

// OnEnd does nothing.
func (SpanProcessor) OnEnd(sdktrace.ReadOnlySpan) {}

// Shutdown does nothing.
func (SpanProcessor) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (SpanProcessor) ForceFlush(context.Context) error { return nil }

// LogProcessor calls Emit for each log record. Without Emit it does nothing.
type LogProcessor struct {
	Emit     func(*sdklog.Record)
	Disabled bool
}

// OnEmit calls p.Emit, unless it is nil.
func (p LogProcessor) OnEmit(_ context.Context, r *sdklog.Record) error {
	if p.Emit != nil {
		p.Emit(r)
	}
	return nil
}

// Enabled returns false if Disabled is set.
func (p LogProcessor) Enabled(context.Context, sdklog.EnabledParameters) bool { return !p.Disabled }

// Shutdown does nothing.
func (LogProcessor) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (LogProcessor) ForceFlush(context.Context) error { return nil }

// TracerProvider returns a provider that is shut down at the end of the test.
func TracerProvider(t testing.TB, opts ...sdktrace.TracerProviderOption) *sdktrace.TracerProvider {
	t.Helper()
	tp := sdktrace.NewTracerProvider(opts...)
	shutDown(t, tp)
	return tp
}

// Tracer returns a tracer whose provider is shut down at the end of the test.
func Tracer(t testing.TB, opts ...sdktrace.TracerProviderOption) trace.Tracer {
	t.Helper()
	return TracerProvider(t, opts...).Tracer("test")
}

// LoggerProvider returns a provider that is shut down at the end of the test.
func LoggerProvider(t testing.TB, opts ...sdklog.LoggerProviderOption) *sdklog.LoggerProvider {
	t.Helper()
	lp := sdklog.NewLoggerProvider(opts...)
	shutDown(t, lp)
	return lp
}

// MeterProvider returns a provider that is shut down at the end of the test, and its reader.
func MeterProvider(t testing.TB, opts ...sdkmetric.Option) (*sdkmetric.MeterProvider, *sdkmetric.ManualReader) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(append(opts, sdkmetric.WithReader(reader))...)
	shutDown(t, mp)
	return mp, reader
}

type provider interface {
	Shutdown(ctx context.Context) error
}

func shutDown(t testing.TB, p provider) {
	t.Helper()
	t.Cleanup(func() {
		if err := p.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// Errors collects errors passed to otel.Handle.
type Errors struct {
	mu   sync.Mutex
	errs []error
}

// HandledErrors collects the errors passed to otel.Handle until the end of the test.
func HandledErrors(t testing.TB) *Errors {
	t.Helper()
	e := new(Errors)
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(e)
	t.Cleanup(func() { otel.SetErrorHandler(before) })
	return e
}

// Handle implements otel.ErrorHandler.
func (e *Errors) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.errs = append(e.errs, err)
}

// Take returns the errors that were collected since the last call of Take.
func (e *Errors) Take() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	errs := e.errs
	e.errs = nil
	return errs
}
