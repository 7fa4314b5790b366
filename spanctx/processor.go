// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
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
	// refused is why carriers that were asked for are off.
	refused error

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

// NewSpanProcessor returns a SpanProcessor that publishes the active span by the
// carriers that opts choose, and advertises them in the process context, in whatever
// order that and the SpanProcessor come up.
//
// A carrier that this Go runtime does not allow for is left off; [SpanProcessor.Err]
// says why. The error wraps [ErrAlreadyPublishing], or [errors.ErrUnsupported] where
// nothing can be published; else it names the option that cannot be met, what keeps
// the advertisement from being published, or the system call that failed.
func NewSpanProcessor(opts ...Option) (*SpanProcessor, error) {
	p, err := newSpanProcessor(newConfig(opts))
	if err != nil {
		return nil, fmt.Errorf("publish active spans: %w", err)
	}
	return p, nil
}

func newSpanProcessor(c config) (_ *SpanProcessor, err error) {
	p := &SpanProcessor{runtime: c.runtime, table: newTable()}
	if !active.CompareAndSwap(nil, p) {
		return nil, ErrAlreadyPublishing
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.closeRings())
			active.Store(nil)
		}
	}()
	common := []ringbuf.Option{ringbuf.WithCapacity(c.capacity), ringbuf.WithRuntime(c.runtime)}
	if c.threadSlots {
		opts := common
		if c.layout1 {
			opts = append(opts[:len(opts):len(opts)], ringbuf.WithLayout1())
		}
		if p.rings[threadRing], err = ringbuf.New(opts...); err != nil {
			return nil, err
		}
	}
	if c.goroutineSlots {
		if _, refused := c.runtime.Offset(goruntime.GGoid); refused != nil {
			p.refused = errors.Join(p.refused, fmt.Errorf("goroutine slots are off: %w", refused))
		} else if p.rings[goroutineRing], err = ringbuf.New(append(common, ringbuf.WithIndex(ringbuf.ByGoroutine))...); err != nil {
			return nil, err
		}
	}
	if c.goroutineRecord {
		refused := gorecord.Available(c.runtime)
		p.records = refused == nil
		if refused != nil {
			p.refused = errors.Join(p.refused, fmt.Errorf("goroutine record is off: %w", refused))
		}
	}
	if p.rings == [numRings]*ringbuf.Ring{} && !p.records {
		return nil, errors.Join(errors.New("no carrier is on"), p.refused)
	}
	return p, p.advertise()
}

// WithPublishing is [sdktrace.WithSpanProcessor] with a [NewSpanProcessor]. An option
// cannot return an error: it goes to [otel.Handle], and so does the reason for each
// carrier that is left off; the provider is none the worse for it. Where the process
// has a SpanProcessor already, the provider shares that one, and opts do not count;
// the Shutdown of either provider ends it for both.
func WithPublishing(opts ...Option) sdktrace.TracerProviderOption {
	p, err := NewSpanProcessor(opts...)
	switch {
	case errors.Is(err, ErrAlreadyPublishing):
		p = active.Load()
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

// OnStart shows the span on the calling goroutine.
func (p *SpanProcessor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || p.stopped.Load() {
		return
	}
	span := spanOf(s.SpanContext())
	st := state{
		traceIDHigh: span.TraceIDHigh, traceIDLow: span.TraceIDLow, localRoot: span.SpanID,
		origin: origin(p.runtime.GoroutineID(), span.TraceFlags),
	}
	// A remote parent is somebody else's, also where its id is known here.
	if parent := s.Parent(); parent.HasSpanID() && !parent.IsRemote() {
		if l, ok := p.find(parent); ok {
			st.localRoot = l.localRoot
			if p.shows(l.id) {
				st.resumes = l.id
			}
		}
	}
	span.LocalRootSpanID = st.localRoot

	var places [numRings]ringbuf.Place
	for i, r := range p.rings {
		if r != nil {
			places[i] = r.Store(&span)
		}
	}
	l, ok := p.table.add(span.SpanID, st, places, p.withdraw)
	if !ok {
		// It could not be taken back at its end.
		for i, r := range p.rings {
			if r != nil {
				r.Replace(places[i], span.SpanID, nil)
			}
		}
		return
	}
	if p.records {
		r := gorecord.Begin(span.TraceIDHigh, span.TraceIDLow, span.SpanID, span.TraceFlags)
		l.record.Store(r)
		if l.ended() {
			r.End()
		}
	}
	if p.stopped.Load() {
		p.end(&l)
	}
}

// OnEnd takes the span back, wherever it is shown.
func (p *SpanProcessor) OnEnd(s sdktrace.ReadOnlySpan) {
	if p == nil {
		return
	}
	if l, ok := p.find(s.SpanContext()); ok {
		p.end(&l)
	}
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
		err := p.withdrawAdvertisement()
		p.table.all(p.end)
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

// find returns a span that is live.
func (p *SpanProcessor) find(sc trace.SpanContext) (live, bool) {
	id, traceID := sc.SpanID(), sc.TraceID()
	l, ok := p.table.find(binary.BigEndian.Uint64(id[:]))
	return l, ok && l.traceIDHigh == binary.BigEndian.Uint64(traceID[:8]) &&
		l.traceIDLow == binary.BigEndian.Uint64(traceID[8:])
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
func (p *SpanProcessor) end(l *live) {
	if l.claim() {
		p.withdraw(l)
		l.free()
	}
}

// withdraw takes a span back whose entry is claimed. Where it is shown its parent is
// shown again, if the goroutine was showing that before and it is live, or nothing.
func (p *SpanProcessor) withdraw(l *live) {
	l.record.Load().End()
	var parent live
	ok := false
	if l.resumes != 0 {
		parent, ok = p.table.find(l.resumes)
	}
	for i, r := range p.rings {
		if r == nil {
			continue
		}
		if ok && r.Shown() == l.id {
			// The goroutine goes on with the parent where it is now, which need not
			// be where it has shown the span.
			p.show(i, &parent)
		}
		for n := range l.entry.places[i] {
			place := ringbuf.Place(atomic.LoadUint32(&l.entry.places[i][n]))
			if !r.Shows(place, l.id) {
				continue
			}
			if !ok || !parent.note(i, r, place) {
				r.Replace(place, l.id, nil)
				continue
			}
			span := parent.span()
			r.Replace(place, l.id, &span)
			takeBackIfEnded(r, &parent, place)
		}
	}
}

// show shows a live span on the calling goroutine, in a ring.
func (p *SpanProcessor) show(ring int, l *live) {
	r, span := p.rings[ring], l.span()
	place := r.Store(&span)
	if place == 0 {
		return
	}
	if !l.note(ring, r, place) {
		// Its end would not find it here.
		r.Replace(place, l.id, nil)
		return
	}
	takeBackIfEnded(r, l, place)
}

// takeBackIfEnded does what the end of a span has not done if it looked at the span's
// places before this one was noted. Its end changes the version first and then looks
// at the places; those who show the span note the place first and then look at the
// version: one of them sees the other.
func takeBackIfEnded(r *ringbuf.Ring, l *live, place ringbuf.Place) {
	if l.ended() {
		r.Replace(place, l.id, nil)
	}
}

func spanOf(sc trace.SpanContext) ringbuf.Span {
	return ringbuf.SpanOf(sc.TraceID(), sc.SpanID(), [8]byte{}, byte(sc.TraceFlags()))
}
