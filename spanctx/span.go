// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/wire"
)

// Every live span has a cell. Everything that publishes the span for a goroutine names the cell:
// the goroutine's entry in the goroutine table, the record behind its labels, and the slot of its
// thread.
//
// Start, End and Attach do the same in this order: locate finds out what the calling goroutine is
// in, they work out what it is in from now on, and publish publishes that.

// goroutine is the calling goroutine, and what it is in.
type goroutine struct {
	goruntime.Self

	// position is the span that the goroutine is in. record is that span's as it is published on
	// this goroutine, nil if there is none at hand.
	position wire.Position
	record   *gorecord.Record
	// published is the span that the goroutine published last. It may have ended.
	published cells.Ref
	// unknown is true if nothing tells what the goroutine is in, although its id is known: it has
	// published nothing so far, or another goroutine has its entry, and there is no record.
	unknown bool
	// user are the user's labels. installed is the record that is installed over them, or nil.
	user      gorecord.UserLabels
	installed *gorecord.Record
}

// locate fills in the calling goroutine, and what it published or inherited last. That span may
// have ended.
func (p *SpanProcessor) locate(g *goroutine) {
	g.Self = p.runtime.Goroutine()
	var known bool
	if g.Goid != 0 {
		g.position, known = p.goroutines.Load(g.Goid, uintptr(g.G))
	} else {
		g.position, known = p.locateThread()
	}
	if p.records {
		// What the goroutine has published itself comes first: the user may have replaced its
		// labels, and it may have inherited them.
		g.user, g.installed = gorecord.User()
		if r := g.installed; r != nil && (!known || r.Ref() == g.position.Ref()) {
			if g.record = r; !known {
				g.position, known = wire.Position(r.Ref()), true
			}
		}
	}
	g.published, g.unknown = g.position.Ref(), !known && g.Goid != 0
}

// locateThread is for runtimes whose goroutine ids are not known. The record then says it all.
// Without records, the goroutine is taken to be in what its thread published last.
//
//go:noinline
func (p *SpanProcessor) locateThread() (at wire.Position, known bool) {
	if p.records {
		return 0, false
	}
	return p.goroutines.Load(uint64(p.runtime.Self().TID), 0)
}

// locateLive is locate, and moves the goroutine on if its span has ended.
func (p *SpanProcessor) locateLive(g *goroutine) {
	p.locate(g)
	if g.position != 0 && !p.cells.Live(g.position.Ref()) {
		p.moveToNearest(g)
	}
}

// moveToNearest moves a goroutine whose span has ended to the nearest live ancestor, or to nothing.
//
//go:noinline
func (p *SpanProcessor) moveToNearest(g *goroutine) {
	now, known := p.cells.Nearest(g.position, g.Goid)
	if !known && g.record != nil {
		if ancestors, outsider := g.record.Ancestors(); outsider == 0 || outsider != g.Goid {
			now = p.cells.NearestOf(&ancestors, g.position)
		}
	}
	g.moveTo(now)
}

// moveTo moves a goroutine to a position, with the record that it had there, if it is known.
func (g *goroutine) moveTo(at wire.Position) {
	outer := g.record.Outer()
	for outer != nil && outer.Ref() != at.Ref() {
		outer = outer.Outer()
	}
	g.position, g.record = at, outer
}

// OnStart publishes the span for the calling goroutine. ctx is the context that the span was
// started with.
func (p *SpanProcessor) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || s == nil || p.stopped.Load() {
		return
	}
	var n cells.Span
	var child bool
	n.Key, n.TraceFlags, child, n.StartUnixNS = sdkspan.Started(s)
	if n.SpanID == 0 {
		return // It has ended: a processor before this one did that.
	}
	if p.profileIDs {
		s.SetAttributes(profileIDKey.String(s.SpanContext().SpanID().String()))
	}
	var g goroutine
	p.locateLive(&g)
	if p.cells.Is(g.position.Ref(), n.Key) {
		return // The provider has this processor twice.
	}
	n.Goid, n.G = g.Goid, uintptr(g.G)
	n.LocalRootSpanID = n.SpanID
	if p.names != nil {
		n.Name = p.names.Number(s.Name())
		n.Endpoint = n.Name
	}
	p.setLineage(ctx, s, &n, child, &g)
	var attributes *gorecord.Attributes
	if keys := p.keys.Load(); keys != nil {
		attributes = keys.Of(ctx)
	}
	record := p.newRecord(&n, attributes, &g)
	ref := p.begin(&n, record, attributes, &g)
	if p.threads == nil {
		p.cells.Barrier(ref) // otherwise claiming a slot was one
	}
	if p.stopped.Load() {
		p.endLate(ref, record)
	}
}

// setLineage fills in the local root and the ancestors of a span that starts. Both come from the
// span of the context that it is started with. If that has ended, they come from its parent.
func (p *SpanProcessor) setLineage(ctx context.Context, s sdktrace.ReadWriteSpan, n *cells.Span, child bool, g *goroutine) {
	var parent cells.Ref
	if !child {
		parent = p.newRootParent(ctx)
	} else if k, remote := sdkspan.Parent(s); !remote && k.TraceIDHigh == n.TraceIDHigh && k.TraceIDLow == n.TraceIDLow {
		if parent = g.position.Ref(); !p.cells.Is(parent, k) {
			parent = p.cells.Find(k)
		}
		if n.LocalRootSpanID, n.Endpoint = p.cells.LocalRoot(parent); parent == 0 {
			parent = p.setEndedParent(ctx, k, n)
		}
	}
	if parent != 0 && g.unknown && p.cells.IsOf(parent, g.Goid) {
		g.position, g.published = wire.Position(parent), parent
	}
	p.cells.SetLineage(n, parent, g.position)
}

// newRootParent returns the nearest live span of a context that a span without parent is started
// with, or 0. There is one if the option trace.WithNewRoot was given.
func (p *SpanProcessor) newRootParent(ctx context.Context) cells.Ref {
	k, ok := sdkspan.Local(ctx)
	if !ok {
		return 0
	}
	if ref := p.cells.Find(k); ref != 0 {
		return ref
	}
	_, grandparent := p.grandparent(ctx, k)
	return grandparent
}

// setEndedParent fills in the local root of a span whose parent, the span of ctx, has ended. It
// returns the grandparent if that is live, or 0.
//
//go:noinline
func (p *SpanProcessor) setEndedParent(ctx context.Context, k sdkspan.Key, n *cells.Span) cells.Ref {
	parent, grandparent := p.grandparent(ctx, k)
	if parent == nil {
		return 0
	}
	if up := parent.Parent(); up.IsValid() && !up.IsRemote() {
		n.LocalRootSpanID, n.Endpoint = p.cells.LocalRoot(grandparent)
		return grandparent
	}
	n.LocalRootSpanID = k.SpanID // The parent was the local root.
	if p.names != nil {
		n.Endpoint = p.names.Number(parent.Name())
	}
	return 0
}

// grandparent returns the span of ctx if it has this key, and the span's own parent if that is live
// and local.
func (p *SpanProcessor) grandparent(ctx context.Context, k sdkspan.Key) (parent sdktrace.ReadOnlySpan, grandparent cells.Ref) {
	parent, ok := sdkspan.FromContext(ctx).(sdktrace.ReadOnlySpan)
	if !ok || sdkspan.Of(parent.SpanContext()) != k {
		return nil, 0
	}
	if up := parent.Parent(); up.IsValid() && !up.IsRemote() {
		grandparent = p.cells.Find(sdkspan.Of(up))
	}
	return parent, grandparent
}

// newRecord returns the record of a span that starts, or nil if there are no records.
func (p *SpanProcessor) newRecord(n *cells.Span, attributes *gorecord.Attributes, g *goroutine) *gorecord.Record {
	if !p.records {
		return nil
	}
	var names gorecord.Names
	if p.names != nil {
		p.names.Set(&names, n.Name, n.Endpoint)
	}
	record := gorecord.New(n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags, attributes, &names, g.user)
	record.SetOuter(g.record)
	if p.labels == LabelsHidden {
		record.HideLabels()
	}
	return record
}

// begin makes a span live, and publishes it for the calling goroutine. It returns 0 if there is no
// cell for the span.
func (p *SpanProcessor) begin(n *cells.Span, record *gorecord.Record, attributes *gorecord.Attributes, g *goroutine) cells.Ref {
	// Field by field: words that are just stored one by one and then copied as a whole hold
	// up the processor.
	var shows ring.Span
	shows.TraceIDHigh, shows.TraceIDLow, shows.SpanID, shows.TraceFlags = n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags
	shows.Attributes = attributes.Encoded()
	thread := goruntime.Pin()
	p.runtime.Renew(&g.Self)
	ref := p.cells.Reserve(thread)
	if ref != 0 {
		n.TID, shows.Ref = g.TID, uint64(ref)
		if record != nil {
			var outsider uint64
			if n.Outside {
				outsider = n.Goid
			}
			record.SetCell(ref, &n.Ancestors, outsider)
		}
		if record != nil || p.keys.Load() != nil {
			p.data.set(ref, record, attributes)
		}
		p.cells.Commit(thread, ref, n)
		if record != nil {
			record.Install() // Readers find the cell that it names.
		}
		p.cells.SetThread(g.published, g.Goid, 0)
		p.storePosition(&g.Self, wire.Position(ref))
		p.threads.Store(uint64(g.TID), &shows, &g.Self)
	}
	goruntime.Unpin()
	return ref
}

// storePosition stores what the calling goroutine, which is pinned, is in from now on.
func (p *SpanProcessor) storePosition(self *goruntime.Self, at wire.Position) {
	if self.Goid != 0 {
		p.goroutines.Store(self.Goid, self.G, at)
	} else if !p.records {
		p.goroutines.Store(uint64(self.TID), nil, at)
	}
}

// endLate ends a span that started while Shutdown ran. Shutdown may have missed the span and
// replaced the memory of its cell. So endLate ends the record, whatever the cell says.
func (p *SpanProcessor) endLate(ref cells.Ref, record *gorecord.Record) {
	if ref != 0 {
		p.evict(ref)
	}
	record.End(p.withdraws(p.profile.wasRunning()))
}

// OnEnd ends the span for every reader. If the calling goroutine is in it, or in a descendant of it
// that it has started, OnEnd publishes what the goroutine is in now.
func (p *SpanProcessor) OnEnd(s sdktrace.ReadOnlySpan) {
	if p == nil || s == nil {
		return
	}
	k, _, end := sdkspan.Ended(s)
	var g goroutine
	p.locate(&g)
	ref := g.position.Ref()
	here := p.cells.Is(ref, k)
	if !here {
		ref = p.cells.Find(k)
	}
	own := p.cells.IsOf(ref, g.Goid)
	if ref == 0 || !p.cells.End(ref) {
		p.leaveEnded(&g)
		return // It was evicted or never published, or somebody else has just ended it.
	}
	if g.unknown && own {
		g.position = wire.Position(ref) // It has started the span, and nothing tells of another one.
	}
	// The next span that starts here may take the cell, if nothing needs the span's lineage any more.
	var warm cells.Ref
	if here && own && !g.position.Attached() {
		warm = ref
	}
	now, in := p.cells.Leave(g.position, ref, g.Goid)
	if in {
		g.moveTo(now)
	}
	if base := p.data.record(ref); base != nil {
		// The kernel is asked for a profile only if that decides.
		base.End(p.withdraws(p.labels == LabelsUntilEnd && !raceEnabled && p.profile.running(end)))
	}
	if !here {
		// Some thread's slot still shows the span. Without this, readers would take the slot for
		// up to date, and show an ancestor.
		p.cells.SetThread(ref, g.Goid, 0)
	}
	if !in {
		p.leaveEnded(&g)
	} else if p.publish(&g, p.attributes(&g), warm) {
		return // The next span takes the cell, and the place of the span's data.
	}
	p.data.drop(ref)
	p.cells.Free(ref)
}

// leaveEnded publishes what the calling goroutine is in, if the span that it published last has
// ended. If the record that is installed is of a live span, it is a later SpanProcessor's, and
// leaveEnded does nothing.
func (p *SpanProcessor) leaveEnded(g *goroutine) {
	if g.published == 0 || p.cells.Live(g.published) || g.installed != nil && !g.installed.Ended() {
		return
	}
	p.moveToNearest(g)
	p.publish(g, p.attributes(g), 0)
}

// withdraws reports whether the labels of a span that has ended are withdrawn, given whether the
// process takes a CPU profile of itself.
func (p *SpanProcessor) withdraws(profiled bool) bool {
	return p.labels == LabelsWithdrawn || p.labels == LabelsUntilEnd && !raceEnabled && !profiled
}

// evict ends a live span to make room, or because all spans end, and takes its record back. It
// reports whether it did, or somebody else was first. Nothing replaces the span: it is another
// goroutine's. It may be called while pinned.
func (p *SpanProcessor) evict(ref cells.Ref) bool {
	record, withdraw := p.data.record(ref), p.withdraws(p.profile.wasRunning())
	// The span's own End finds it ended from then on, and may return before this does. So the
	// record is taken back first. A variant that is added from now on finds it ended. One that was
	// added before is found the second time.
	record.End(withdraw)
	p.cells.Barrier(ref)
	record.End(withdraw)
	if !p.cells.End(ref) {
		return false
	}
	p.data.record(ref).End(withdraw)
	p.data.drop(ref)
	return true
}

// isShown reports whether the goroutine that has started a span still runs, and published it last.
// It may be called while pinned.
func (p *SpanProcessor) isShown(ref cells.Ref, goid uint64, g uintptr) bool {
	at, known := p.goroutines.Load(goid, g)
	return known && at.Ref() == ref && p.runtime.Is(g, goid)
}

// attributes returns the attributes that a goroutine's span is published with, encoded as in OTEP
// 4947. They are those of the record, or those that the span was started with. If the goroutine has
// attached the span and lost the record, none are better than wrong ones.
func (p *SpanProcessor) attributes(g *goroutine) []byte {
	if g.position == 0 || p.keys.Load() == nil {
		return nil
	}
	if g.record != nil {
		return g.record.Attributes()
	}
	if p.records && g.position.Attached() {
		return nil
	}
	return p.data.attributesOf(g.position.Ref())
}

// publish publishes the position of the calling goroutine, with attributes. It gives the cell of a
// span of its own that it has ended, or 0, to the P, and reports whether there was room.
func (p *SpanProcessor) publish(g *goroutine, attributes []byte, ended cells.Ref) (given bool) {
	ref := g.position.Ref()
	// A span that has just ended elsewhere has no ids any more. Its ref says all the same that the
	// goroutine is not in nothing: readers go on to its ancestors.
	shows := ring.Span{Ref: uint64(ref)}
	if k, flags := p.cells.IDs(ref); k.SpanID != 0 {
		shows.TraceIDHigh, shows.TraceIDLow, shows.SpanID, shows.TraceFlags = k.TraceIDHigh, k.TraceIDLow, k.SpanID, flags
		shows.Attributes = attributes
	}
	if p.records {
		p.install(g, attributes)
	}
	thread := goruntime.Pin()
	p.runtime.Renew(&g.Self)
	if g.published != ref {
		p.cells.SetThread(g.published, g.Goid, 0)
	}
	p.cells.SetThread(ref, g.Goid, g.TID)
	p.storePosition(&g.Self, g.position)
	p.threads.Store(uint64(g.TID), &shows, &g.Self)
	given = ended != 0 && p.cells.FreeWarm(thread, ended)
	goruntime.Unpin()
	return given
}

// install installs the record of the goroutine's span. It installs another record of that span, with
// attributes, if there is none at hand, or if the user's labels or the names have changed since that
// one was made. Without a span it restores the user's labels.
func (p *SpanProcessor) install(g *goroutine, attributes []byte) {
	record, ref := g.record, g.position.Ref()
	if ref != 0 && (record == nil || record.Ended() || !record.HasLabels(g.user) || p.names != nil && !record.HasNames(p.cells.Names(ref))) {
		if base := p.data.record(ref); base != nil {
			outer := base.Outer()
			if record != nil {
				outer = record.Outer()
			}
			record = p.variant(base, p.keys.Load().Decode(attributes), g.user, outer)
		}
	}
	if ref != 0 && record != nil {
		if invariants.Enabled {
			invariants.Check(record.Ref() == ref, "position and record of a goroutine name the same cell")
		}
		record.Install()
	} else if g.installed != nil {
		gorecord.Restore(g.user)
	}
}

// variant returns a record of the span of base, with attributes and the user's labels, which goes
// back to an outer record. nil is any outer record.
func (p *SpanProcessor) variant(base *gorecord.Record, a *gorecord.Attributes, user gorecord.UserLabels, outer *gorecord.Record) *gorecord.Record {
	var names gorecord.Names
	name, endpoint := p.cells.Names(base.Ref())
	p.names.Set(&names, name, endpoint)
	record := base.Variant(a, &names, user, outer)
	if base.Ended() || !p.cells.Live(base.Ref()) {
		record.End(p.withdraws(p.profile.wasRunning()))
	}
	return record
}
