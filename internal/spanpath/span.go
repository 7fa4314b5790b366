// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanpath

import (
	"context"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/wire"
)

// Every live span has a cell. Three places refer to that cell: the goroutine's entry in the
// goroutine table, the record behind the goroutine's labels, and the slot of its thread. Elastic's
// thread record has a copy of the span instead.
//
// Start, End and Attach follow the same steps: locate finds the active span of the calling goroutine,
// the caller computes the new active span, and publish (in Start: begin) stores it in the entry, the
// record, the slot and the thread record. Finally, they check that the features are the same.

// goroutine is the state of the calling goroutine.
type goroutine struct {
	goruntime.Self

	features *Features
	// active is the goroutine's active span. record is a record of that span with the
	// attributes that this goroutine publishes, or nil.
	active wire.ActiveSpan
	record *gorecord.Record
	// published is the last span that the goroutine published or inherited. It may have ended.
	published spantable.Ref
	// unknown is true if the goroutine id is known, but the active span is not: no record is
	// installed, and the goroutine owns no entry in the table, because it never published or
	// another goroutine took the entry.
	unknown bool
	// user is the user's label pointer. installed is the record installed in front of it, or nil.
	user      gorecord.UserLabels
	installed *gorecord.Record
}

// locate sets g to the state that the calling goroutine last published or inherited. The span may
// have ended.
func (p *Path) locate(g *goroutine) {
	g.Self, g.features = p.runtime.Goroutine(), p.features.Load()
	var known bool
	if g.Goid != 0 {
		g.active, known = p.goroutines.Load(g.Goid, uintptr(g.G))
	} else {
		g.active, known = p.locateThread()
	}
	if g.features.hadRecords {
		// The entry takes precedence over the record: only the goroutine itself writes the entry,
		// whereas labels may be inherited or replaced by the user.
		g.user, g.installed = gorecord.User()
		if r := g.installed; r != nil && (!known || r.Ref() == g.active.Ref()) {
			if g.record = r; !known {
				g.active, known = wire.ActiveSpan(r.Ref()), true
			}
		}
	}
	g.published, g.unknown = g.active.Ref(), !known && g.Goid != 0
}

// locateThread looks up the active span that was last published on the thread. It is used if goroutine ids cannot be
// read in this Go runtime. Records are then off.
//
//go:noinline
func (p *Path) locateThread() (active wire.ActiveSpan, known bool) {
	return p.goroutines.Load(uint64(p.runtime.Self().TID), 0)
}

// locateLive is locate, followed by moveToNearest if the span has ended.
func (p *Path) locateLive(g *goroutine) {
	p.locate(g)
	if g.active != 0 && !p.spans.Live(g.active.Ref()) {
		p.moveToNearest(g)
	}
}

// moveToNearest moves g, whose span has ended, to the nearest live ancestor of that span, or to no
// span.
//
//go:noinline
func (p *Path) moveToNearest(g *goroutine) {
	nearest, known := p.spans.Nearest(g.active, g.Goid)
	if !known && g.record != nil {
		if ancestors, dispatcher := g.record.Ancestors(); dispatcher == 0 || dispatcher != g.Goid {
			nearest = p.spans.NearestOf(&ancestors, g.active)
		}
	}
	g.moveTo(nearest)
}

// moveTo makes a span the active span of g. It looks up the record of that span in the chain of
// previous records, and sets g.record to nil if there is none.
func (g *goroutine) moveTo(active wire.ActiveSpan) {
	previous := g.record.Previous()
	for previous != nil && previous.Ref() != active.Ref() {
		previous = previous.Previous()
	}
	g.active, g.record = active, previous
}

// Start publishes a span for the calling goroutine. ctx is the context passed to the tracer's Start, and
// r the reference of the span's provider.
func (p *Path) Start(ctx context.Context, s sdktrace.ReadWriteSpan, r *providers.Reference) {
	var g goroutine
	p.locateLive(&g)
	f := g.features
	if f.closed {
		return
	}
	var n spantable.Span
	var child bool
	n.Key, n.TraceFlags, child, n.StartUnixNS = sdkspan.Started(s)
	if n.SpanID == 0 {
		return // An earlier processor has ended the span.
	}
	if p.spans.Is(g.active.Ref(), n.Key) {
		return // Another processor has published the span.
	}
	if f.Names != nil {
		n.Name = f.Names.Number(s.Name())
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

// Unrecorded is a span that is published, although the SDK does not record it.
type Unrecorded interface {
	trace.Span
	// ParentAndName returns the key of the span's parent, which is zero unless the parent is local, and the
	// span's current name.
	ParentAndName() (sdkspan.Key, string)
}

// StartUnrecorded is [Path.Start] for a span that the SDK does not record. parent and name are the results
// of its method ParentAndName, and child says whether it has a parent, which may be remote.
func (p *Path) StartUnrecorded(
	ctx context.Context, k sdkspan.Key, traceFlags trace.TraceFlags, parent sdkspan.Key, name string, child bool, r *providers.Reference,
) {
	var g goroutine
	p.locateLive(&g)
	if g.features.closed {
		return
	}
	var n spantable.Span
	n.Key, n.TraceFlags, n.StartUnixNS = k, byte(traceFlags), uint64(time.Now().UnixNano())
	if g.features.Names != nil {
		n.Name = g.features.Names.Number(name)
	}
	p.start(ctx, &n, parent, child, &g, r)
}

// start publishes a span for the calling goroutine. ctx is the context passed to Start. The caller has set
// the ids, flags, start time and name of n. child says whether the span has a parent. parent is the key of
// that parent, or zero if the parent is remote.
func (p *Path) start(ctx context.Context, n *spantable.Span, parent sdkspan.Key, child bool, g *goroutine, r *providers.Reference) {
	f := g.features
	n.Goid, n.G, n.Provider = g.Goid, uintptr(g.G), r.Number
	n.LocalRootSpanID, n.Endpoint = n.SpanID, n.Name
	p.setLineage(ctx, n, parent, child, g)
	var attributes *gorecord.Attributes
	if f.Keys != nil {
		attributes = f.Keys.Of(ctx)
	}
	record := newRecord(n, attributes, g)
	ref := p.begin(n, record, attributes, g)
	if p.features.Load() != f || !r.Counts() {
		p.startedMeanwhile(g, ref, record, r)
	}
}

// startedMeanwhile withdraws what a starting span has published if it is no longer to be published: the
// features have changed, or the provider is gone.
//
//go:noinline
func (p *Path) startedMeanwhile(g *goroutine, ref spantable.Ref, record *gorecord.Record, r *providers.Reference) {
	now := p.features.Load()
	gone := now.closed || !r.Counts()
	if gone && ref != 0 && p.evict(ref) && !now.closed {
		p.spans.Free(ref)
	}
	if gone || !now.Records {
		// Closing the path may have missed the span and replaced the memory of its cell, so end the
		// record in any case.
		record.End(g.features.withdrawsLabels(p.Profile.WasRunning()))
	}
	p.clearElastic(g)
}

// clearElastic clears the thread's record if its feature has been turned off since g was located.
func (p *Path) clearElastic(g *goroutine) {
	if e := g.features.Elastic; e != nil && p.features.Load().Elastic != e {
		goruntime.Pin()
		e.Records.Store(nil, g.Goid)
		goruntime.Unpin()
	}
}

// setLineage sets the local root and the ancestors of n, a starting span. They come from the parent
// in the context passed to Start or, if the parent has ended, from the grandparent. k is the key of the
// parent, as in start.
func (p *Path) setLineage(ctx context.Context, n *spantable.Span, k sdkspan.Key, child bool, g *goroutine) {
	var parent spantable.Ref
	if !child {
		parent = p.newRootParent(ctx)
	} else if k.TraceIDHigh == n.TraceIDHigh && k.TraceIDLow == n.TraceIDLow {
		if parent = g.active.Ref(); !p.spans.Is(parent, k) {
			parent = p.spans.Find(k)
		}
		if n.LocalRootSpanID, n.Endpoint = p.spans.LocalRoot(parent); parent == 0 {
			parent = p.setEndedParent(ctx, k, n, g.features.Names)
		}
	}
	if parent != 0 && g.unknown && p.spans.IsOf(parent, g.Goid) {
		g.active, g.published = wire.ActiveSpan(parent), parent
	}
	p.spans.SetLineage(n, parent, g.active)
}

// newRootParent returns the closest ancestor for a span without a parent: the span of ctx or, if
// that has ended, its parent. It returns 0 if neither is live. A span without a parent has an
// ancestor only if it was started with trace.WithNewRoot.
func (p *Path) newRootParent(ctx context.Context) spantable.Ref {
	k, ok := sdkspan.Local(ctx)
	if !ok {
		return 0
	}
	if ref := p.spans.Find(k); ref != 0 {
		return ref
	}
	grandparent, _, _ := parentAndName(sdkspan.FromContext(ctx))
	return p.spans.Find(grandparent)
}

// setEndedParent sets the local root of n, a span whose parent has ended: it is the parent itself, the
// grandparent's local root, or the one that the cells remember. It stays 0 if it is unknown, because no
// local root is better than a wrong one. setEndedParent returns the grandparent if it is live, otherwise
// 0.
//
//go:noinline
func (p *Path) setEndedParent(ctx context.Context, k sdkspan.Key, n *spantable.Span, names *names.Table) spantable.Ref {
	parent := sdkspan.FromContext(ctx)
	up, name, ok := parentAndName(parent)
	var grandparent spantable.Ref
	if ok && sdkspan.Of(parent.SpanContext()) == k {
		if up == (sdkspan.Key{}) {
			n.LocalRootSpanID = k.SpanID
			if names != nil {
				n.Endpoint = names.Number(name)
			}
			return 0
		}
		grandparent = p.spans.Find(up)
	}
	if n.LocalRootSpanID, n.Endpoint = p.spans.LocalRoot(grandparent); n.LocalRootSpanID == 0 {
		n.LocalRootSpanID, n.Endpoint = p.spans.EndedRoot(k)
	}
	return grandparent
}

// parentAndName returns the key of a span's parent, which is zero unless the parent is local, and the
// span's current name. ok is false if they are unknown.
func parentAndName(span trace.Span) (parent sdkspan.Key, name string, ok bool) {
	switch s := span.(type) {
	case sdktrace.ReadOnlySpan:
		if up := s.Parent(); up.IsValid() && !up.IsRemote() {
			parent = sdkspan.Of(up)
		}
		return parent, s.Name(), true
	case Unrecorded:
		parent, name = s.ParentAndName()
		return parent, name, true
	}
	return sdkspan.Key{}, "", false
}

// newRecord returns the record of a starting span, or nil if it needs none. If records are off, a record
// that is not installed holds the attributes.
func newRecord(n *spantable.Span, attributes *gorecord.Attributes, g *goroutine) *gorecord.Record {
	f := g.features
	if !f.Records {
		if attributes == nil {
			return nil
		}
		return gorecord.New(n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags, attributes, new(gorecord.Names), nil)
	}
	var names gorecord.Names
	if f.Names != nil {
		f.Names.Set(&names, n.Name, n.Endpoint)
	}
	record := gorecord.New(n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags, attributes, &names, g.user)
	record.SetPrevious(g.record)
	if f.DatadogLabels {
		record.AddDatadogLabels(n.LocalRootSpanID, attributes, &names)
	}
	return record
}

// begin makes a span live and publishes it for the calling goroutine. It returns 0 if no cell is
// free. It is a barrier.
func (p *Path) begin(n *spantable.Span, record *gorecord.Record, attributes *gorecord.Attributes, g *goroutine) spantable.Ref {
	f := g.features
	// Assign the fields one by one: copying a struct just after storing its words one by one would
	// stall the CPU.
	var slot ring.Span
	slot.TraceIDHigh, slot.TraceIDLow, slot.SpanID, slot.TraceFlags = n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags
	slot.Attributes = attributes.Encoded()
	ref, processor := p.reserve(g, record != nil)
	if ref == 0 {
		goruntime.Unpin()
		p.correctThread(g)
		return 0
	}
	n.TID, slot.Ref = g.TID, uint64(ref)
	if record != nil {
		var dispatcher uint64
		if n.Dispatched {
			dispatcher = n.Goid
		}
		record.SetCell(ref, &n.Ancestors, dispatcher)
		p.records.put(ref, record)
	}
	p.spans.Commit(processor, ref, n)
	if f.Records {
		record.Install() // after Commit, so that readers find the cell it names
	}
	p.storeActive(g, wire.ActiveSpan(ref))
	if f.Slots != nil {
		p.spans.SetThread(g.published, g.Goid, 0)
		f.Slots.Store(uint64(g.TID), &slot, &g.Self) // claiming the slot is a barrier
	} else if f.Elastic == nil {
		p.spans.Barrier(ref)
	}
	stored := f.Elastic == nil || f.Elastic.store(&n.Key, n.LocalRootSpanID, n.TraceFlags, &g.Self)
	goruntime.Unpin()
	if f.Elastic != nil && (!stored || !p.spans.Live(ref)) {
		g.active, g.record, g.published = wire.ActiveSpan(ref), record, ref
		p.settle(g, stored)
	}
	return ref
}

// reserve pins the calling goroutine and returns a ref for a starting span, or 0 if no cell is free.
// It also returns the number of the P. If hasRecord is true, there is room for the span's record.
func (p *Path) reserve(g *goroutine, hasRecord bool) (ref spantable.Ref, processor int) {
	for {
		processor = goruntime.Pin()
		p.runtime.Renew(&g.Self)
		ref = p.spans.Reserve(processor)
		if !hasRecord || ref == 0 || p.records.hasRoom(ref) {
			return ref, processor
		}
		p.spans.Release(processor, ref)
		goruntime.Unpin()
		p.records.makeRoom(ref)
	}
}

// storeActive stores the active span of the calling goroutine in its entry. If goroutine ids cannot
// be read, it uses an entry for the thread. The caller must be pinned.
func (p *Path) storeActive(g *goroutine, active wire.ActiveSpan) {
	if g.Goid != 0 {
		p.goroutines.Store(g.Goid, g.G, active)
	} else {
		p.goroutines.Store(uint64(g.TID), nil, active)
	}
}

// settle publishes g again after Elastic's record was stored. If stored is false, the thread had no
// record. Otherwise the span has ended, and the record may still contain it, because the goroutine that
// ended the span cleared the records before.
//
//go:noinline
func (p *Path) settle(g *goroutine, stored bool) {
	e := g.features.Elastic
	if !stored && !e.Records.Assign() {
		e.Records.Leave(g.Goid)
		if err := e.Records.Err(); err != nil {
			e.Failed(err)
		}
		return
	}
	if g.active != 0 && !p.spans.Live(g.active.Ref()) {
		p.moveToNearest(g)
	}
	p.publish(g, p.attributes(g), 0)
}

// End ends a span for every reader. It may run on any goroutine. If the calling goroutine is in the
// span, or in a descendant that it has started, End publishes the goroutine's new active span.
func (p *Path) End(s sdktrace.ReadOnlySpan) {
	k, traceFlags, end := sdkspan.Ended(s)
	p.end(k, traceFlags, end)
}

// EndUnrecorded is [Path.End] for a span with this key that the SDK does not record.
func (p *Path) EndUnrecorded(k sdkspan.Key) { p.end(k, 0, time.Time{}) }

// end ends the span with this key. ended is its end time, or zero for now.
func (p *Path) end(k sdkspan.Key, traceFlags uint8, ended time.Time) {
	var g goroutine
	p.locate(&g)
	f, ref := g.features, g.active.Ref()
	inSpan := p.spans.Is(ref, k)
	if !inSpan {
		ref = p.spans.Find(k)
	}
	starter := p.spans.IsOf(ref, g.Goid)
	if !p.endCell(ref, k, traceFlags, f) {
		p.leaveEnded(&g)
		return // The span was evicted, never published, or just ended by another goroutine.
	}
	if g.unknown && starter {
		g.active = wire.ActiveSpan(ref) // This goroutine started the span, and nothing else is known.
	}
	// If no other goroutine needs the lineage, the next span on this P may reuse the cell at once.
	var warm spantable.Ref
	if inSpan && starter && !g.active.Attached() {
		warm = ref
	}
	next, left := p.spans.Leave(g.active, ref, g.Goid)
	if left {
		g.moveTo(next)
	}
	if base := p.record(ref); base != nil {
		// Call running only if the answer matters, because it may make a system call.
		base.End(f.withdrawsLabels(!f.KeepLabels && !raceEnabled && p.Profile.Running(ended)))
	}
	if !inSpan && f.Slots != nil {
		// A thread's slot still names the span. Clear the cell's thread id: otherwise readers would
		// consider that slot current and report an ancestor.
		p.spans.SetThread(ref, g.Goid, 0)
	}
	if f.Elastic != nil && (!left || !starter || p.spans.Shared(ref)) {
		f.Elastic.clear(p.spans, ref) // otherwise publish replaces the only record that contains the span
	}
	if !left {
		p.leaveEnded(&g)
	} else if p.publish(&g, p.attributes(&g), warm) {
		return // the next span reuses the cell and replaces the record
	}
	p.records.drop(ref)
	p.spans.Free(ref)
}

// endCell ends the span in its cell. It returns false if ref is 0 or another goroutine has ended the span.
func (p *Path) endCell(ref spantable.Ref, k sdkspan.Key, traceFlags uint8, f *Features) bool {
	if ref == 0 {
		if p.evicted.Load() != 0 {
			p.reportEvicted()
		}
		return false
	}
	// Do this before the span ends in its cell, because children and Elastic's correlations may arrive at
	// any time.
	isRoot, endpoint := p.spans.RememberRoot(ref, k)
	if isRoot && f.Elastic != nil {
		f.Elastic.RootEnds(k, traceFlags)
	}
	if !p.spans.End(ref) {
		return false
	}
	if isRoot {
		f.Names.CountRequest(endpoint)
	}
	return true
}

// leaveEnded publishes a new active span for the calling goroutine if its last published span has
// ended. It does nothing if a record of a live span is installed: that record belongs to a later
// path.
func (p *Path) leaveEnded(g *goroutine) {
	if g.published == 0 || p.spans.Live(g.published) || g.installed != nil && !g.installed.Ended() {
		return
	}
	p.moveToNearest(g)
	p.publish(g, p.attributes(g), 0)
}

// evict ends a live span and its records, to make room or at Shutdown. It returns false if another
// goroutine ended the span first. It does not publish an ancestor instead, because only the
// goroutines in the span may store their active spans. It may be called while pinned.
func (p *Path) evict(ref spantable.Ref) bool {
	f := p.features.Load()
	record, withdraw := p.record(ref), f.withdrawsLabels(p.Profile.WasRunning())
	// End the records before the cell: once the cell has ended, a concurrent End of the span returns at
	// once, and no reader may see the span after that. The second record.End ends variants that were
	// added before the barrier. A goroutine that adds a variant after the barrier sees that the base
	// record has ended, and ends the variant itself.
	record.End(withdraw)
	p.spans.Barrier(ref)
	record.End(withdraw)
	if !p.spans.End(ref) {
		return false
	}
	p.record(ref).End(withdraw)
	p.records.drop(ref)
	if f.Elastic != nil {
		f.Elastic.clear(p.spans, ref)
	}
	return true
}

// attributes returns the attributes to publish with the goroutine's span, encoded as in OTEP 4947.
// They come from the goroutine's record or, without a record, from the start of the span. If the
// goroutine has attached the span and its record no longer exists, there are none, because Attach
// may have set different ones.
func (p *Path) attributes(g *goroutine) []byte {
	f := g.features
	if g.active == 0 || f.Keys == nil {
		return nil
	}
	if g.record != nil {
		return g.record.Attributes()
	}
	if f.Records && g.active.Attached() {
		return nil
	}
	return p.record(g.active.Ref()).Attributes()
}

// publish publishes g.active, with attributes, for the calling goroutine. If ended is not 0,
// publish also puts that span's cell on the free stack of the P, and reports whether there was
// room.
func (p *Path) publish(g *goroutine, attributes []byte, ended spantable.Ref) (freed bool) {
	f, ref := g.features, g.active.Ref()
	// IDs returns zeros if another goroutine has just ended the span. The slot still needs the ref,
	// which leads readers to the ancestors.
	slot := ring.Span{Ref: uint64(ref)}
	k, flags := p.spans.IDs(ref)
	if k.SpanID != 0 {
		slot.TraceIDHigh, slot.TraceIDLow, slot.SpanID, slot.TraceFlags = k.TraceIDHigh, k.TraceIDLow, k.SpanID, flags
		slot.Attributes = attributes
	}
	if f.hadRecords {
		p.install(g, attributes)
	}
	processor := goruntime.Pin()
	p.runtime.Renew(&g.Self)
	p.storeActive(g, g.active)
	if f.Slots != nil {
		if g.published != ref {
			p.spans.SetThread(g.published, g.Goid, 0)
		}
		p.spans.SetThread(ref, g.Goid, g.TID)
		f.Slots.Store(uint64(g.TID), &slot, &g.Self)
	}
	stored := f.Elastic == nil || f.Elastic.storeAgain(p.spans, ref, &k, flags, &g.Self)
	freed = ended != 0 && p.spans.FreeWarm(processor, ended)
	goruntime.Unpin()
	if f.Elastic != nil {
		p.clearElastic(g)
		if !stored || ref != 0 && !p.spans.Live(ref) {
			p.settle(g, stored)
		}
	}
	return freed
}

// install installs g.record. If that is nil, has ended, or has outdated user labels or names,
// install creates a variant of the span's record with attributes, and installs the variant. If the
// goroutine is in no span, install restores the user's labels.
func (p *Path) install(g *goroutine, attributes []byte) {
	record, ref := g.record, g.active.Ref()
	f := g.features
	if f.Records && ref != 0 && (record == nil || record.Ended() || !record.HasLabels(g.user) || f.Names != nil && !record.HasNames(p.spans.Names(ref))) {
		if base := p.record(ref); base != nil {
			previous := base.Previous()
			if record != nil {
				previous = record.Previous()
			}
			record = p.variant(f, base, f.Keys.Decode(attributes), g.user, previous)
		}
	}
	if f.Records && ref != 0 && record != nil {
		if invariants.Enabled {
			invariants.Check(record.Ref() == ref, "active span and record of a goroutine name the same cell")
		}
		record.Install()
	} else if g.installed != nil {
		gorecord.Restore(g.user)
	}
}

// variant returns a record for the same span as base, with the given attributes, user labels and
// previous record. If previous is nil, the variant may have any previous record.
func (p *Path) variant(f *Features, base *gorecord.Record, a *gorecord.Attributes, user gorecord.UserLabels, previous *gorecord.Record) *gorecord.Record {
	var names gorecord.Names
	name, endpoint := p.spans.Names(base.Ref())
	f.Names.Set(&names, name, endpoint)
	var datadogRoot uint64
	if f.DatadogLabels {
		datadogRoot, _ = p.spans.LocalRoot(base.Ref())
	}
	record := base.Variant(a, &names, datadogRoot, user, previous)
	if base.Ended() || !p.spans.Live(base.Ref()) {
		record.End(f.withdrawsLabels(p.Profile.WasRunning()))
	}
	return record
}
