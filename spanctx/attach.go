// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"net"
	"runtime/pprof"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/wire"
)

// Attachment restores what the goroutine published before [Attach]: see [Attachment.Detach].
type Attachment struct {
	p *path
	// self identifies the goroutine that called Attach. before is its position before that call,
	// and record is its record for that position.
	self   goruntime.Self
	before wire.Position
	record *gorecord.Record
}

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
// [WithAttributeKeys], even if the goroutine is already in that span. So Attach can publish
// attributes that were added to the context after Start. With [WithSpanNames], Attach also
// publishes the span's current name, which SetName may have changed.
//
// If the span ends before Detach, the goroutine moves to the span's nearest live ancestor. Attach
// does nothing if no SpanProcessor is active.
func Attach(ctx context.Context) Attachment {
	p := active.Load()
	if p == nil {
		return Attachment{}
	}
	var g goroutine
	p.locateLive(&g)
	a := Attachment{p: p, self: g.Self, before: g.position, record: g.record}
	ref := p.find(ctx)
	p.rename(ctx, ref)
	attributes := p.keys.Load().Of(ctx)
	g.position, g.record = wire.AttachedTo(ref), nil
	if base := p.data.record(ref); base != nil {
		g.record = p.variant(base, attributes, g.user, nil)
	}
	p.publish(&g, attributes.Encoded(), 0)
	return a
}

// find returns the live span whose ids are those of the span in ctx, or 0 if there is none or the span
// in ctx is remote.
func (p *path) find(ctx context.Context) cells.Ref {
	if k, ok := sdkspan.Local(ctx); ok {
		return p.cells.Find(k)
	}
	return 0
}

// rename publishes the current name of the span of ctx in its cell, ref.
func (p *path) rename(ctx context.Context, ref cells.Ref) {
	if p.names == nil {
		return
	}
	if _, name, ok := parentAndName(sdkspan.FromContext(ctx)); ok {
		p.cells.Rename(ref, p.names.Number(name))
	}
}

// Detach publishes the span that the goroutine was in before [Attach] or, if that span has ended,
// its nearest live ancestor. Call it on the goroutine that called Attach, and detach nested
// attachments in reverse order. On another goroutine, on the zero Attachment, or after Shutdown, it
// does nothing.
func (a Attachment) Detach() {
	if a.p == nil || a.p.stopped.Load() {
		return
	}
	var g goroutine
	a.p.locate(&g)
	if g.Goid != a.self.Goid || g.G != a.self.G {
		return
	}
	g.position, g.record = a.before, a.record
	if g.position != 0 && !a.p.cells.Live(g.position.Ref()) {
		a.p.moveToNearest(&g)
	}
	a.p.publish(&g, a.p.attributes(&g), 0)
}

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
	refresh(ctx, true) // Publish first: an inherited span is known only from the labels, which pprof.Do replaces.
	defer refresh(ctx, true)
	pprof.Do(ctx, labels, func(ctx context.Context) {
		refresh(ctx, true)
		fn(ctx)
	})
}

// DialContext wraps a dial function for clients such as http.Transport, which start goroutines to
// dial and then use them to serve other requests on the same connection. The wrapper takes such a
// goroutine out of the span that it inherited from the first request. A goroutine that has started
// or attached a span itself returns to that span when dial returns.
func DialContext(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if p := active.Load(); p != nil {
			self := p.runtime.Goroutine()
			_, own := p.goroutines.Load(self.Goid, uintptr(self.G))
			if a := Attach(context.Background()); own || self.Goid != 0 && p.cells.IsOf(a.before.Ref(), self.Goid) { //nolint:contextcheck // attaches no span
				defer a.Detach()
			}
		}
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
func Refresh(ctx context.Context) { refresh(ctx, false) }

// refresh implements Refresh. If anySpan is true, it publishes the goroutine's span even if ctx has
// a different one.
func refresh(ctx context.Context, anySpan bool) {
	p := active.Load()
	if p == nil || p.stopped.Load() {
		return
	}
	var g goroutine
	p.locateLive(&g)
	// The goroutine's span is unknown if the goroutine has published nothing yet, or if the span it
	// published last has ended without a live ancestor.
	if (g.unknown || g.position == 0 && g.published != 0) && !anySpan {
		g.position = wire.Position(p.find(ctx))
	}
	if g.position == 0 || !anySpan && g.position.Ref() != p.find(ctx) {
		return
	}
	if !anySpan {
		p.rename(ctx, g.position.Ref())
	}
	attributes := p.attributes(&g)
	if attributes == nil && g.record == nil && g.position.Ref() == p.find(ctx) {
		attributes = p.keys.Load().Of(ctx).Encoded() // the attributes set by Attach are unknown
	}
	p.publish(&g, attributes, 0)
}
