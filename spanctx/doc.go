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
// docs/where-your-samples-go.md shows, pattern by pattern, what profilers see and how to change it.
// docs/design/0001-span-path.md says how it works.
//
// The package does not know whether a profiler is reading: it always publishes the same.
//
// # Carriers
//
// A carrier is a place where the span of a goroutine is published. There are three. The table is always
// on; [WithLabels] and [WithThreadSlots] can turn the other two off:
//
//   - The goroutine record is stored next to the goroutine's profiler labels, so goroutines that
//     are started inside the span inherit it. Label readers, such as runtime/pprof, see the
//     ordinary labels trace_id and span_id. The record usually costs one allocation per span, and
//     more if it is combined with user labels or many attributes. See [OTEP 4947].
//   - The goroutine table has an entry for each goroutine, which names its span. The entry stays
//     correct when the user sets other labels, as in pprof.Do. Goroutines do not inherit it. If
//     the ids of two goroutines are equal modulo 65,536, they share an entry, which belongs to the
//     one that published last.
//   - Thread slots are an array indexed by thread id, for readers that know nothing about
//     goroutines. Go moves goroutines between threads when they block. A slot names its goroutine,
//     so a reader that knows Go can tell when the slot is out of date.
//
// Each live span has a cell in the span table, which tells readers whether the span has ended.
// Slots, entries and records refer to that cell. Attributes with the prefix "threadlocal."
// advertise the addresses and layouts of the carriers and the span table: in the process context if
// package resourcepublisher publishes one, otherwise in a separate mapping. Readers find spans even
// if another library, such as dd-trace-go, publishes the process context, or if no library does.
//
// Everything in this package may be called concurrently, on any goroutine, except that Detach must
// run on the goroutine that called Attach.
//
// # Which span a goroutine is in
//
//  1. A goroutine is in a span from the span's Start on it, from [Attach], or (with goroutine
//     records only) because it was started by a goroutine that was in the span.
//  2. It leaves the span when the span ends, no matter which goroutine calls End, and at Detach.
//     When a goroutine ends a span, it also leaves those descendants of that span (by context) that
//     it has started and not ended. For example, if a job leaves the span of a stream open, that
//     span is not published after the job's span has ended. The goroutine does not leave an
//     overlapping sibling.
//  3. A goroutine that ends a span which it started returns to the span that it was in before or,
//     if that has ended, to the nearest live ancestor of that span. In all other cases (another
//     goroutine ended the span, or this goroutine had inherited or attached it), the goroutine
//     moves to the nearest live ancestor of the ended span: the parent, grandparent or
//     great-grandparent by the context that the span was started with. If none is live, the
//     goroutine is in no span. A goroutine that started the span while it was in none of those
//     ancestors, such as a dispatcher, is also in no span.
//  4. [Attach] publishes the live, local span that its context names, by value or by ids that are
//     not remote, with the attributes of the context. If there is none, it publishes no span. Rule 3
//     applies if the span ends before Detach. Detach publishes the previous span again, if that is
//     still live.
//  5. A span that has ended is never published. Slots and records that name it become invalid at
//     once, and its labels are withdrawn: see [Labels].
//  6. A remote parent is never published, since it is not active in this process. The SDK does not
//     call processors for unsampled spans: inside one, the enclosing span stays published, unless
//     [PublishAll] or [RecordUnsampled] is used.
//  7. If the span cannot be determined, none is published: a missing span is better than a wrong
//     one.
//
// Readers of the span table apply rule 3 themselves. Label readers cannot: if a goroutine's span is
// ended by another goroutine, they see no span on the first goroutine until it starts or ends a
// span or calls [Attach] or [Refresh].
//
// # Work that moves
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
// # Attributes
//
// [WithAttributeKeys] publishes the context-scoped attributes (package scopedattr, OTEP 4931) in
// the context passed to Start with each span, for the chosen keys. They are stored in the goroutine
// record and in slots, encoded as in OTEP 4947, and are also profiler labels. The attributes of a
// context are encoded only once. To publish attributes that were added later, call [Attach] with
// the new context. Detach, and the end of a child span, restore the attributes that were published
// before.
//
// # Names
//
// Each span is published with its name, and with the name of its local root as its endpoint. They
// are also the profiler labels span_name and endpoint. Each name is stored once, and cells and
// goroutine records contain its number. [WithSpanNames] turns names off. docs/design/0002-names.md
// says how it works.
//
// # Unsampled spans
//
// The SDK calls span processors for recording spans only, by default the sampled ones. Inside an
// unsampled span the goroutine stays in the enclosing span, or in none. [PublishAll] publishes
// unsampled spans, too; docs/design/0014-unsampled-spans.md says how. [RecordUnsampled] does the same
// at a higher cost, for programs that cannot use another TracerProvider than the SDK's.
//
// # Labels
//
// eBPF profilers read a goroutine's labels at the moment of a sample. Package runtime/pprof stores
// the label pointer, and reads the labels when it writes the profile. Labels are therefore
// withdrawn when the span ends, unless the process is taking a CPU profile of itself, or did so
// less than three seconds ago. If a span ends during that time, goroutines that have inherited its
// labels keep them. Programs built with the race detector do not withdraw labels. [WithLabels]
// chooses another policy.
//
// Labels make goroutine profiles larger, because those profiles group goroutines by label.
// [LabelsOff] avoids that: label readers then see no span.
//
// [WithDatadogLabels] also publishes the labels of dd-trace-go, for Datadog's readers.
//
// # Environment variables
//
// Operators can set most options by environment variables OTELCTX_SPAN_*: see the [table]. Options
// in the code override them, except that [WithAttributeKeys] adds to the keys of the environment.
// OTELCTX_SPANS_DISABLED=true makes [WithPublishing] do nothing, unless [WithEnabled] overrides it;
// [New] ignores it. An invalid value is reported to [otel.Handle] once and otherwise
// ignored.
//
// # Several providers
//
// A provider counts from its first published span until it is shut down or garbage collected. Each
// call that asks for something to be published counts as a provider that is about to start: its
// resource and spans are published at once, until its own Shutdown or a later such call. The resource
// of the newest provider is published, and the next newest one's when that is shut down; a provider is
// as old as the call that it was set up with. Spans are published as long as there is a provider, and
// again when a provider that is alive starts a span.
//
// For this package, the calls are [WithPublishing], [PublishAll], [ForProvider] and [New]. While
// providers overlap, their spans are published together, with the options of the first one. Their
// attribute keys are combined. Other options that differ have no effect, which is reported.
//
// # Limits
//
// The span table has room for 65,536 live spans. When it is full, a new span evicts an old one,
// which is then no longer published. From about 30,000 live spans on, a few spans are evicted
// earlier. Spans whose starting goroutine is still in them are evicted last. A span that never ends
// occupies its cell, and its record or attributes stay in memory, until it is evicted.
//
// A span refers to its three nearest ancestors. If all three end before the span does, no span is
// published after it.
//
// pprof.Do and pprof.SetGoroutineLabels replace all labels of the goroutine, including the record.
// Until the next span starts or ends on that goroutine, label readers miss the span, and so do
// goroutines started meanwhile. The goroutine table still names it, unless the goroutine has only
// inherited the span: then its span is unknown. [Do] keeps the span in both cases, and [Refresh]
// publishes it again.
//
// Readers that know only thread ids see the span of the goroutine that last published one on the
// thread, until that span ends. With [WithDatadogLayout], slots cannot refer to a cell, so a slot
// names the span until another span starts or any span ends on that thread.
//
// Go reuses the goroutines on which it runs callbacks from C threads, together with their labels. A
// span that a callback leaves open stays published on its thread until it ends, and also on any
// other thread that later gets the goroutine.
//
// A span has at most 64 records, one for each set of attributes and user labels. A further record
// invalidates the oldest one. On goroutines that still have that record, only readers of the span
// table find the span. If goroutine records are off, the attributes set by Attach are not
// remembered: a goroutine that returns to an attached span publishes the attributes that the span
// was started with.
//
// # Platforms
//
// Linux on amd64 and arm64. Elsewhere [New] returns an error that wraps
// [errors.ErrUnsupported], [WithPublishing] reports it, and the other functions publish nothing.
// [Go], [Do] and [DialContext] still call the function passed to them.
//
// [table]: https://github.com/otelctx/otelctx/blob/main/docs/no-code.md#environment-variables
// [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
package spanctx
