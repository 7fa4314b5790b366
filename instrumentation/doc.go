// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package instrumentation publishes the resource and the active spans of a service whose
// source does not mention otelctx. Two tools that instrument while they compile know it:
// OpenTelemetry's otelc (otelctx.otelc.yml) and Datadog's Orchestrion (orchestrion.yml). Both
// make [sdktrace.NewTracerProvider] itself tell this package of each provider that it
// returns. So it does not matter who calls it, nor how: the program, a library, a plugin's
// host, or a function value.
//
// Where neither is wanted, [Options] gives a TracerProvider the same in one expression, such as
// in otelconf.WithTracerProviderOptions.
//
// # What is published
//
// The resource is that of the provider itself, with all that the SDK adds to it, while
// NewTracerProvider returns. By [Options] it is published with the first span that is
// recorded: a span processor learns the resource from a span, and not before.
//
// If there are several providers the first one's resource is published. A different one is
// reported to [otel.Handle], once in the process. When the first provider is shut down the
// next one's resource follows, and after the last provider nothing is published.
//
// Spans are published as spanctx.WithPublishing does without options. Environment variables
// choose what is published, of which there is a [table].
//
// # Beside otelctx in the program
//
// What the program publishes by itself stays. A provider with a SpanProcessor of spanctx gets
// no second one, and a resource that the program has published is not replaced. If the
// program's first provider has no options of otelctx, what is added to it comes first. Later
// options that ask for something else have no effect, which is reported.
//
// # Why not by a blank import alone
//
// The SDK has no registry for span processors, and no hook in NewTracerProvider. An import
// could poll the global provider. That misses the first spans, and every provider that is
// not global. Or it could take over the SDK's logger, which is the program's.
//
// [table]: https://github.com/otelctx/otelctx/blob/main/docs/no-code.md#environment-variables
package instrumentation
