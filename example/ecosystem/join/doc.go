// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command join joins spans and CPU profiles from the files of an OpenTelemetry Collector. For each
// service and span name it prints CPU time next to wall time.
//
//	join [-json] TRACES PROFILES
//
// The files are the output of the Collector's file exporter: OTLP JSON, one export request per
// line. A sample belongs to the span that its link names, which is the innermost active span. So the
// CPU time of a span name excludes child spans, while its wall time includes them.
//
// Only the time during which a service was recorded is compared. A span that was in progress for part
// of that time counts with this part of its wall time. Services without a profile are left out.
//
// CPU time whose link names no span of TRACES is listed as "(not exported)": the span was not
// sampled, was dropped, or had not ended yet. CPU time without a span, such as that of the garbage
// collector, the runtime's scheduler and code without instrumentation, is listed as "(no span)".
//
// With -json: {recorded_nano, cpu_nano, services: [{service, cpu_nano, no_span_cpu_nano,
// not_exported_cpu_nano}], spans: [{service, name, spans, wall_nano, cpu_nano}]}.
package main
