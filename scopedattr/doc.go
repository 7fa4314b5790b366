// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scopedattr implements context-scoped attributes. They are set once on a context, and are
// then added to all spans, log records and measurements that are made with that context or a
// derived one. The package follows [OTEP 4931] and its predecessor OTEP 207, and uses only the
// existing extension points of the OpenTelemetry SDK.
//
//	ctx = scopedattr.ContextWithAttributes(ctx, attribute.String("http.app", "shop"))
//
// # Turning it on
//
// Each signal is enabled by one call:
//
//	tp := sdktrace.NewTracerProvider(
//		scopedattr.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.1))),
//		sdktrace.WithBatcher(exporter),
//	)
//	lp := scopedlog.NewLoggerProvider(sdklog.NewLoggerProvider(...))
//	mp := scopedattr.NewMeterProvider(sdkmetric.NewMeterProvider(...), "http.app")
//
// [NewSpanProcessor] works with a TracerProvider that already exists. Set the attributes before the
// instrumentation starts its span: a handler inside otelhttp is too late for the server's span and
// measurements.
//
// # Precedence
//
// An attribute of the span, log record or measurement itself wins over an attribute of the context
// with the same key. On a context, an attribute that was set later wins over an earlier one.
//
//   - Spans: attributes given at Start, added by the sampler or set later win. The sampler sees the
//     context's attributes as well as those given at Start. A span gets the attributes that the
//     context has at Start; contexts derived later do not change it. If the attribute count limit
//     is reached, attributes given at Start and those of the sampler come first, then the
//     context's, then attributes that are set later: SetAttributes changes the values of existing
//     keys, but adds no key to a full span.
//   - Log records: attributes of the record win, and come first if the limit is reached.
//   - Measurements: attributes of the call win. Views, the instrument's advice and cardinality
//     limits see the merged attributes, as if all had been given by the call. Asynchronous
//     instruments have no context, so they never get any.
//
// # Concurrency
//
// Everything in this package may be called concurrently. A wrapped sampler or provider is as safe
// for concurrent use as the original. The SDK's samplers and providers are safe.
//
// # Scope
//
// The attributes stay in the process: they are not propagated, and a remote child does not have
// them. They belong to the context, not to a span: a new root span has them, too. This package does
// not publish anything to profilers; package spanctx does.
//
// Usually applications set the attributes, because they know which cardinality their signals can
// afford. According to OTEP 4931, a library must make its attributes opt-in, and document their
// keys and how many values each key can have. Libraries call [contextattr.ContextWithAttributes],
// which imports no SDK.
//
// [contextattr.ContextWithAttributes]: https://pkg.go.dev/github.com/otelctx/otelctx/scopedattr/contextattr
// [OTEP 4931]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/4931-context-scoped-attributes.md
package scopedattr
