// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanpath

import (
	"context"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/wire"
)

// Attachment restores what the goroutine published before [Attach].
type Attachment struct {
	p *Path
	// self identifies the goroutine that called Attach. previous is its active span before that call,
	// and record is its record of that span.
	self     goruntime.Self
	previous wire.ActiveSpan
	record   *gorecord.Record
}

// Attach publishes the span of ctx for the calling goroutine until [Attachment.Detach]. It does nothing
// if there is no path.
func Attach(ctx context.Context) Attachment {
	p := current.Load()
	if p == nil {
		return Attachment{}
	}
	var g goroutine
	p.locateLive(&g)
	a := Attachment{p: p, self: g.Self, previous: g.active, record: g.record}
	ref := p.Find(ctx)
	p.rename(ctx, ref, g.features)
	attributes := g.features.Keys.Of(ctx)
	g.active, g.record = wire.AttachedTo(ref), nil
	if base := p.record(ref); base != nil && g.features.Records {
		g.record = p.variant(g.features, base, attributes, g.user, nil)
	}
	p.publish(&g, attributes.Encoded(), 0)
	return a
}

// Find returns the live span whose ids are those of the span in ctx, or 0 if there is none or the span
// in ctx is remote.
func (p *Path) Find(ctx context.Context) spantable.Ref {
	if k, ok := sdkspan.Local(ctx); ok {
		return p.spans.Find(k)
	}
	return 0
}

// rename publishes the current name of the span of ctx in its cell, ref.
func (p *Path) rename(ctx context.Context, ref spantable.Ref, f *Features) {
	if f.Names == nil {
		return
	}
	if _, name, ok := parentAndName(sdkspan.FromContext(ctx)); ok {
		p.spans.Rename(ref, f.Names.Number(name))
	}
}

// Detach publishes the span that the goroutine was in before Attach or, if that has ended, its nearest
// live ancestor. It does nothing on another goroutine, or if the path is closed.
func (a Attachment) Detach() {
	if a.p == nil || a.p.features.Load().closed {
		return
	}
	var g goroutine
	a.p.locate(&g)
	if g.Goid != a.self.Goid || g.G != a.self.G {
		return
	}
	g.active, g.record = a.previous, a.record
	if g.active != 0 && !a.p.spans.Live(g.active.Ref()) {
		a.p.moveToNearest(&g)
	}
	a.p.publish(&g, a.p.attributes(&g), 0)
}

// LeaveInherited is [Attach] for a context without a span. If the goroutine has inherited its span,
// instead of starting or attaching it, Detach does not restore it.
func LeaveInherited() Attachment {
	p := current.Load()
	if p == nil {
		return Attachment{}
	}
	self := p.runtime.Goroutine()
	_, published := p.goroutines.Load(self.Goid, uintptr(self.G))
	a := Attach(context.Background())
	if !published && (self.Goid == 0 || !p.spans.IsOf(a.previous.Ref(), self.Goid)) {
		return Attachment{}
	}
	return a
}

// Refresh publishes the calling goroutine's span again if it is the span of ctx. If anySpan is true, it
// does so even if the goroutine is in another span. It does nothing if there is no path.
func Refresh(ctx context.Context, anySpan bool) {
	p := current.Load()
	if p == nil {
		return
	}
	var g goroutine
	p.locateLive(&g)
	if g.features.closed {
		return
	}
	// The goroutine's span is unknown if the goroutine has published nothing yet, or if the span it
	// published last has ended without a live ancestor.
	if (g.unknown || g.active == 0 && g.published != 0) && !anySpan {
		g.active = wire.ActiveSpan(p.Find(ctx))
	}
	if g.active == 0 || !anySpan && g.active.Ref() != p.Find(ctx) {
		p.correctThread(&g)
		return
	}
	if !anySpan {
		p.rename(ctx, g.active.Ref(), g.features)
	}
	attributes := p.attributes(&g)
	if attributes == nil && g.record == nil && g.active.Ref() == p.Find(ctx) {
		attributes = g.features.Keys.Of(ctx).Encoded() // the attributes set by Attach are unknown
	}
	p.publish(&g, attributes, 0)
}

// correctThread replaces another goroutine's span in Elastic's record of the thread, which does not say
// to which goroutine it belongs.
func (p *Path) correctThread(g *goroutine) {
	e := g.features.Elastic
	switch {
	case e == nil:
	case g.unknown:
		goruntime.Pin()
		e.Records.Store(nil, g.Goid) // the active span stays unknown
		goruntime.Unpin()
	default:
		p.publish(g, p.attributes(g), 0)
	}
}
