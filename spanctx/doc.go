// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spanctx publishes the active span for external profilers: which span the
// code that they interrupt belongs to, exact while Go moves goroutines between
// threads. It is a span processor; one option enables it:
//
//	tp := sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		spanctx.WithPublishing(),
//		sdktrace.WithBatcher(exporter),
//	)
//
// # Carriers
//
// A span is shown in up to three ways, which readers choose from:
//
//   - The goroutine record, behind the goroutine's profiler labels (on by default):
//     exact, inherited by goroutines that are started inside the span, and seen as
//     ordinary labels trace_id and span_id by runtime/pprof and every profiler that
//     reads Go's labels. See [OTEP 4947].
//   - Thread slots (on by default), a ring indexed by thread id, see package ringbuf:
//     for readers that know nothing of goroutines. Go moves goroutines between
//     threads whenever they block; a slot says which goroutine it is about, so that a
//     reader can tell when it no longer holds.
//   - Goroutine slots (off by default), a ring indexed by goroutine id: exact, but not
//     inherited.
//
// What is shown where is advertised in the process context by attributes that begin
// with threadlocal., as soon as package resourcepublisher publishes one.
//
// A process has at most one SpanProcessor at a time. Everything in this package may be
// called concurrently, on any goroutine; only Detach is bound to one.
//
// # What a span's life looks like
//
// From the end of its start on, a span is shown on the goroutine that started it. A
// span that is started while another is shown on that goroutine, and as its child,
// covers it; at its end the parent is shown again. After the end of a span, on
// whichever goroutine that is called, no reader ever sees it. Where that is in doubt
// nothing is shown: missing is better than wrong.
//
// A goroutine that works for a span that another one has started, and did not inherit
// it, shows it by [Attach] or [Go]. A remote parent is never shown; it is not active
// in this process.
//
// # Attributes
//
// [WithAttributeKeys] publishes, with each span, chosen ones of the context-scoped
// attributes (package scopedattr, OTEP 4931) of the context that it is started with: in
// the goroutine record, as profiler labels, and in slots, encoded as OTEP 4947 has it.
// They are encoded once for each context that has added some. A context that has got
// others since is published by [Attach], without a span of its own; after Detach, and
// where a goroutine goes back to the parent of a span, they are what they were before.
//
// # Unsampled spans
//
// A span processor is called for recording spans only. By default those are the
// sampled ones, and work below unsampled spans is shown as below none. See
// [RecordUnsampled].
//
// # Limits
//
// The table that ends are looked up in has room for at least 67,584 spans, in buckets of 8: from
// about 30,000 live spans on some are shown no more, the oldest of a full bucket. An
// [Attach] or the end of a child that runs while another goroutine ends the span to be
// shown may show that until it returns. pprof.Do and pprof.SetGoroutineLabels replace
// all labels of the goroutine, the record's included: until their end, and after
// pprof.Do until the next span starts or ends, the record is not there, while the
// slots still are.
//
// Readers that look at labels alone, as runtime/pprof does, find those of a span that is
// over on goroutines that have inherited them, and where another goroutine has ended it,
// until a span starts or ends there. The record itself is taken back at once.
//
// Go runs callbacks of C threads on goroutines that it uses again, labels included: a
// span that a callback leaves open is shown on its thread until it ends, and on another
// one that gets the goroutine later.
//
// A span that is attached with 64 different sets of attributes or labels of goroutines
// has no record for more: with those, only slots show it. Without the goroutine record it
// is not known what a goroutine that was attached with other attributes than the span's
// own showed before: slots show the span without attributes when the goroutine goes back
// to it from a child, or from an Attach within the Attach.
//
// # Platforms
//
// Linux on amd64 and arm64. Elsewhere [NewSpanProcessor] returns an error that wraps
// [errors.ErrUnsupported], [WithPublishing] reports it, and [Attach], [Go] and [Refresh]
// show nothing.
//
// [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
package spanctx
