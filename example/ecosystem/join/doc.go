// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command join joins spans and CPU profiles that an OpenTelemetry Collector has written
// to files. For each service and span name it prints CPU time beside wall time.
//
//	join [-json] TRACES PROFILES
//
// The files are what the collector's file exporter writes: OTLP JSON, an export request a
// line. A sample of a profile belongs to the span that its link names, which is the
// innermost one that was active. So the CPU time of a span name does not include that of
// the spans below it. Wall time does.
//
// Only what was recorded can be compared. Spans count if they were in progress while
// their service was recorded, with that part of their time. What services that no
// profile is about were doing is left out.
//
// CPU time whose link names no span of TRACES is shown as "(not exported)". Such a span
// was not sampled, was dropped, or had not ended yet. That of no span at all, as of the
// garbage collector, the runtime's scheduler and what is not instrumented, is shown as
// "(no span)".
//
// With -json: {recorded_nano, cpu_nano,
// services: [{service, cpu_nano, no_span_cpu_nano, not_exported_cpu_nano}],
// spans: [{service, name, spans, wall_nano, cpu_nano}]}.
package main
