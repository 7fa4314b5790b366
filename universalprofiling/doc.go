// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package universalprofiling is the service's side of Elastic's [Universal Profiling
// integration]. A profiler that knows it, such as the OpenTelemetry eBPF profiler, links
// its samples to the spans in which they were taken. It also tells the service which
// stack traces those were, and the service exports them with its transactions:
//
//	tp := sdktrace.NewTracerProvider(
//		sdktrace.WithResource(res),
//		universalprofiling.WithIntegration(universalprofiling.WithResource(res)),
//		sdktrace.WithBatcher(universalprofiling.NewExporter(exporter)),
//	)
//
// It takes neither cgo nor a shared library that is shipped. It knows nothing of the
// carriers of package spanctx; a service may use one of the two packages, or both.
//
// # What a profiler sees
//
// A span is shown on the thread of the goroutine that started it, from the end of its
// start on. With it is shown its transaction, which is the local root span: the one that
// has no parent in this process. A span whose parent is over has the parent's transaction,
// or none if the parent does not tell; profilers pass over samples without one.
//
// At the end of a span the goroutine that has started it leaves it, with all spans that it
// has started inside. It goes back to the nearest live span around it. After its end a
// span is not shown on any thread, on whichever goroutine End was called. If that was
// another one, the goroutine goes back when it starts or ends its next span.
//
// The format has no place for goroutines. Go moves them between threads when they block, and
// runs others on the thread meanwhile. Until a span starts or ends there, that thread shows
// the span of the goroutine that was there before. A goroutine that is locked to its thread
// is exact. [Refresh], behind calls that block, [Attach], on goroutines that work for other
// goroutines' spans, and [NewSampler], for spans that are not sampled, make it better.
// Package spanctx has carriers that are exact always, for readers that know them.
//
// # What the profiler says
//
// A profiler sends messages to a socket whose path it has read. A registration tells
// how long its samples take, and the host.id that it reports with: spans are exported
// with that if their resource has none. A correlation names a stack trace of a
// transaction and how often it was seen. The ids of all of them become the attribute
// elastic.profiler_stack_trace_ids of the transaction.
//
// For these to arrive in time, sampled transactions are exported only when a delay has
// passed since their end. The delay is that of the registration, or one second. Nothing else
// is delayed. They wait in a queue of fixed size; what finds it full is exported at once.
// ForceFlush and Shutdown export what waits. Whatever the profiler has sent before one of
// these is exported with the transaction. In what order exporters, the integration and other
// span processors are made and registered does not matter.
//
// # Configuration
//
//   - ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED: true, false or auto, the
//     default; [WithEnabled] overrides it. With auto, spans are shown and the socket is
//     open, but nothing is correlated or deferred before a registration has come. The
//     OpenTelemetry eBPF profiler does not send any so far: say true for it.
//   - ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR: the directory of the
//     socket; [WithSocketDir] overrides it. The default is the first of XDG_RUNTIME_DIR
//     and [os.TempDir] that serves. The profiler has to see it in the file system of
//     the process, which it does in containers too. The socket's path may have 107
//     bytes, and a profiler that sends to /proc/PID/root and the path needs some 18
//     of them.
//   - ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE: how many transactions
//     wait at most, 8096 by default, up to 1,048,576; [WithBufferSize] overrides it.
//
// What is neither is reported to [otel.Handle], and the default is taken.
//
// # Losses
//
// The kernel keeps net.unix.max_dgram_qlen messages, 10 by default, for a socket that is
// not read at once. What a profiler sends beyond that is lost at its end, and cannot be
// counted at this one. On hosts whose profiler sends in large bursts a higher limit
// helps; it holds for sockets made afterwards:
//
//	sysctl -w net.unix.max_dgram_qlen=512
//
// What arrives and is of no use is counted, see [Active] and [Integration.Stats].
//
// # Limits
//
//   - A profiler may have transactions wait for 30 seconds at most, or what [WithMaxDelay] says.
//   - A transaction has at most 65,536 samples, and all that wait have 1,048,576, and 64 more
//     each. Messages beyond that are dropped: then the counts of stack traces are not
//     preserved.
//   - 65,536 spans may be live. Of more, the oldest are not shown, and have no stack traces.
//   - Service names and environments are cut at 128 bytes. A host.id may have 1,024; the
//     registration is malformed otherwise.
//
// What is lost by a limit is counted or reported. Sockets that killed processes of the same
// user have left in the directory are removed when an integration starts.
//
// # Where it works
//
// On linux/amd64, with and without cgo, and on linux/arm64 with cgo: without it there is
// no thread-local memory for the format to use. Nothing is taken for granted. The Go
// runtime's structures are verified when the integration starts and on each thread.
// Where they are not what is expected, the reason is reported and nothing is shown. Some
// file system has to allow code to be mapped from it, for the moment of the start. The
// first one serves of the socket's directory, XDG_RUNTIME_DIR, os.TempDir and /dev/shm.
//
// Everything in this package may be called concurrently.
//
// [Universal Profiling integration]: https://github.com/elastic/apm/blob/main/specs/agents/universal-profiling-integration.md
package universalprofiling
