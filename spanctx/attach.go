// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"net"
	"runtime/pprof"

	"github.com/otelctx/otelctx/internal/spanpath"
)

// Attachment restores what the goroutine published before [Attach]: see [Attachment.Detach].
type Attachment struct{ a spanpath.Attachment }

// Attach publishes the span of ctx for the calling goroutine until [Attachment.Detach]. Use it on
// goroutines that work for a span started by another goroutine, such as the workers of a pool:
//
//	defer spanctx.Attach(ctx).Detach()
//
// The span must be live and have been started in this process; otherwise Attach publishes no span.
// ctx may contain the span itself or only its ids, as after trace.ContextWithSpanContext or a no-op
// tracer, but not as a remote span.
//
// Attach([context.Background]()) takes a goroutine out of an inherited span that it does not work
// for.
//
// With the span, Attach publishes the context-scoped attributes of ctx for the keys chosen by
// [WithAttributeKeys], even if the goroutine is already in that span. It can thus publish
// attributes that were added to the context after Start. With [WithSpanNames], Attach also
// publishes the span's current name, which SetName may have changed.
//
// If the span ends before Detach, the goroutine moves to the span's nearest live ancestor. Attach
// does nothing if no SpanProcessor is active.
func Attach(ctx context.Context) Attachment { return Attachment{spanpath.Attach(ctx)} }

// Detach publishes the span that the goroutine was in before [Attach] or, if that span has ended,
// its nearest live ancestor. Call it on the goroutine that called Attach, and detach nested
// attachments in reverse order. On another goroutine, on the zero Attachment, or after Shutdown, it
// does nothing.
func (a Attachment) Detach() { a.a.Detach() }

// Go starts a goroutine that runs fn(ctx), attached to ctx (see [Attach]) until fn returns. For
// work that outlives the current span, pass a context without a span. The goroutine is then in no
// span.
func Go(ctx context.Context, fn func(context.Context)) {
	go func() {
		defer Attach(ctx).Detach()
		fn(ctx)
	}()
}

// Do is [pprof.Do] for a goroutine that is in a span. pprof.Do replaces all labels, including those
// of the span. Do adds the span's labels again, so that label readers still see the span, and
// goroutines that fn starts inherit it.
func Do(ctx context.Context, labels pprof.LabelSet, fn func(context.Context)) {
	spanpath.Refresh(ctx, true) // Publish first: an inherited span is known only from the labels, which pprof.Do replaces.
	defer spanpath.Refresh(ctx, true)
	pprof.Do(ctx, labels, func(ctx context.Context) {
		spanpath.Refresh(ctx, true)
		fn(ctx)
	})
}

// DialContext wraps a dial function for clients such as http.Transport, which start goroutines to
// dial and then use them to serve other requests on the same connection. The wrapper takes such a
// goroutine out of the span that it inherited from the first request. A goroutine that has started
// or attached a span itself returns to that span when dial returns.
func DialContext(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		defer spanpath.LeaveInherited().Detach() //nolint:contextcheck // it takes none
		return dial(ctx, network, address)
	}
}

// Refresh publishes the span of ctx again, provided that the calling goroutine is in that span. It
// updates the slot of the current thread and the goroutine's labels. Call it
//
//   - after a call that blocked: Go may have moved the goroutine to another thread, whose slot does
//     not name the span until a span starts or ends there;
//   - after pprof.SetGoroutineLabels, which replaces all labels. If the goroutine had inherited its
//     span, nothing else records it, so Refresh publishes the span of ctx;
//   - after another goroutine ended the goroutine's span, if the span of ctx is not an ancestor of
//     that span, for example because that span is a root. The goroutine is then in no span, and
//     Refresh publishes the span of ctx.
//
// Refresh keeps the attributes that are published with the span. If they are unknown, it publishes
// those of ctx. With [WithSpanNames], it also publishes the span's current name, which SetName may
// have changed.
func Refresh(ctx context.Context) { spanpath.Refresh(ctx, false) }
