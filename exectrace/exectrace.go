// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package exectrace adds the ids of spans to execution traces, so that the part of a trace that
// belongs to a request can be found in go tool trace and gotraceui:
//
//	otel.SetTracerProvider(exectrace.NewTracerProvider(tp))
//
// While an execution trace is being recorded, OpenTelemetry's SDK creates a user task for each span
// that records, by default the sampled ones. The task has the span's name as its type and ends with
// the span, but does not contain the span's ids. This package logs the ids in the task under the
// category "traceparent", in W3C Trace Context format, such as
// 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.
//
// This also works while a [runtime/trace.FlightRecorder] is running. If nothing is being recorded,
// a span costs one more atomic load. A span that started before the recording has no task. Once a
// flight recorder discards the start of a span, the span's ids are lost, too.
//
// A span processor cannot do this, because the SDK creates the task after it has called all
// processors. This package wraps the provider instead. It works on all platforms and does not need
// package spanctx.
package exectrace

import (
	"context"
	rttrace "runtime/trace"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// NewTracerProvider returns a TracerProvider that wraps tp. Its tracers start spans with tp and log
// the span ids in execution traces. To shut down, call the Shutdown method of tp.
func NewTracerProvider(tp trace.TracerProvider) trace.TracerProvider { return provider{tp: tp} }

type provider struct {
	embedded.TracerProvider

	tp trace.TracerProvider
}

// Tracer returns a tracer of the wrapped provider that logs ids.
func (p provider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return tracer{t: p.tp.Tracer(name, opts...)}
}

type tracer struct {
	embedded.Tracer

	t trace.Tracer
}

// Start starts a span, and logs its ids if the span records and an execution trace is being
// recorded.
func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := t.t.Start(ctx, name, opts...)
	if rttrace.IsEnabled() && span.IsRecording() {
		sc := span.SpanContext()
		rttrace.Log(ctx, "traceparent", "00-"+sc.TraceID().String()+"-"+sc.SpanID().String()+"-"+sc.TraceFlags().String())
	}
	return ctx, span
}
