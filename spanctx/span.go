// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// Every live span has a cell. What shows the span on a goroutine names the cell: the
// goroutine's slot, the slot of its thread, and the record behind its labels. A position is
// the same for this package: what a goroutine is in.
//
// OnStart goes one step inwards, OnEnd one step outwards, and Attach anywhere. Each finds
// out the position of the calling goroutine, and shows another one.

// position is a span that a goroutine is in, and what it is in around that.
type position struct {
	// ref is 0 if the goroutine is in no span.
	ref cells.Ref
	// record is the span's as it is shown on this goroutine; nil if there is none at hand.
	record *gorecord.Record
	// enclosing are the known spans around that of ref, innermost first.
	enclosing cells.Enclosing
}

// inside returns what is around a span that starts at a position.
func (at *position) inside() cells.Enclosing {
	return cells.Enclosing{at.ref, at.enclosing[0], at.enclosing[1]}
}

// caller is the calling goroutine, and its position.
type caller struct {
	goruntime.Self

	at position
	// from is the span that it was shown in last, which may be over.
	from cells.Ref
	// lost is true if nothing tells what the goroutine was shown in last. It was shown in nothing
	// so far, or another goroutine has its entry among the positions.
	lost bool
	// user are the user's labels. installed is the record that is over them, or nil.
	user      gorecord.UserLabels
	installed *gorecord.Record
}

// at sets a position to a span without its record. If goroutine goid has started the span,
// the cell names the spans around it.
func (p *SpanProcessor) at(at *position, ref cells.Ref, goid uint64) {
	at.ref, at.record = ref, nil
	p.cells.LoadEnclosing(ref, goid, &at.enclosing)
}

// atRecord sets a position to what a record shows.
func (at *position) atRecord(r *gorecord.Record) {
	at.ref, at.record = r.Ref(), r
	r.LoadEnclosing(&at.enclosing)
}

// locate sets c to the calling goroutine and what it was shown in last. That span may be over.
func (p *SpanProcessor) locate(c *caller) {
	c.Self = p.runtime.Goroutine()
	if c.Goid == 0 {
		p.locateThread(c)
		return
	}
	// What the goroutine was shown in itself counts most: the user may have replaced its
	// labels, or it may have inherited them.
	ref, known := p.positions.Load(c.Goid)
	if p.records {
		c.user, c.installed = gorecord.User()
		if r := c.installed; r != nil && (!known || r.Ref() == ref) {
			c.at.atRecord(r)
			c.from = c.at.ref
			return
		}
	}
	c.from, c.lost = ref, !known
	if ref != 0 {
		p.at(&c.at, ref, c.Goid)
	}
}

// locateThread is locate where goroutine ids are not known. The record then says it all.
// Without records the goroutine is taken to be in what its thread was shown in last.
//
//go:noinline
func (p *SpanProcessor) locateThread(c *caller) {
	if p.records {
		if c.user, c.installed = gorecord.User(); c.installed != nil {
			c.at.atRecord(c.installed)
		}
	} else if ref, _ := p.positions.Load(uint64(p.runtime.Self().TID)); ref != 0 {
		p.at(&c.at, ref, 0)
	}
	c.from = c.at.ref
}

// moved notes that the calling goroutine, which is pinned, is shown in a span from now on.
func (p *SpanProcessor) moved(self *goruntime.Self, ref cells.Ref) {
	if self.Goid != 0 {
		p.positions.Store(self.Goid, ref)
	} else if !p.records {
		p.positions.Store(uint64(self.TID), ref)
	}
}

// locateLive is like locate. If the span is over, it sets c to the nearest live span around it.
func (p *SpanProcessor) locateLive(c *caller) {
	p.locate(c)
	if c.at.ref != 0 && !p.cells.Live(c.at.ref) {
		p.outward(&c.at, 0, c.Goid)
	}
}

// outward moves a position to the nearest live span around its own, from the i-th on, or to
// none.
func (p *SpanProcessor) outward(at *position, i int, goid uint64) {
	if outer := at.record.Outer(); i == 0 && outer != nil && p.cells.Live(outer.Ref()) {
		at.atRecord(outer)
		return
	}
	for ; i < len(at.enclosing) && at.enclosing[i] != 0; i++ {
		if p.cells.Live(at.enclosing[i]) {
			p.step(at, i, goid)
			return
		}
	}
	*at = position{}
}

// step moves a position to the i-th span around its own.
func (p *SpanProcessor) step(at *position, i int, goid uint64) {
	at.ref, at.record = at.enclosing[i], nil
	if p.cells.IsOf(at.ref, goid) {
		p.at(at, at.ref, goid)
		return
	}
	// The cell of another goroutine's span names the spans around that goroutine. Keep the
	// outer spans of this position.
	clear(at.enclosing[copy(at.enclosing[:], at.enclosing[i+1:]):])
}

// leave moves a position out of a span that the goroutine ends, and out of all spans that
// it has started inside. It reports whether the position was in the span.
func (p *SpanProcessor) leave(at *position, span cells.Ref, goid uint64) (in bool) {
	const maxDepth = 16
	var to position
	// The goroutine may be in the span more than once, by Attach: the outermost counts.
	for range maxDepth {
		if at.ref == span {
			in, to = true, *at
			p.outward(&to, 0, goid)
		}
		for i := range at.enclosing {
			if at.enclosing[i] == span {
				in, to = true, *at
				p.outward(&to, i+1, goid)
			}
		}
		if at.enclosing[0] == 0 {
			break
		}
		// Loaded once: another goroutine that ends the record's span clears it.
		if outer := at.record.Outer(); outer != nil {
			at.atRecord(outer)
		} else {
			p.step(at, 0, goid)
		}
	}
	*at = to
	return in
}

// OnStart shows the span on the calling goroutine. ctx is the context that the span
// was started with.
func (p *SpanProcessor) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || s == nil || p.stopped.Load() {
		return
	}
	var n cells.Span
	var child bool
	n.Key, n.TraceFlags, child, n.StartUnixNS = sdkspan.Started(s)
	if n.SpanID == 0 {
		return // It is over: a processor before this one has ended it.
	}
	if p.profileIDs {
		s.SetAttributes(profileIDKey.String(s.SpanContext().SpanID().String()))
	}
	var c caller
	p.locateLive(&c)
	if p.cells.Is(c.at.ref, n.Key) {
		return // The provider has this processor twice.
	}
	n.Goid, n.G = c.Goid, uintptr(c.G)
	n.LocalRootSpanID = n.SpanID
	if p.names != nil {
		n.Name = p.names.Number(s.Name())
		n.Endpoint = n.Name
	}
	if child {
		if parent := p.follow(ctx, s, &n, c.at.ref); c.lost && p.cells.IsOf(parent, c.Goid) {
			p.at(&c.at, parent, c.Goid)
			c.from = parent
		}
	}
	n.Enclosing[0], n.Enclosing[1], n.Enclosing[2] = c.at.ref, c.at.enclosing[0], c.at.enclosing[1]
	var attributes *gorecord.Attributes
	keys := p.keys.Load()
	if keys != nil {
		attributes = keys.Of(ctx)
	}
	var record *gorecord.Record
	if p.records {
		var names gorecord.Names
		if p.names != nil {
			p.names.Set(&names, n.Name, n.Endpoint)
		}
		record = gorecord.New(n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags, attributes, &names, c.user)
		record.SetWithin(c.at.record, &n.Enclosing)
		if p.labels == LabelsHidden {
			record.HideLabels()
		}
	}

	// Field by field: words that are just stored one by one and then copied as a whole hold
	// up the processor.
	var shows ring.Span
	shows.TraceIDHigh, shows.TraceIDLow, shows.SpanID, shows.TraceFlags = n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags
	shows.Attributes = attributes.Encoded()
	thread := goruntime.Pin()
	p.runtime.Renew(&c.Self)
	ref := p.cells.Reserve(thread)
	if ref != 0 {
		n.TID, shows.Ref = c.TID, uint64(ref)
		if record != nil {
			record.SetRef(ref)
		}
		if record != nil || keys != nil {
			p.known.set(ref, record, attributes)
		}
		p.cells.Commit(thread, ref, &n)
		if record != nil {
			record.Install() // Readers find the cell that it names.
		}
		p.cells.SetThread(c.from, c.Goid, 0)
		p.moved(&c.Self, ref)
		p.threads.Store(uint64(c.TID), &shows, &c.Self)
		p.goroutines.Store(c.Goid, &shows, &c.Self)
	}
	goruntime.Unpin()
	if p.threads == nil && p.goroutines == nil {
		p.cells.Barrier(ref) // else the claim of a slot was one
	}
	if p.stopped.Load() {
		p.endLate(ref, record)
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

// follow gives a span that starts the local root of its parent, if the parent is local. It
// returns the parent, or 0 if that is not live here. Most likely the parent is the span that is
// given. A remote parent is somebody else's, also where its id is known here.
func (p *SpanProcessor) follow(ctx context.Context, s sdktrace.ReadWriteSpan, child *cells.Span, likely cells.Ref) cells.Ref {
	k, remote := sdkspan.Parent(s)
	if remote || k.TraceIDHigh != child.TraceIDHigh || k.TraceIDLow != child.TraceIDLow {
		return 0
	}
	parent := likely
	if !p.cells.Is(likely, k) {
		parent = p.cells.Find(k)
	}
	child.LocalRootSpanID, child.Endpoint = p.cells.LocalRoot(parent)
	if parent == 0 {
		p.followEnded(ctx, k, child)
	}
	return parent
}

// followEnded gives a span the local root of its parent, which is over. The span of ctx is
// asked: it may be the local root, or its parent may be live and know.
//
//go:noinline
func (p *SpanProcessor) followEnded(ctx context.Context, k sdkspan.Key, child *cells.Span) {
	parent, ok := sdkspan.FromContext(ctx).(sdktrace.ReadOnlySpan)
	if !ok || sdkspan.Of(parent.SpanContext()) != k {
		return
	}
	if up := parent.Parent(); up.IsValid() && !up.IsRemote() {
		child.LocalRootSpanID, child.Endpoint = p.cells.LocalRoot(p.cells.Find(sdkspan.Of(up)))
		return
	}
	child.LocalRootSpanID = k.SpanID
	if p.names != nil {
		child.Endpoint = p.names.Number(parent.Name())
	}
}

// OnEnd makes the span be over, wherever it is shown. If the calling goroutine is in it, it
// goes back to the nearest live span around it.
func (p *SpanProcessor) OnEnd(s sdktrace.ReadOnlySpan) {
	if p == nil || s == nil {
		return
	}
	k, _, end := sdkspan.Ended(s)
	var c caller
	p.locate(&c)
	ref := c.at.ref
	here := p.cells.Is(ref, k)
	if !here {
		if ref = p.cells.Find(k); ref == 0 {
			p.goBack(&c)
			return // It was evicted, or never shown.
		}
	}
	own := p.cells.IsOf(ref, c.Goid)
	var base *gorecord.Record
	if p.records {
		base = p.known.record(ref)
	}
	if !p.cells.End(ref) {
		p.goBack(&c)
		return // Somebody else did.
	}
	if !here {
		// Some thread's slot still shows the span. Without this, readers would take the slot for
		// up to date, and show the spans around.
		p.cells.SetThread(ref, c.Goid, 0)
	}
	in := here
	if here && c.at.record == base {
		p.outward(&c.at, 0, c.Goid)
	} else {
		// If the goroutine is lost, it may be in a span that it has started: then it is in nothing
		// from now on.
		in = p.leave(&c.at, ref, c.Goid) || c.lost && own
	}
	if base != nil {
		// The kernel is asked for a profile only if that decides.
		base.End(p.withdraws(p.labels == LabelsUntilEnd && !raceEnabled && p.profile.running(end)))
	}
	var warm cells.Ref
	if here && own {
		warm = ref // The next span that starts here may take its cell.
	}
	if !in {
		p.goBack(&c)
	} else if p.show(&c, p.attributes(&c.at), warm) {
		return // The next span takes the cell, and the place of the record.
	}
	// Another goroutine may still name the cell, to find what is around the span.
	p.known.drop(ref)
	p.cells.Free(ref)
}

// goBack has the calling goroutine, which c is, leave the span that it was shown in last, if that is
// over. It is then in the nearest live span around that. If the record that is installed is of a
// live span it is a later SpanProcessor's, and goBack does nothing.
//
//go:noinline
func (p *SpanProcessor) goBack(c *caller) {
	if c.from == 0 || p.cells.Live(c.from) || c.installed != nil && !c.installed.Ended() {
		return
	}
	p.locateLive(c)
	p.show(c, p.attributes(&c.at), 0)
}

// withdraws reports whether the labels of a span that is over are withdrawn, given whether the
// process takes a CPU profile of itself.
func (p *SpanProcessor) withdraws(profiled bool) bool {
	return p.labels == LabelsWithdrawn || p.labels == LabelsUntilEnd && !raceEnabled && !profiled
}

// evict ends a live span to make room, or since all ends, and takes its record back. It reports
// whether it did, or somebody else was first. Nothing is shown in its stead: it is another
// goroutine's. It may be called while pinned.
func (p *SpanProcessor) evict(ref cells.Ref) bool {
	record, withdraw := p.known.record(ref), p.withdraws(p.profile.wasRunning())
	// The span's own End finds it over from then on and may return before this does. So the
	// record is taken back first. A variant that is added from now on finds it ended. One that was
	// added before is found the second time.
	record.End(withdraw)
	p.cells.Barrier(ref)
	record.End(withdraw)
	if !p.cells.End(ref) {
		return false
	}
	p.known.record(ref).End(withdraw)
	p.known.drop(ref)
	return true
}

// isShown reports whether the goroutine that has started a span still runs and was shown in it
// last. It may be called while pinned.
func (p *SpanProcessor) isShown(ref cells.Ref, goid uint64, g uintptr) bool {
	shown, known := p.positions.Load(goid)
	return known && shown == ref && p.runtime.Is(g, goid)
}

// attributes returns the attributes that the span of a position is shown with, encoded as
// in OTEP 4947. They are those of the record, else those that the span was started with.
func (p *SpanProcessor) attributes(at *position) []byte {
	if at.ref == 0 || p.keys.Load() == nil {
		return nil
	}
	if at.record != nil {
		return at.record.Attributes()
	}
	return p.known.attributesOf(at.ref)
}

// show has the calling goroutine be at the position of c, with attributes. It gives the cell of a
// span of its own that it has ended, or 0, to the P, and reports whether there was room.
func (p *SpanProcessor) show(c *caller, attributes []byte, ended cells.Ref) (given bool) {
	// A span that has just ended elsewhere has no ids any more. Its ref says all the same that the
	// goroutine is not in nothing: readers go on to its record, which leads outward.
	shows := ring.Span{Ref: uint64(c.at.ref)}
	if k, flags := p.cells.IDs(c.at.ref); k.SpanID != 0 {
		shows.TraceIDHigh, shows.TraceIDLow, shows.SpanID, shows.TraceFlags = k.TraceIDHigh, k.TraceIDLow, k.SpanID, flags
		shows.Attributes = attributes
	}
	if p.records {
		p.install(c, attributes)
	}
	thread := goruntime.Pin()
	p.runtime.Renew(&c.Self)
	if c.from != c.at.ref {
		p.cells.SetThread(c.from, c.Goid, 0)
	}
	p.cells.SetThread(c.at.ref, c.Goid, c.TID)
	p.moved(&c.Self, c.at.ref)
	p.threads.Store(uint64(c.TID), &shows, &c.Self)
	p.goroutines.Store(c.Goid, &shows, &c.Self)
	given = ended != 0 && p.cells.FreeWarm(thread, ended)
	goruntime.Unpin()
	return given
}

// install installs the record of the position of c. If there is none at hand it installs another
// record of the span, with attributes. It also does if the user's labels or the names have changed
// since that record was made. Without a span it restores the user's labels.
func (p *SpanProcessor) install(c *caller, attributes []byte) {
	at, record := &c.at, c.at.record
	if at.ref != 0 && (record == nil || record.Ended() || !record.HasLabels(c.user) || p.names != nil && !record.HasNames(p.cells.Names(at.ref))) {
		if base := p.known.record(at.ref); base != nil {
			record = p.variant(base, p.keys.Load().Decode(attributes), c.user, record.Outer(), at.enclosing)
		}
	}
	if at.ref != 0 && record != nil {
		if invariants.Enabled {
			invariants.Check(record.Ref() == at.ref, "position and record of a goroutine name the same cell")
		}
		record.Install()
	} else if c.installed != nil {
		gorecord.Restore(c.user)
	}
}

// variant returns a record of the span of base for the calling goroutine. The record has
// the attributes and the user's labels, is inside of an outer record or nil, and has other
// spans around it.
func (p *SpanProcessor) variant(base *gorecord.Record, a *gorecord.Attributes, user gorecord.UserLabels, outer *gorecord.Record, enclosing cells.Enclosing) *gorecord.Record {
	var names gorecord.Names
	name, endpoint := p.cells.Names(base.Ref())
	p.names.Set(&names, name, endpoint)
	record := base.Variant(a, &names, user, outer, enclosing)
	if base.Ended() || !p.cells.Live(base.Ref()) {
		record.End(p.withdraws(p.profile.wasRunning()))
	}
	return record
}

// known has what belongs to a live span and is on the heap, so that it cannot be in the span's
// cell. It is found by the number of the cell. With records it is the record. Without them it is
// the attributes that slots show with the span.
type known struct {
	records    []gorecord.Pointer
	attributes []atomic.Pointer[gorecord.Attributes]
}

func newKnown(records bool) known {
	if records {
		return known{records: make([]gorecord.Pointer, cells.Capacity)}
	}
	return known{attributes: make([]atomic.Pointer[gorecord.Attributes], cells.Capacity)}
}

// place returns where in both is what belongs to a span. Cells that follow one another are
// not beside each other here. Else processors that use them would pass a cache line back and forth.
func place(r cells.Ref) uint32 { return r.Index() * 0x9E3779B1 % cells.Capacity }

// set stores what belongs to a span that is about to be live. It may be called while pinned.
func (k *known) set(r cells.Ref, record *gorecord.Record, a *gorecord.Attributes) {
	if record != nil {
		k.records[place(r)].Store(record)
	} else {
		k.attributes[place(r)].Store(a)
	}
}

// record returns the record of a span, or nil.
func (k *known) record(r cells.Ref) *gorecord.Record {
	if k.records != nil {
		if record := k.records[place(r)].Load(); record.Ref() == r && r != 0 {
			return record
		}
	}
	return nil
}

// attributesOf returns those that a live span is shown with wherever it is, encoded as in OTEP 4947.
func (k *known) attributesOf(r cells.Ref) []byte {
	if k.attributes != nil {
		return k.attributes[place(r)].Load().Encoded()
	}
	return k.record(r).CommonAttributes()
}

// drop forgets what belongs to a span that is over, so that it can be collected.
func (k *known) drop(r cells.Ref) {
	if k.attributes == nil {
		k.records[place(r)].Store(nil)
	} else if a := &k.attributes[place(r)]; a.Load() != nil {
		a.Store(nil)
	}
}
