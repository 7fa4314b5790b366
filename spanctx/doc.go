// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spanctx publishes the active span for external profilers: which span the
// interrupted code belongs to, exact while Go moves goroutines between threads. It is a span
// processor; one option enables it:
//
//	tp := sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		spanctx.WithPublishing(),
//		sdktrace.WithBatcher(exporter),
//	)
//
// docs/where-your-samples-go.md shows, pattern by pattern, what profilers see and how to
// change it. docs/design/0001-span-path.md says how it works.
//
// The package does not know who reads: it writes the same whether there is a profiler or
// not.
//
// # Carriers
//
// A carrier is one way to show a span. All three are on by default:
//
//   - The goroutine record stands behind the goroutine's profiler labels. Goroutines that
//     are started inside the span inherit it. Readers of labels, such as runtime/pprof, see
//     the ordinary labels trace_id and span_id. It costs one allocation a span. See
//     [OTEP 4947].
//   - The goroutine table has an entry for each goroutine, which names its span. It is right
//     under the user's own labels too, as inside of pprof.Do. Goroutines do not inherit it.
//   - Thread slots are a ring indexed by thread id, for readers that know nothing of
//     goroutines. Go moves goroutines between threads when they block. A slot names its
//     goroutine, so a reader that knows Go can tell when the slot is out of date.
//
// Slots, entries and records name a cell of the span table, which tells whether the span
// has ended. Attributes that begin with threadlocal. advertise the ring, the tables and offsets: in the
// process context if package resourcepublisher publishes one, and else in a mapping of their
// own. So spans are found also beside the process context of another library, such as
// dd-trace-go, and without any. They are there from the start, since a process does not
// notice that another library publishes.
//
// A process has at most one SpanProcessor at a time. Everything in this package may be
// called concurrently, on any goroutine; only Detach is bound to one.
//
// # Which span a goroutine is in
//
//  1. A goroutine is in a span from the span's Start on it, from [Attach], or because it was
//     started by a goroutine that was in the span.
//  2. It leaves the span when the span ends, on whichever goroutine End runs, and at Detach. When a
//     goroutine ends a span, it also leaves the span's descendants, by context, that it started and
//     has not ended: a stream left open does not outlive its job. A sibling that overlaps stays.
//  3. A goroutine that ends a span which it started goes back to what it was in before that Start,
//     or if that has ended to its nearest live ancestor. In every other case, when another goroutine
//     ended the span, or this one had inherited or attached it, a goroutine that was in the span
//     goes to the nearest live ancestor by the context that the span was started with: parent,
//     grandparent or great-grandparent. Without one it is in nothing. So is a goroutine that started
//     the span without being in any of those ancestors, such as a dispatcher.
//  4. [Attach] publishes exactly what its context says: the live, recording, local span of ctx and
//     its attributes, or nothing. Rule 3 applies if the span ends before Detach. Detach restores what
//     was there before, if it is still live.
//  5. A span that has ended is never shown. Slots and records stop showing it at once, and its
//     labels are withdrawn: see [Labels].
//  6. A remote parent is never shown, since it is not active in this process. Processors do
//     not see unsampled spans: inside one, what is around it is shown.
//  7. Where the span cannot be known, nothing is shown. Missing is better than wrong.
//
// Readers follow rule 3 by themselves, through the span table. Readers of labels cannot: when
// another goroutine has ended a span, they see none until a span starts or ends on the first
// goroutine, or [Attach] or [Refresh] is called there.
//
// # Work that moves
//
//   - A goroutine that works for a span which it neither started nor inherited shows it by
//     defer spanctx.Attach(ctx).Detach().
//   - A worker of a pool or a background loop may have inherited a span which it does not
//     work for. It leaves that span by spanctx.Attach(context.Background()).
//   - [Go] starts a goroutine that is in the span of a context, and in no other one.
//   - [Do] is pprof.Do that keeps the span for readers of labels.
//   - [DialContext] takes connection goroutines, such as those of http.Transport, out of the
//     span of the request that dials.
//   - [Refresh] shows the span again after pprof.SetGoroutineLabels, or after a call that
//     blocked, on the thread that the goroutine is on now.
//
// # Attributes
//
// [WithAttributeKeys] publishes context-scoped attributes (package scopedattr, OTEP 4931)
// with each span: those of the context that the span is started with, for the chosen keys.
// They are in the goroutine record and in slots, encoded as OTEP 4947 has it, and are
// profiler labels. They are encoded once for each context that has added some. [Attach] publishes those of a
// context that has got others since, without a span of its own. After Detach, and where a
// goroutine goes back to the parent of a span, they are what they were before.
//
// # Names
//
// [WithSpanNames] publishes the name of each span with it, and as its endpoint the name of its
// local root. They are the profiler labels span_name and endpoint. Each name is in memory once:
// cells and goroutine records have its number. docs/design/0002-names.md says how it works.
//
// # Unsampled spans
//
// A span processor is called for recording spans only. By default those are the sampled
// ones. Inside an unsampled span the goroutine stays in the span around it, or in none. See
// [RecordUnsampled].
//
// # Labels
//
// eBPF profilers read a goroutine's labels at the moment of a sample. Package runtime/pprof
// keeps the label pointer, and reads the labels when it writes the profile. So labels are withdrawn
// when the span ends, but not while the process takes a CPU profile of itself, nor for three
// seconds after. Spans that end meanwhile keep their labels on goroutines that have
// inherited them. Programs built with the race detector keep them as well. [WithLabels]
// chooses otherwise.
//
// Labels make goroutine profiles larger, because those group goroutines by label.
// [LabelsHidden] avoids that: only readers of the record see the span then.
//
// # Environment variables
//
// Operators can set by environment variables OTELCTX_SPAN_* what options set in the code:
// see the [table]. Options override the variables. OTELCTX_SPANS_DISABLED=true makes
// [WithPublishing] do nothing; [NewSpanProcessor] ignores it. A value that is not valid is
// reported to [otel.Handle] once, and counts as not set.
//
// # Several providers
//
// The first [WithPublishing] makes the SpanProcessor, and later ones share it. Keys of attributes
// are added. Other options that differ have no effect, which is reported to [otel.Handle]. A
// provider without options takes the SpanProcessor as it is. Publishing ends with the Shutdown of
// the last of these providers. A SpanProcessor of [NewSpanProcessor] that is registered with
// several providers ends with the first Shutdown.
//
// # Limits
//
// The span table has room for 65,536 live spans. When it is full, a new span evicts an old
// one, which is no longer shown. From about 30,000 live spans on, a few are evicted earlier.
// A span that its own goroutine still shows is spared where that is possible. Spans that
// never end cost later spans nothing else.
//
// Spans know their three nearest ancestors. If all three end before the span does, nothing is
// shown after it.
//
// pprof.Do and pprof.SetGoroutineLabels replace all labels of the goroutine, the record's
// included. Until the next span starts or ends there, readers of labels and goroutines that
// are started meanwhile miss the span. The goroutine table still shows it, unless the goroutine has
// only inherited the span: then nothing tells any more. [Do] keeps the span in both cases, and
// [Refresh] brings it back.
//
// Readers that know thread ids only see the span of the goroutine that was last shown on
// the thread, until that span ends. Slots of [WithDatadogLayout] cannot name a cell: they show it
// even longer, until a span starts or ends on that thread.
//
// Go runs callbacks of C threads on goroutines that it uses again, labels included. A span
// that a callback leaves open is shown on its thread until it ends, and on another thread
// that gets the goroutine later.
//
// A span has at most 64 records, one for each set of attributes and user's labels. One more retires the oldest: goroutines that still have that one are in no span for
// readers of labels. Without the goroutine record, a goroutine that goes back to a span which it
// attached with other attributes shows the span's own attributes.
//
// # Platforms
//
// Linux on amd64 and arm64. Elsewhere [NewSpanProcessor] returns an error that wraps
// [errors.ErrUnsupported], [WithPublishing] reports it, and the other functions show
// nothing. [Go], [Do] and [DialContext] still call the function that they are given.
//
// [table]: https://github.com/otelctx/otelctx/blob/main/docs/no-code.md#environment-variables
// [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
package spanctx
