// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package universalprofiling implements the service side of Elastic's
// [Universal Profiling integration]. A profiler that supports it, such as the OpenTelemetry eBPF
// profiler, links its samples to the spans in which they were taken. It also sends the ids of their
// stack traces to the service, which exports them with its transactions:
//
//	tp := sdktrace.NewTracerProvider(
//		sdktrace.WithResource(res),
//		universalprofiling.WithIntegration(universalprofiling.WithResource(res)),
//		sdktrace.WithBatcher(universalprofiling.NewExporter(exporter)),
//	)
//
// The package needs neither cgo nor a shared library next to the program (except on arm64, see
// below). It is independent of package spanctx: a service may use either package, or both.
//
// # What a profiler sees
//
// Start publishes a span on the current thread, together with the span's transaction: the local root, the
// outermost span of the trace in this process. If the transaction is unknown, profilers ignore the span's
// samples. Which span a goroutine is in is decided by the same rules as in package spanctx. An ended span
// is not published on any thread, regardless of which goroutine called End.
//
// The format has no notion of goroutines. When a goroutine blocks, Go runs others on its thread, which
// still publishes the goroutine's span until a span starts or ends there. Only goroutines that are locked
// to their thread are always attributed correctly. Three functions reduce the error: spanctx.Refresh,
// after calls that block; spanctx.Attach, on goroutines that work for a span of another goroutine; and
// [NewSampler], for spans that are not sampled. For readers that support them, package spanctx has carriers
// that are always exact.
//
// # Messages from the profiler
//
// A profiler reads the path of a socket from the process, and sends messages to it. A registration
// contains the delay of the profiler's samples and its host.id, which is added to exported spans
// whose resource has none. A correlation contains the id of a transaction, the id of a stack trace,
// and the number of samples with that stack trace. The transaction is exported with all its stack
// trace ids in the attribute elastic.profiler_stack_trace_ids.
//
// To give these messages time to arrive, the export of sampled transactions is delayed, by the
// delay in the registration or one second. Other spans are not delayed. Transactions wait in a
// queue of fixed size; if it is full, a transaction is exported at once. ForceFlush and Shutdown
// export all waiting transactions, with the stack traces that the profiler has sent by then.
// Exporters, the integration and other span processors may be created and registered in any order.
//
// # Configuration
//
//   - ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED: true, false or auto. The default is
//     auto; [WithMode] overrides it. With auto, spans are published and the socket is open, but
//     nothing is correlated or delayed until a registration arrives. The OpenTelemetry eBPF
//     profiler does not send registrations yet: use true with it.
//   - ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR: the directory of the socket;
//     [WithSocketDir] overrides it. The default is XDG_RUNTIME_DIR or, if that cannot be used,
//     [os.TempDir]. The profiler must be able to access it through the file system of the process,
//     which also works in containers. The socket's path may be up to 107 bytes long; a profiler
//     that prefixes it with /proc/PID/root needs about 18 of them.
//   - ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE: the maximum number of waiting
//     transactions, 8096 by default, up to 1,048,576; [WithBufferSize] overrides it.
//
// Invalid values are reported to [otel.Handle], and the default is used.
//
// # Limits
//
// Delays, queues, samples and live spans are bounded, and what exceeds a bound is counted ([Integration.Stats])
// or reported: see [Export and limits]. Goroutines whose ids are equal modulo 65,536 clear each other's
// spans, which is not counted. When an integration starts, it removes sockets that killed processes of the
// same user have left in the directory.
//
// # Several providers
//
// A process may have several TracerProviders, at the same time or one after the other. Their spans are
// published together, with the settings of the first one, as long as one of them is neither shut down nor
// garbage collected. A later one with different settings is reported. The resource of the newest one is in
// the process storage: see [WithResource]. A call of [WithIntegration], [ForProvider] or [New] counts as a
// provider until its own Shutdown or a later such call.
//
// # Where it works
//
// The package works on linux/amd64, with and without cgo, and on linux/arm64 with cgo: without cgo
// there is no thread-local memory that the format could use. The Go runtime's structures are
// verified when the integration starts and on each thread. If they differ from what the package
// expects, the reason is reported and nothing is published. When the integration starts, it briefly
// needs a file system from which code can be mapped. It uses the first suitable one of the socket's
// directory, XDG_RUNTIME_DIR, os.TempDir, /dev/shm and /var/tmp.
//
// Everything in this package may be called concurrently.
//
// [Export and limits]: https://github.com/otelctx/otelctx/blob/main/docs/universal-profiling.md#export-and-limits
// [Universal Profiling integration]: https://github.com/elastic/apm/blob/main/specs/agents/universal-profiling-integration.md
package universalprofiling
