// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/wire"
)

// Every live span has a cell. Three places refer to that cell: the goroutine's entry in the
// goroutine table, the record behind the goroutine's labels, and the slot of its thread.
//
// Start, End and Attach follow the same steps: locate finds the position of the calling goroutine,
// the caller computes the new position, and publish (in Start: begin) stores it in the entry, the
// record and the slot.

// goroutine is the state of the calling goroutine.
type goroutine struct {
	goruntime.Self

	// position names the span that the goroutine is in. record is a record of that span with the
	// attributes that this goroutine publishes, or nil.
	position wire.Position
	record   *gorecord.Record
	// published is the last span that the goroutine published or inherited. It may have ended.
	published cells.Ref
	// unknown is true if the goroutine id is known, but the position is not: no record is
	// installed, and the goroutine owns no entry in the table, because it never published or
	// another goroutine took the entry.
	unknown bool
	// user is the user's label pointer. installed is the record installed in front of it, or nil.
	user      gorecord.UserLabels
	installed *gorecord.Record
}

// locate sets g to the state that the calling goroutine last published or inherited. The span may
// have ended.
func (p *path) locate(g *goroutine) {
	g.Self = p.runtime.Goroutine()
	var known bool
	if g.Goid != 0 {
		g.position, known = p.goroutines.Load(g.Goid, uintptr(g.G))
	} else {
		g.position, known = p.locateThread()
	}
	if p.records {
		// The entry takes precedence over the record: only the goroutine itself writes the entry,
		// whereas labels may be inherited or replaced by the user.
		g.user, g.installed = gorecord.User()
		if r := g.installed; r != nil && (!known || r.Ref() == g.position.Ref()) {
			if g.record = r; !known {
				g.position, known = wire.Position(r.Ref()), true
			}
		}
	}
	g.published, g.unknown = g.position.Ref(), !known && g.Goid != 0
}

// locateThread looks up the last position published on the thread. It is used if goroutine ids cannot be
// read in this Go runtime. Records are then off.
//
//go:noinline
func (p *path) locateThread() (position wire.Position, known bool) {
	return p.goroutines.Load(uint64(p.runtime.Self().TID), 0)
}

// locateLive is locate, followed by moveToNearest if the span has ended.
func (p *path) locateLive(g *goroutine) {
	p.locate(g)
	if g.position != 0 && !p.cells.Live(g.position.Ref()) {
		p.moveToNearest(g)
	}
}

// moveToNearest moves g, whose span has ended, to the nearest live ancestor of that span, or to no
// span.
//
//go:noinline
func (p *path) moveToNearest(g *goroutine) {
	nearest, known := p.cells.Nearest(g.position, g.Goid)
	if !known && g.record != nil {
		if ancestors, outsider := g.record.Ancestors(); outsider == 0 || outsider != g.Goid {
			nearest = p.cells.NearestOf(&ancestors, g.position)
		}
	}
	g.moveTo(nearest)
}

// moveTo moves g to position. It looks up the earlier record for that position in the chain of
// outer records, and sets g.record to nil if there is none.
func (g *goroutine) moveTo(position wire.Position) {
	outer := g.record.Outer()
	for outer != nil && outer.Ref() != position.Ref() {
		outer = outer.Outer()
	}
	g.position, g.record = position, outer
}

// OnStart implements [SpanProcessor.OnStart].
func (p *path) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan, r *providers.Reference) {
	if p.stopped.Load() {
		return
	}
	var n cells.Span
	var child bool
	n.Key, n.TraceFlags, child, n.StartUnixNS = sdkspan.Started(s)
	if n.SpanID == 0 {
		return // An earlier processor has ended the span.
	}
	if p.profileIDs {
		s.SetAttributes(profileIDKey.String(s.SpanContext().SpanID().String()))
	}
	var g goroutine
	p.locateLive(&g)
	if p.cells.Is(g.position.Ref(), n.Key) {
		return // The processor is registered twice.
	}
	if p.names != nil {
		n.Name = p.names.Number(s.Name())
	}
	var parent sdkspan.Key
	if child {
		var remote bool
		if parent, remote = sdkspan.Parent(s); remote {
			parent = sdkspan.Key{}
		}
	}
	p.start(ctx, &n, parent, child, &g, r)
}

// start publishes a span for the calling goroutine. ctx is the context passed to Start. The caller has set
// the ids, flags, start time and name of n. child says whether the span has a parent. parent is the key of
// that parent, or zero if the parent is remote.
func (p *path) start(ctx context.Context, n *cells.Span, parent sdkspan.Key, child bool, g *goroutine, r *providers.Reference) {
	n.Goid, n.G, n.Provider = g.Goid, uintptr(g.G), r.Number
	n.LocalRootSpanID, n.Endpoint = n.SpanID, n.Name
	p.setLineage(ctx, n, parent, child, g)
	var attributes *gorecord.Attributes
	if keys := p.keys.Load(); keys != nil {
		attributes = keys.Of(ctx)
	}
	record := p.newRecord(n, attributes, g)
	ref := p.begin(n, record, attributes, g)
	if p.threads == nil {
		p.cells.Barrier(ref) // If there are slots, claiming the slot is the barrier.
	}
	if p.stopped.Load() || !r.Counts() {
		p.endLate(ref, record)
	}
}

// setLineage sets the local root and the ancestors of n, a starting span. They come from the parent
// in the context passed to Start or, if the parent has ended, from the grandparent. k is the key of the
// parent, as in start.
func (p *path) setLineage(ctx context.Context, n *cells.Span, k sdkspan.Key, child bool, g *goroutine) {
	var parent cells.Ref
	if !child {
		parent = p.newRootParent(ctx)
	} else if k.TraceIDHigh == n.TraceIDHigh && k.TraceIDLow == n.TraceIDLow {
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

// newRootParent returns the closest ancestor for a span without a parent: the span of ctx or, if
// that has ended, its parent. It returns 0 if neither is live. A span without a parent has an
// ancestor only if it was started with trace.WithNewRoot.
func (p *path) newRootParent(ctx context.Context) cells.Ref {
	k, ok := sdkspan.Local(ctx)
	if !ok {
		return 0
	}
	if ref := p.cells.Find(k); ref != 0 {
		return ref
	}
	grandparent, _, _ := parentAndName(sdkspan.FromContext(ctx))
	return p.cells.Find(grandparent)
}

// setEndedParent sets the local root of n, a span whose parent has ended. The parent is the span of
// ctx. setEndedParent returns the grandparent if it is live, otherwise 0.
//
//go:noinline
func (p *path) setEndedParent(ctx context.Context, k sdkspan.Key, n *cells.Span) cells.Ref {
	parent := sdkspan.FromContext(ctx)
	grandparent, name, ok := parentAndName(parent)
	if !ok || sdkspan.Of(parent.SpanContext()) != k {
		return 0
	}
	if grandparent != (sdkspan.Key{}) {
		ref := p.cells.Find(grandparent)
		n.LocalRootSpanID, n.Endpoint = p.cells.LocalRoot(ref)
		return ref
	}
	n.LocalRootSpanID = k.SpanID // the parent was the local root
	if p.names != nil {
		n.Endpoint = p.names.Number(name)
	}
	return 0
}

// parentAndName returns the key of a span's parent, which is zero unless the parent is local, and the
// span's current name. ok is false if the span is neither recorded by the SDK nor an unsampledSpan.
func parentAndName(span trace.Span) (parent sdkspan.Key, name string, ok bool) {
	switch s := span.(type) {
	case sdktrace.ReadOnlySpan:
		if up := s.Parent(); up.IsValid() && !up.IsRemote() {
			parent = sdkspan.Of(up)
		}
		return parent, s.Name(), true
	case *unsampledSpan:
		return s.parent, s.currentName(), true
	}
	return sdkspan.Key{}, "", false
}

// newRecord returns the record of a starting span, or nil if goroutine records are off.
func (p *path) newRecord(n *cells.Span, attributes *gorecord.Attributes, g *goroutine) *gorecord.Record {
	if !p.records {
		return nil
	}
	var names gorecord.Names
	if p.names != nil {
		p.names.Set(&names, n.Name, n.Endpoint)
	}
	record := gorecord.New(n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags, attributes, &names, g.user)
	record.SetOuter(g.record)
	if p.datadogLabels {
		record.AddDatadogLabels(n.LocalRootSpanID, attributes, &names)
	}
	return record
}

// begin makes a span live and publishes it for the calling goroutine. It returns 0 if no cell is
// free.
func (p *path) begin(n *cells.Span, record *gorecord.Record, attributes *gorecord.Attributes, g *goroutine) cells.Ref {
	// Assign the fields one by one: copying a struct just after storing its words one by one would
	// stall the CPU.
	var slot ring.Span
	slot.TraceIDHigh, slot.TraceIDLow, slot.SpanID, slot.TraceFlags = n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags
	slot.Attributes = attributes.Encoded()
	hasData := record != nil || p.keys.Load() != nil
	ref, processor := p.reserve(g, hasData)
	if ref != 0 {
		n.TID, slot.Ref = g.TID, uint64(ref)
		if record != nil {
			var outsider uint64
			if n.Outside {
				outsider = n.Goid
			}
			record.SetCell(ref, &n.Ancestors, outsider)
		}
		if hasData {
			p.data.put(ref, record, attributes)
		}
		p.cells.Commit(processor, ref, n)
		if record != nil {
			record.Install() // after Commit, so that readers find the cell it names
		}
		p.cells.SetThread(g.published, g.Goid, 0)
		p.storePosition(&g.Self, wire.Position(ref))
		p.threads.Store(uint64(g.TID), &slot, &g.Self)
	}
	goruntime.Unpin()
	return ref
}

// reserve pins the calling goroutine and returns a ref for a starting span, or 0 if no cell is free.
// It also returns the number of the P. If hasData is true, there is room for the span's data.
func (p *path) reserve(g *goroutine, hasData bool) (ref cells.Ref, processor int) {
	for {
		processor = goruntime.Pin()
		p.runtime.Renew(&g.Self)
		ref = p.cells.Reserve(processor)
		if !hasData || ref == 0 || p.data.hasRoom(ref) {
			return ref, processor
		}
		p.cells.Release(processor, ref)
		goruntime.Unpin()
		p.data.makeRoom(ref)
	}
}

// storePosition stores the position of the calling goroutine in its entry. If goroutine ids cannot
// be read, it uses an entry for the thread. The caller must be pinned.
func (p *path) storePosition(self *goruntime.Self, position wire.Position) {
	if self.Goid != 0 {
		p.goroutines.Store(self.Goid, self.G, position)
	} else {
		p.goroutines.Store(uint64(self.TID), nil, position)
	}
}

// endLate ends a span that started during Shutdown. Shutdown may have missed the span and replaced
// the memory of its cell, so endLate ends the record in any case.
func (p *path) endLate(ref cells.Ref, record *gorecord.Record) {
	if ref != 0 && p.evict(ref) && !p.stopped.Load() {
		p.cells.Free(ref)
	}
	record.End(p.withdrawsLabels(p.profile.wasRunning()))
}

// OnEnd implements [SpanProcessor.OnEnd].
func (p *path) OnEnd(s sdktrace.ReadOnlySpan) {
	k, _, end := sdkspan.Ended(s)
	p.end(k, end)
}

// end ends the span with this key, as [SpanProcessor.OnEnd] describes. ended is its end time.
func (p *path) end(k sdkspan.Key, ended time.Time) {
	var g goroutine
	p.locate(&g)
	ref := g.position.Ref()
	inSpan := p.cells.Is(ref, k)
	if !inSpan {
		ref = p.cells.Find(k)
	}
	starter := p.cells.IsOf(ref, g.Goid)
	if ref == 0 || !p.cells.End(ref) {
		p.leaveEnded(&g)
		return // The span was evicted, never published, or just ended by another goroutine.
	}
	if g.unknown && starter {
		g.position = wire.Position(ref) // This goroutine started the span, and no other position is known.
	}
	// If no other goroutine needs the lineage, the next span on this P may reuse the cell at once.
	var warm cells.Ref
	if inSpan && starter && !g.position.Attached() {
		warm = ref
	}
	next, left := p.cells.Leave(g.position, ref, g.Goid)
	if left {
		g.moveTo(next)
	}
	if base := p.data.record(ref); base != nil {
		// Call running only if the answer matters, because it may make a system call.
		base.End(p.withdrawsLabels(p.labels == LabelsAuto && !raceEnabled && p.profile.running(ended)))
	}
	if !inSpan {
		// A thread's slot still names the span. Clear the cell's thread id: otherwise readers would
		// consider that slot current and report an ancestor.
		p.cells.SetThread(ref, g.Goid, 0)
	}
	if !left {
		p.leaveEnded(&g)
	} else if p.publish(&g, p.attributes(&g), warm) {
		return // the next span reuses the cell and overwrites the live span data
	}
	p.data.drop(ref)
	p.cells.Free(ref)
}

// leaveEnded publishes a new position for the calling goroutine if its last published span has
// ended. It does nothing if a record of a live span is installed: that record belongs to a later
// path.
func (p *path) leaveEnded(g *goroutine) {
	if g.published == 0 || p.cells.Live(g.published) || g.installed != nil && !g.installed.Ended() {
		return
	}
	p.moveToNearest(g)
	p.publish(g, p.attributes(g), 0)
}

// withdrawsLabels reports whether to withdraw the labels of an ended span. profiled is true while
// the process is taking a CPU profile of itself.
func (p *path) withdrawsLabels(profiled bool) bool {
	return p.labels == LabelsAuto && !raceEnabled && !profiled
}

// evict ends a live span and its records, to make room or at Shutdown. It returns false if another
// goroutine ended the span first. It does not publish an ancestor instead, because only the
// goroutines in the span may store their positions. It may be called while pinned.
func (p *path) evict(ref cells.Ref) bool {
	record, withdraw := p.data.record(ref), p.withdrawsLabels(p.profile.wasRunning())
	// End the records before the cell: once the cell has ended, a concurrent OnEnd of the span
	// returns at once, and no reader may see the span after that. The second record.End ends variants
	// that were added before the barrier. A goroutine that adds a variant after the barrier sees that
	// the base record has ended, and ends the variant itself.
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

// isPublished reports whether the goroutine that started a span still exists and has that span as
// its position. It may be called while pinned.
func (p *path) isPublished(ref cells.Ref, goid uint64, g uintptr) bool {
	position, known := p.goroutines.Load(goid, g)
	return known && position.Ref() == ref && p.runtime.Is(g, goid)
}

// attributes returns the attributes to publish with the goroutine's span, encoded as in OTEP 4947.
// They come from the goroutine's record or, without a record, from the start of the span. If the
// goroutine has attached the span and its record no longer exists, there are none, because Attach
// may have set different ones.
func (p *path) attributes(g *goroutine) []byte {
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

// publish publishes g.position, with attributes, for the calling goroutine. If ended is not 0,
// publish also puts that span's cell on the free stack of the P, and reports whether there was
// room.
func (p *path) publish(g *goroutine, attributes []byte, ended cells.Ref) (freed bool) {
	ref := g.position.Ref()
	// IDs returns zeros if another goroutine has just ended the span. The slot still needs the ref,
	// which leads readers to the ancestors.
	slot := ring.Span{Ref: uint64(ref)}
	if k, flags := p.cells.IDs(ref); k.SpanID != 0 {
		slot.TraceIDHigh, slot.TraceIDLow, slot.SpanID, slot.TraceFlags = k.TraceIDHigh, k.TraceIDLow, k.SpanID, flags
		slot.Attributes = attributes
	}
	if p.records {
		p.install(g, attributes)
	}
	processor := goruntime.Pin()
	p.runtime.Renew(&g.Self)
	if g.published != ref {
		p.cells.SetThread(g.published, g.Goid, 0)
	}
	p.cells.SetThread(ref, g.Goid, g.TID)
	p.storePosition(&g.Self, g.position)
	p.threads.Store(uint64(g.TID), &slot, &g.Self)
	freed = ended != 0 && p.cells.FreeWarm(processor, ended)
	goruntime.Unpin()
	return freed
}

// install installs g.record. If that is nil, has ended, or has outdated user labels or names,
// install creates a variant of the span's record with attributes, and installs the variant. If the
// goroutine is in no span, install restores the user's labels.
func (p *path) install(g *goroutine, attributes []byte) {
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

// variant returns a record for the same span as base, with the given attributes, user labels and
// outer record. If outer is nil, the variant may have any outer record.
func (p *path) variant(base *gorecord.Record, a *gorecord.Attributes, user gorecord.UserLabels, outer *gorecord.Record) *gorecord.Record {
	var names gorecord.Names
	name, endpoint := p.cells.Names(base.Ref())
	p.names.Set(&names, name, endpoint)
	var datadogRoot uint64
	if p.datadogLabels {
		datadogRoot, _ = p.cells.LocalRoot(base.Ref())
	}
	record := base.Variant(a, &names, datadogRoot, user, outer)
	if base.Ended() || !p.cells.Live(base.Ref()) {
		record.End(p.withdrawsLabels(p.profile.wasRunning()))
	}
	return record
}
