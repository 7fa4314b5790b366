// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourcepublisher publishes a service's OpenTelemetry resource for profilers and other
// external readers. It uses the process context of [OTEP 4719], a small named mapping in the
// service's own memory. Readers need no help from the service: they can read the resource while it
// is idle, blocked or deadlocked.
//
// One option turns it on:
//
//	tp := sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		sdktrace.WithBatcher(exporter),
//	)
//
// [New] gives more control over errors, updates and withdrawal.
//
// # What is published
//
// The package publishes all attributes of the resource that the filter keeps (see
// [WithAttributeFilter]), whatever their type. A resource without attributes is published, too.
// [SetAttributes] adds attributes that are not part of the resource. The format has no field for
// the schema URL; if it is not empty, it is published in the attribute otelctx.resource.schema_url,
// outside of the resource. The encoded context has at most 65,536 bytes, and its strings
// are valid UTF-8: [New] describes how attributes are changed or left out to ensure that.
//
// # One context per process
//
// A process has at most one process context (OTEP 4719 treats it as a singleton), whichever library
// publishes it. A forked child process has no context until it publishes its own.
//
// Package spanctx tells readers where to find spans, in attributes whose keys begin with
// "threadlocal.". These attributes do not need a process context: while this package publishes
// none, they are in a separate mapping, OTELCTX_THREADLOCAL, which has the format of a process
// context without a resource. Readers find spans there even if another library, such as
// dd-trace-go, publishes the process context, whichever library starts first.
//
// If another library publishes a context after this package did, readers find two contexts and
// trust neither, but they still find the spans. To avoid this, start that library first, or do not
// use this package: spanctx works without it.
//
// # Several providers
//
// A process may have several TracerProviders, at the same time or one after the other. The resource of
// the newest one is published and, when that is shut down or garbage collected, the next newest one's. A
// provider is as old as the call of [WithResource] or [New] that it was set up with. It belongs to the
// call if it has the same resource, which package spanctx or the registered Publisher sees. A call counts
// as a provider until its own Shutdown or a later such call.
//
// Everything in this package may be called concurrently.
//
// # Turning it off
//
// If the environment variable OTELCTX_PROCESS_CONTEXT_DISABLED is true, no resource is published.
// The option [WithEnabled] overrides the variable. A separate variable controls spans, see package
// spanctx.
//
// # Platforms
//
// The package works on Linux only. On other platforms [New] returns an error that wraps
// [errors.ErrUnsupported]. [WithResource] reports that error, and otherwise behaves like the SDK's
// option.
//
// [OTEP 4719]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
package resourcepublisher
