// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourcepublisher publishes a service's OpenTelemetry resource where
// profilers and other external readers find it. That is the process context of [OTEP
// 4719], a small named mapping in the service's own memory. Readers need no help from
// the service; they see the resource also while it is idle, blocked or deadlocked.
//
// One option does it:
//
//	tp := sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		sdktrace.WithBatcher(exporter),
//	)
//
// [NewPublisher] gives more control: over errors, updates and the time the context
// is withdrawn.
//
// # What is published
//
// All attributes of the resource that the filter keeps (see
// [WithAttributeFilter]), of every type the attribute package has; a resource
// without any is published empty. What the resource does not hold can be added by
// [SetAttributes]. The schema URL, which the format has no field for, is published
// as the attribute otelctx.resource.schema_url beside the resource if it is not
// empty. The whole is at most [MaxPayloadSize] bytes, and its strings are UTF-8.
//
// # One context per process
//
// A process has at most one process context (OTEP 4719 treats it as a singleton),
// whoever publishes it. The first publisher stays until its Shutdown; what happens
// to a second one is said at [NewPublisher] and [WithResource]. Forked children have
// none before they publish their own.
//
// Attributes that begin with "threadlocal.", by which package spanctx says where spans are,
// are published in any case. While the process has no context of this package, they are in
// a mapping of their own, OTELCTX_THREADLOCAL. It has the format of a process context
// without a resource. So it does not matter whether another library, such as dd-trace-go,
// publishes the process context, and whether it does so earlier or later.
//
// If another library publishes a context although there is one of this package, readers
// find two and believe neither; the spans are still found. Have that library start first,
// or do without this package: spanctx needs neither.
//
// Everything in this package may be called concurrently. It knows nothing of spans: what
// package spanctx advertises are attributes like others.
//
// # Turning it off
//
// With the environment variable OTELCTX_PROCESS_CONTEXT_DISABLED=true (default:
// false) no resource is published. The option [WithEnabled] overrides it. Spans have a
// variable of their own, see package spanctx.
//
// # Platforms
//
// Linux only. Elsewhere [NewPublisher] returns an error that wraps
// [errors.ErrUnsupported], and [WithResource] reports it and otherwise does what
// the SDK's does.
//
// [OTEP 4719]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
package resourcepublisher
