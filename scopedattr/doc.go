// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scopedattr implements context-scoped attributes. They are set once, on a
// context. Then they are on all spans, log records and measurements that are made with
// that context or with one derived from it. It follows [OTEP 4931] and its predecessor
// OTEP 207, on the extension points of the OpenTelemetry SDK as it is.
//
//	ctx = scopedattr.ContextWithAttributes(ctx, attribute.String("http.app", "shop"))
//
// # Turning it on
//
// A signal carries the attributes only if it is asked to, each by one call:
//
//	tp := sdktrace.NewTracerProvider(
//		scopedattr.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.1))),
//		sdktrace.WithBatcher(exporter),
//	)
//	lp := scopedattr.NewLoggerProvider(sdklog.NewLoggerProvider(...))
//	mp := scopedattr.NewMeterProvider(sdkmetric.NewMeterProvider(...), "http.app")
//
// A TracerProvider that exists already takes [NewSpanProcessor]. Set the attributes before the
// instrumentation that is to carry them. A handler inside of otelhttp is too late for the
// server's span and for its measurements.
//
// # Precedence
//
// An attribute that comes with the span, the record or the measurement itself wins over the
// context's one with the same key. What was set on a context later wins over what was set
// earlier.
//
//   - Spans: attributes given at Start, those that the sampler adds, and those set later win.
//     The sampler sees the context's beside those given at Start. A span keeps what the
//     context had when it was started. Where a limit leaves room for some attributes only,
//     those given at Start and the sampler's come first, then the context's. Attributes that
//     are set later come last. SetAttributes changes the value of a key that the span has.
//     It adds no key to a span that is full.
//   - Log records: attributes of the record win, also where a limit leaves room for some only.
//   - Measurements: attributes of the call win. Views, the instrument's advice and
//     cardinality limits see the result, as if the call had given all of it.
//     Asynchronous instruments have no context: they never get any.
//
// # Concurrency
//
// The package knows nothing of profilers: package spanctx publishes the attributes. Everything
// in this package may be called concurrently. What it puts around a sampler or
// a provider is as safe for concurrent use as that is, and the SDK's are.
//
// # Scope
//
// The attributes stay in the process: nothing propagates them, and a remote child
// does not have them. They belong to the context, not to a span: a new root span has
// them too.
//
// Setting them is for applications, which know what their signals can bear. By OTEP 4931 a
// library must let its users ask for it, and tell them the keys and how many values these
// take. It calls [contextattr.ContextWithAttributes], and so imports no SDK.
//
// [contextattr.ContextWithAttributes]: https://pkg.go.dev/github.com/otelctx/otelctx/scopedattr/contextattr
// [OTEP 4931]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/4931-context-scoped-attributes.md
package scopedattr
