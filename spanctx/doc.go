// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spanctx publishes the active span of each goroutine for external profilers, so that they
// can attribute each sample to a span, even though Go moves goroutines between threads. It is a
// span processor, enabled by one option:
//
//	tp := sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		spanctx.WithPublishing(),
//		sdktrace.WithBatcher(exporter),
//	)
//
// [PublishAll] also publishes the spans that the sampler drops. Profilers find the published data in
// the process's memory, whether or not it has a process context; the package always publishes the same.
//
// # Which span a goroutine is in
//
// A goroutine is in the span that it started or attached last, and a new goroutine in that of the
// goroutine that started it. When a span ends, every goroutine leaves it, no matter which goroutine calls
// End. The goroutine returns to the span that it was in before Start or, if it did not start the span or
// did not end it, to the nearest live ancestor by context. A remote parent is never published, nor is a
// span that has ended. In doubt no span is published: a missing span is better than a wrong one.
//
// [The contract of attribution] has every detail, and [Where your samples go] the line of code that
// changes the span, pattern by pattern:
//
//   - A goroutine that works for a span which it neither started nor inherited publishes it with
//     defer spanctx.Attach(ctx).Detach().
//   - A pool worker or a background loop may have inherited a span that it does not work for. It
//     leaves that span with spanctx.Attach(context.Background()).
//   - [Go] starts a goroutine in the span of a context instead of the span of its starter.
//   - [Do] is pprof.Do, except that it keeps the span for label readers.
//   - [DialContext] takes connection goroutines, such as those of http.Transport, out of the span
//     of the request that dials.
//   - [Refresh] publishes the span again after pprof.SetGoroutineLabels, or on the current thread
//     after a call that blocked.
//
// # Where it is published
//
// There are three carriers, for different readers. The goroutine table, which names the span of each
// goroutine, is always on. [WithLabels] chooses how spans are published in the goroutines' profiler
// labels, trace_id and span_id, and in a record next to them ([OTEP 4947]), both of which new goroutines
// inherit. [WithThreadSlots] turns off the slots for readers that know only threads. A carrier that this
// Go runtime does not support stays off: [SpanProcessor.Stats] says why.
//
// Each span has its name and that of its local root ([WithSpanNames]), and the attributes of its context
// with the keys chosen by [WithAttributeKeys].
//
// # Environment variables
//
// Operators can set most options by environment variables OTELCTX_SPAN_*: see the [table]. Options
// in the code override them, except that [WithAttributeKeys] adds to the keys of the environment.
// OTELCTX_SPANS_DISABLED=true makes [WithPublishing] do nothing, unless [WithEnabled] overrides it;
// [New] ignores it. An invalid value is reported to [otel.Handle] once and otherwise ignored.
//
// # Several providers
//
// A process may have several TracerProviders, at the same time or one after the other. Their spans are
// published together, with the options of the first one, as long as one of them is neither shut down nor
// garbage collected. Attribute keys are combined; other options that differ have no effect, which is
// reported. A call of [WithPublishing], [PublishAll], [ForProvider] or [New] counts as a provider until
// its own Shutdown or a later such call.
//
// # Limits
//
// The span table has room for 65,536 live spans. When it is full, a new span evicts an old one, which is
// then no longer published; a span that never ends stays until it is evicted. A span refers to its three
// nearest ancestors. Other limits are rare: see the [design].
//
// Everything in this package may be called concurrently, on any goroutine, except that Detach must
// run on the goroutine that called Attach. It works on Linux, on amd64 and arm64. Elsewhere [New]
// returns an error that wraps [errors.ErrUnsupported], [WithPublishing] reports it, and the other
// functions publish nothing. [Go], [Do] and [DialContext] still call the function passed to them.
//
// [The contract of attribution]: https://github.com/otelctx/otelctx/blob/main/docs/design/0001-span-path.md#the-contract-of-attribution
// [Where your samples go]: https://github.com/otelctx/otelctx/blob/main/docs/where-your-samples-go.md
// [design]: https://github.com/otelctx/otelctx/blob/main/docs/design/0001-span-path.md#limits
// [table]: https://github.com/otelctx/otelctx/blob/main/docs/no-code.md#environment-variables
// [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
package spanctx
