// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"net"
	"runtime/pprof"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/wire"
)

// Attachment is what [Attach] has changed.
type Attachment struct {
	p *SpanProcessor
	// self is the goroutine. before is what it was in, and record how that was published.
	self   goruntime.Self
	before wire.Position
	record *gorecord.Record
}

// Attach shows on the calling goroutine what ctx says, until [Attachment.Detach]. That is
// the span of ctx, or nothing if ctx has no span that records in this process and is not
// over. It is for goroutines that work for a span which another goroutine has started, such
// as those of a pool:
//
//	defer spanctx.Attach(ctx).Detach()
//
// With [context.Background] it is for goroutines that have inherited a span which they do
// not work for.
//
// The span is shown with those context-scoped attributes of ctx whose keys are published,
// also where the goroutine shows it already. That is how to publish attributes that were
// added to a context since the span was started. With [WithSpanNames] it is shown with the
// name that it has now, also if SetName has changed it.
//
// If the span ends meanwhile, the goroutine is in the span's nearest live ancestor. Attach does
// nothing if no SpanProcessor is active.
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

// find returns the live, recording, local span of ctx, or 0.
func (p *SpanProcessor) find(ctx context.Context) cells.Ref {
	if k, ok := sdkspan.Recording(ctx); ok {
		return p.cells.Find(k)
	}
	return 0
}

// rename has the live local span of ctx have the name that it has by now.
func (p *SpanProcessor) rename(ctx context.Context, ref cells.Ref) {
	if p.names == nil {
		return
	}
	if s, ok := sdkspan.FromContext(ctx).(sdktrace.ReadOnlySpan); ok {
		p.cells.Rename(ref, p.names.Number(s.Name()))
	}
}

// Detach shows again the span that the goroutine was in before [Attach], or the nearest
// live span around that. Call it on the same goroutine, and detach several attachments in
// the reverse order. On another goroutine it does nothing, as does the zero Attachment.
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

// Go runs fn with ctx on a goroutine of its own, with [Attach] to ctx until fn returns. It
// returns at once. With a context that has no span the goroutine is in none. Use such a
// context for work that outlives the span that it is started in.
func Go(ctx context.Context, fn func(context.Context)) {
	go func() {
		defer Attach(ctx).Detach()
		fn(ctx)
	}()
}

// Do is [pprof.Do], and keeps the goroutine in its span for readers of labels and for
// goroutines that fn starts. pprof.Do alone replaces all labels, those of the span
// included.
func Do(ctx context.Context, labels pprof.LabelSet, fn func(context.Context)) {
	refresh(ctx, true) // An inherited span is in the labels only, which pprof.Do replaces.
	defer refresh(ctx, true)
	pprof.Do(ctx, labels, func(ctx context.Context) {
		refresh(ctx, true)
		fn(ctx)
	})
}

// DialContext returns a function that dials as dial does. It is for http.Transport and
// others that dial on a goroutine which then serves the connection for whoever uses it. It
// takes such a goroutine out of the span that it has inherited. A goroutine that has started
// or attached a span itself goes back to its span when the connection is made.
func DialContext(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if p := active.Load(); p != nil {
			self := p.runtime.Goroutine()
			_, own := p.goroutines.Load(self.Goid, uintptr(self.G))
			if a := Attach(context.Background()); own || self.Goid != 0 && p.cells.IsOf(a.before.Ref(), self.Goid) { //nolint:contextcheck // what it is in is to be nothing
				defer a.Detach()
			}
		}
		return dial(ctx, network, address)
	}
}

// Refresh publishes again what the goroutine is in, if that is the span of ctx: in the slot of the
// thread that the goroutine is on now, and behind its labels. After a call that blocked, Go may run
// the goroutine on another thread, whose slot does not show the span until a span starts or ends.
// And pprof.SetGoroutineLabels replaces all labels. If nothing tells any more what the goroutine is
// in, Refresh publishes the span of ctx. That is so after SetGoroutineLabels on a goroutine that
// has inherited its span. If nothing else tells with which attributes the span was attached, those
// of ctx count. With [WithSpanNames] it publishes the name that SetName has given to the span
// since.
func Refresh(ctx context.Context) { refresh(ctx, false) }

// refresh is Refresh, but if anySpan is true whatever span the goroutine is in.
func refresh(ctx context.Context, anySpan bool) {
	p := active.Load()
	if p == nil || p.stopped.Load() {
		return
	}
	var g goroutine
	p.locateLive(&g)
	if g.unknown && !anySpan {
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
		attributes = p.keys.Load().Of(ctx).Encoded() // Nothing else tells what Attach has published.
	}
	p.publish(&g, attributes, 0)
}
