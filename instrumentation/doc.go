// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package instrumentation publishes the resource and the active spans of a service without changes
// to its source code. It has rules for two tools that instrument at compile time: OpenTelemetry's
// otelc (otelctx.otelc.yml) and Datadog's Orchestrion (orchestrion.yml). The rules change
// [sdktrace.NewTracerProvider] itself, so that it passes every new provider to this package. It
// does not matter who calls it: the program, a library, the host of a plugin, or code that holds it
// in a function value.
//
// Without these tools, [Options] does the same for one TracerProvider in one expression, for example
// in otelconf.WithTracerProviderOptions.
//
// # What is published
//
// With the rules, the provider's complete resource, including the attributes that the SDK adds, is
// published before NewTracerProvider returns. With [Options], it is published when the first
// recorded span starts, because a span processor can learn the resource only from a span.
//
// If a program has several providers, the resource of the newest one is published, and after its
// shutdown that of the one before. The [rules about providers] say which providers count. With the
// instrumentation rules, a provider counts as soon as it is constructed.
//
// Spans are published as with spanctx.WithPublishing() and its default options. Environment
// variables control what is published; see the [table].
//
// # Programs that use otelctx themselves
//
// If the program publishes a resource or spans itself, its own choices take precedence. A provider
// that already has a spanctx.SpanProcessor does not get a second one, and a resource that the
// program has published is not replaced. But if the program's first provider has no otelctx
// options, the rules add the default ones. If later providers then use other otelctx options, these
// have no effect, and a conflict is reported.
//
// # Why a blank import is not enough
//
// The SDK has no registry for span processors, and no hook in NewTracerProvider. A blank-imported
// package could poll the global provider, but would miss the first spans and every provider that is
// not global. It could also replace the SDK's logger, but the logger belongs to the program.
//
// [rules about providers]: https://github.com/otelctx/otelctx/blob/main/docs/design/0013-providers.md
// [table]: https://github.com/otelctx/otelctx/blob/main/docs/no-code.md#environment-variables
package instrumentation
