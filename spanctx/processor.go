// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ringoption"
	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/ringbuf"
)

// ErrAlreadyPublishing says that this process has a SpanProcessor already.
var ErrAlreadyPublishing = errors.New("active spans are already published")

// SpanProcessor publishes the active span. [NewSpanProcessor] makes one. It may be
// registered with several TracerProviders, and is safe for concurrent use.
type SpanProcessor struct {
	runtime *goruntime.Runtime
	table   *table
	// rings are nil where those slots are off.
	rings   [numRings]*ringbuf.Ring
	records bool
	// keys are those of the attributes that are published with spans; nil is none. They
	// change with building held.
	keys atomic.Pointer[scope.KeyMap]
	// refused is why carriers that were asked for are off.
	refused error

	refusedKeys atomic.Int64
	// toldRefused is whether the first of them have been reported.
	toldRefused atomic.Bool

	stopped  atomic.Bool
	shutdown sync.Once
	// shutdownErr is guarded by shutdown.
	shutdownErr error
}

var _ sdktrace.SpanProcessor = (*SpanProcessor)(nil)

// The rings of a SpanProcessor.
const (
	threadRing = iota
	goroutineRing
	numRings
)

// active is the SpanProcessor of this process, or nil. There is one because there is
// one process context to advertise it in, and one label pointer on each goroutine.
var active atomic.Pointer[SpanProcessor]

// building is held while a SpanProcessor comes up: nobody may find one that is not
// whole yet.
var building sync.Mutex

// NewSpanProcessor returns a SpanProcessor that publishes the active span by the
// carriers that opts choose, and advertises them in the process context, in whatever
// order that and the SpanProcessor come up.
//
// Where the process has a SpanProcessor already nothing changes, opts included: who has
// that one can add keys of attributes to it, see [SpanProcessor.AddAttributeKeys].
//
// A carrier that this Go runtime does not allow for, or whose memory the kernel does not
// let be mapped, is left off; [SpanProcessor.Err] says why. The error wraps [ErrAlreadyPublishing], or [errors.ErrUnsupported] where
// nothing can be published; else it names the option that cannot be met, what keeps
// the advertisement from being published, or the system call that failed.
func NewSpanProcessor(opts ...Option) (*SpanProcessor, error) {
	p, refusedKeys, err := newSpanProcessor(newConfig(opts))
	if err != nil {
		return nil, fmt.Errorf("publish active spans: %w", err)
	}
	p.refuse(refusedKeys)
	return p, nil
}

func newSpanProcessor(c config) (_ *SpanProcessor, refusedKeys int, err error) {
	building.Lock()
	defer building.Unlock()
	if active.Load() != nil {
		return nil, 0, ErrAlreadyPublishing
	}
	p := &SpanProcessor{runtime: c.runtime}
	p.table = newTable(p.evict)
	keys, refusedKeys := p.keys.Load().Append(c.keys...)
	p.keys.Store(keys)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.closeRings())
		}
	}()
	withRuntime, _ := ringoption.WithRuntime(c.runtime).(ringbuf.Option)
	common := []ringbuf.Option{ringbuf.WithCapacity(c.capacity), ringbuf.WithAttributeSpace(c.space), withRuntime}
	if c.threadSlots {
		opts := common
		if c.layout1 {
			opts = append(slices.Clip(opts), ringbuf.WithLayout1(), ringbuf.WithAttributeSpace(0))
		}
		if err := p.openRing(threadRing, "thread slots are", opts); err != nil {
			return nil, 0, err
		}
	}
	if c.goroutineSlots {
		if _, refused := c.runtime.Offset(goruntime.GGoid); refused != nil {
			p.off("goroutine slots are", refused)
		} else if err := p.openRing(goroutineRing, "goroutine slots are", append(common, ringbuf.WithIndex(ringbuf.ByGoroutine))); err != nil {
			return nil, 0, err
		}
	}
	if c.goroutineRecord {
		refused := gorecord.Available(c.runtime)
		p.records = refused == nil
		p.off("goroutine record is", refused)
	}
	if p.rings == [numRings]*ringbuf.Ring{} && !p.records {
		return nil, 0, errors.Join(errors.New("no carrier is on"), p.refused)
	}
	if err := p.advertise(); err != nil {
		return nil, 0, err
	}
	active.Store(p)
	return p, refusedKeys, nil
}

// openRing maps a ring. If the kernel refuses that its carrier is off; the error is about an
// option.
func (p *SpanProcessor) openRing(which int, carrier string, opts []ringbuf.Option) error {
	ring, err := ringbuf.New(opts...)
	if refused := syscall.Errno(0); err != nil && !errors.As(err, &refused) {
		return err
	}
	p.rings[which] = ring
	p.off(carrier, err)
	return nil
}

// off notes why a carrier is off, if it is. The others are none the worse for it.
func (p *SpanProcessor) off(carrier string, reason error) {
	if reason != nil {
		p.refused = errors.Join(p.refused, fmt.Errorf("%s off: %w", carrier, reason))
	}
}

// WithPublishing is [sdktrace.WithSpanProcessor] with a [NewSpanProcessor]. An option
// cannot return an error: it goes to [otel.Handle], and so does the reason for each
// carrier that is left off; the provider is none the worse for it. Where the process
// has a SpanProcessor already, the provider shares that one, and of opts only
// [WithAttributeKeys] counts, whose keys are added; the Shutdown of either provider ends
// it for both.
func WithPublishing(opts ...Option) sdktrace.TracerProviderOption {
	p, err := NewSpanProcessor(opts...)
	switch {
	case errors.Is(err, ErrAlreadyPublishing):
		p = active.Load()
		if err := p.AddAttributeKeys(newConfig(opts).keys...); err != nil {
			otel.Handle(err)
		}
	case err != nil:
		otel.Handle(err)
	case p.Err() != nil:
		otel.Handle(p.Err())
	}
	return sdktrace.WithSpanProcessor(p)
}

// Err returns why carriers that were asked for are off, all reasons joined, or nil.
func (p *SpanProcessor) Err() error {
	if p == nil {
		return nil
	}
	return p.refused
}

// AddAttributeKeys publishes attributes with more keys from now on, see
// [WithAttributeKeys]; keys that are published already are passed over. They are
// advertised first, and never taken back before Shutdown, after which this does nothing.
// Spans that have started before show what they have shown so far. Slots have room for attributes only if
// the SpanProcessor came up with some, see [WithAttributeSpace].
//
// The error says why the keys cannot be advertised, such as
// [resourcepublisher.ErrTooLarge]; then nothing has changed. That there is no room for
// more than 256 is no error: see [SpanProcessor.RefusedAttributeKeys].
func (p *SpanProcessor) AddAttributeKeys(keys ...attribute.Key) error {
	if p == nil {
		return nil
	}
	refused, err := p.addKeys(keys)
	if err != nil {
		return fmt.Errorf("publish attribute keys: %w", err)
	}
	p.refuse(refused)
	return nil
}

func (p *SpanProcessor) addKeys(keys []attribute.Key) (refused int, err error) {
	building.Lock()
	defer building.Unlock()
	if p.stopped.Load() {
		return 0, nil
	}
	more, refused := p.keys.Load().Append(keys...)
	if more != p.keys.Load() {
		if err := resourcepublisher.SetAttributes(keyMapAttribute(more)); err != nil {
			return 0, err
		}
		p.keys.Store(more)
	}
	return refused, nil
}

// refuse counts keys for which there is no room, and reports the first ones.
func (p *SpanProcessor) refuse(keys int) {
	if keys == 0 {
		return
	}
	p.refusedKeys.Add(int64(keys))
	if !p.toldRefused.Swap(true) {
		otel.Handle(fmt.Errorf("publish attribute keys: %d of them are refused, there are %d already", keys, scope.MaxKeys))
	}
}

// RefusedAttributeKeys returns how many keys were refused since there were 256 already;
// one that is tried again counts again.
func (p *SpanProcessor) RefusedAttributeKeys() int {
	if p == nil {
		return 0
	}
	return int(p.refusedKeys.Load())
}

// attributesOf returns the attributes of ctx that are published, or nil.
func (p *SpanProcessor) attributesOf(ctx context.Context) *gorecord.Attributes {
	return p.keys.Load().Of(ctx)
}

// installed returns the record that is installed on the calling goroutine, or nil.
func (p *SpanProcessor) installed() *gorecord.Record {
	if !p.records {
		return nil
	}
	return gorecord.Installed()
}

// OnStart shows the span on the calling goroutine. ctx is the context that the span
// was started with.
func (p *SpanProcessor) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || p.stopped.Load() {
		return
	}
	// Fields are assigned one by one, here and below: a struct that is made somewhere
	// else and copied at once would hold up the processor.
	var l live
	// From then on they are read in l: registers do not outlive the calls below.
	k, traceFlags, child := sdkspan.Started(s)
	l.shows.TraceIDHigh, l.shows.TraceIDLow = k.TraceIDHigh, k.TraceIDLow
	l.shows.SpanID, l.shows.LocalRootSpanID, l.shows.TraceFlags = k.SpanID, k.SpanID, traceFlags
	l.origin = originOf(p.runtime.GoroutineID(), l.shows.TraceFlags)
	var outer uint64
	if child && p.hasRings() {
		outer = p.follow(s, &l)
	}
	var with carried
	if keys := p.keys.Load(); keys != nil {
		with.attributes = keys.Of(ctx)
		l.shows.Attributes = with.attributes.Encoded()
	}

	var places [numRings]ringbuf.Place
	var shown [numRings]uint64
	if r := p.rings[threadRing]; r != nil {
		places[threadRing], shown[threadRing] = r.Swap(&l.shows)
	}
	if r := p.rings[goroutineRing]; r != nil {
		places[goroutineRing], shown[goroutineRing] = r.Swap(&l.shows)
	}
	if outer != 0 && shown[threadRing] != outer && shown[goroutineRing] != outer && (!p.records || gorecord.Current() != outer) {
		l.resumes = 0
	}
	if p.records {
		with.record = gorecord.Begin(l.shows.TraceIDHigh, l.shows.TraceIDLow, l.shows.SpanID, l.shows.TraceFlags, with.attributes)
		with.attributes = nil // the record has them
	}
	if !p.table.Reserve(l.shows.SpanID, &l.span) {
		// It could not be taken back at its end.
		with.record.End()
		for i, r := range p.rings {
			if r != nil {
				r.Replace(places[i], l.shows.SpanID, nil)
			}
		}
		return
	}
	l.store(with, &places)
	if p.stopped.Load() {
		p.end(&l.span)
	}
}

// hasRings reports whether there are slots: only they need to know of parents, records
// lead back to one another.
func (p *SpanProcessor) hasRings() bool {
	return p.rings[threadRing] != nil || p.rings[goroutineRing] != nil
}

// follow has a span that starts follow its parent, if that is local and live, and
// returns the id of that or 0: the goroutine is to go back to it if it shows it. A
// remote parent is somebody else's, also where its id is known here.
func (p *SpanProcessor) follow(s sdktrace.ReadWriteSpan, child *live) (parent uint64) {
	k, remote := sdkspan.Parent(s)
	if remote || k.TraceIDHigh != child.shows.TraceIDHigh || k.TraceIDLow != child.shows.TraceIDLow {
		return 0
	}
	var l span
	if p.table.Find(k, &l) {
		child.shows.LocalRootSpanID, child.resumes = atomic.LoadUint64(&l.Data().localRoot), l.Ref()
		if !l.Changed() {
			return k.SpanID
		}
	}
	// It is over or has been evicted, or it is not recorded: only it would know.
	child.shows.LocalRootSpanID, child.resumes = 0, 0
	return 0
}

// OnEnd takes the span back, wherever it is shown.
func (p *SpanProcessor) OnEnd(s sdktrace.ReadOnlySpan) {
	if p == nil {
		return
	}
	var l span
	k, _ := sdkspan.Ended(s)
	if p.table.Find(k, &l) && l.Claim() {
		p.withdraw(&l)
		return
	}
	// It was evicted or never shown, or somebody is about to take it back: that may take
	// until after the end.
	p.table.Claimed(k.SpanID, p.hasten)
}

// ForceFlush does nothing: there is nothing that waits.
func (p *SpanProcessor) ForceFlush(context.Context) error { return nil }

// Shutdown takes everything back: the advertisement, the spans that are still shown,
// and the slots. It does so even when ctx is done, since it does not wait for
// anything; ctx is not used. Spans may start and end meanwhile and afterwards; they
// are not shown. Later calls return what the first one did.
func (p *SpanProcessor) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	p.shutdown.Do(func() {
		p.stopped.Store(true)
		// Who starts a span adds it to the table and then looks whether all has
		// stopped, and the processor may do the latter first. This stops the world:
		// whoever has not seen by then that all has stopped has added by then.
		runtime.ReadMemStats(new(runtime.MemStats))
		building.Lock() // nobody adds keys to it any more
		err := p.withdrawAdvertisement()
		building.Unlock()
		p.table.All(p.end)
		p.shutdownErr = errors.Join(err, p.closeRings())
		active.CompareAndSwap(p, nil)
	})
	return p.shutdownErr
}

func (p *SpanProcessor) closeRings() error {
	var errs []error
	for _, r := range p.rings {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

// find looks for a span of this process, fills l with it, and reports whether it is
// live.
func (p *SpanProcessor) find(sc trace.SpanContext, l *live) bool {
	id := sdkspan.Of(sc)
	return sc.HasTraceID() && !id.Remote && p.table.Find(id.Key, &l.span) && l.load()
}

// shows reports whether the calling goroutine shows a span, by any carrier.
func (p *SpanProcessor) shows(id uint64) bool {
	if p.records && gorecord.Current() == id {
		return true
	}
	for _, r := range p.rings {
		if r != nil && r.Shown() == id {
			return true
		}
	}
	return false
}

// end ends the life of a span, unless somebody else does.
func (p *SpanProcessor) end(l *span) {
	if l.Claim() {
		p.withdraw(l)
	}
}

// hasten takes a span back whose entry somebody else has claimed, who has that before
// them too. What the entry holds may be another span's by now: nothing is taken back
// that is not of the one with this id.
func (p *SpanProcessor) hasten(l *span) {
	if r := l.Pointers().record.Get(); r.Shows(l.ID) {
		r.EndAsGuest()
	}
	for i, r := range p.rings {
		at := &l.Data().places[i]
		for n := range at {
			if place, _ := placeOf(atomic.LoadUint32(&at[n])); r != nil {
				r.Replace(place, l.ID, nil)
			}
		}
	}
}

// withdraw takes a span back whose entry is claimed, and gives that back. Where the
// goroutine that started the span shows it, its parent is shown again, if that goroutine was
// showing it before and it is live; elsewhere nothing is.
func (p *SpanProcessor) withdraw(l *span) {
	e := l.Data()
	// Else the pointers are nil. They are in memory of their own, which is not even looked at.
	pointed := p.records || p.keys.Load() != nil
	here := (pointed || e.resumes != 0) && p.isHere(e.origin)
	var record *gorecord.Record
	if pointed {
		record = l.Pointers().record.Get()
	}
	if e.resumes == 0 {
		p.clear(l)
	} else {
		p.resume(l, record, here)
	}
	if pointed {
		record.EndOn(here)
		l.Pointers().drop()
	}
	l.Free()
}

// isHere reports whether the calling goroutine is the one that started a span, or neither
// is known.
func (p *SpanProcessor) isHere(o origin) bool { return o.goid() == p.runtime.GoroutineID() }

// resume has slots go back to the parent of a span whose entry is claimed, or if that is
// over show nothing. It is called before the span's record is over; here says whether the
// calling goroutine is the one that started the span.
func (p *SpanProcessor) resume(l *span, record *gorecord.Record, here bool) {
	e := l.Data()
	var parent live
	ok := p.table.Follow(e.resumes, &parent.span) && parent.load()
	if ok && p.keys.Load() != nil {
		parent.shows.Attributes = parent.shownWith(record.Outer())
	}
	here = here && ok && e.origin.goid() != 0
	for i, r := range &p.rings {
		if r == nil {
			continue
		}
		var now ringbuf.Place
		if here {
			// The goroutine goes on with the parent where it is now, which need not
			// be where it has shown the span. On the thread that it was on before it
			// blocked, the slot may be another goroutine's by now, and tell nothing any
			// more: then its record does.
			if now = r.SwapOver(l.ID, &parent.shows); now == 0 && p.records && gorecord.Current() == l.ID {
				now = r.Store(&parent.shows)
			}
			if now != 0 {
				parent.keepHere(i, r, now, parent.origin.goid() != e.origin.goid())
			}
		}
		places := &e.places[i] // most often there is one, which does so now
		if place, _ := placeOf(atomic.LoadUint32(&places[0])); place != now || atomic.LoadUint32(&places[1]) != 0 {
			p.resumeElsewhere(i, r, l, &parent, ok, now)
		}
	}
}

// resumeElsewhere has the slots of a ring go back to the parent, or show nothing if that is
// not ok, but for the place that does so now.
func (p *SpanProcessor) resumeElsewhere(ring int, r *ringbuf.Ring, l *span, parent *live, ok bool, now ringbuf.Place) {
	e := l.Data()
	for n := range e.places[ring] {
		place, guest := placeOf(atomic.LoadUint32(&e.places[ring][n]))
		if place == 0 {
			return // they are noted in their order
		}
		if place == now || !r.Shows(place, l.ID) {
			continue
		}
		// It may be a guest's also where it is not noted so: the goroutine that
		// started the span may have come late to note that it was there before.
		if !ok || guest || r.ShownBy(place, e.origin.goid()) != l.ID {
			r.Replace(place, l.ID, nil)
		} else if r.Replace(place, l.ID, &parent.shows) {
			parent.keep(ring, r, place, parent.origin.goid() != e.origin.goid())
		}
	}
}

// evict takes a span back that has to give way to another one, and whose entry is
// claimed. Nothing is shown in its stead: it is another goroutine's, which may just be
// ending the parent and would not see that this is shown again.
func (p *SpanProcessor) evict(l *span) {
	l.Pointers().record.Get().EndOn(p.isHere(l.Data().origin))
	p.clear(l)
	l.Pointers().drop()
}

// clear has no slot show a span whose entry is claimed.
func (p *SpanProcessor) clear(l *span) {
	e := l.Data()
	if r := p.rings[threadRing]; r != nil {
		e.places[threadRing].clear(r, l.ID)
	}
	if r := p.rings[goroutineRing]; r != nil {
		e.places[goroutineRing].clear(r, l.ID)
	}
}

// show shows a live span on the calling goroutine, in a ring, with attributes. A guest is a goroutine
// other than the one that started the span, which does not go on with its parent when
// it ends.
func (p *SpanProcessor) show(ring int, l *live, attributes []byte, guest bool) {
	r := p.rings[ring]
	l.shows.Attributes = attributes
	if place := r.Store(&l.shows); place != 0 {
		l.keepHere(ring, r, place, guest)
	}
}

// isGuest reports whether the calling goroutine is not the one that started a span, or
// that is not known.
func (p *SpanProcessor) isGuest(l *live) bool {
	return l.origin.goid() == 0 || l.origin.goid() != p.runtime.GoroutineID()
}
