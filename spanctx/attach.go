// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// Attachment is what [Attach] has changed.
type Attachment struct {
	p *SpanProcessor
	// id is the span that was attached.
	id uint64
	// before are the spans that the rings showed, or 0.
	before [numRings]uint64
	// own are the attributes of the span that was attached as slots showed them before,
	// if that is known.
	own *gorecord.Attributes
	// labels are those of before, if hasLabels.
	labels    gorecord.Saved
	hasLabels bool
}

// Attach shows the span of ctx on the calling goroutine, until Detach or the end of the
// span. It is for goroutines that work for a span that another goroutine has started,
// such as those of a pool:
//
//	defer spanctx.Attach(ctx).Detach()
//
// The span is shown with the context-scoped attributes of ctx, of those whose keys are
// published, also where the goroutine shows it already: that is how to publish what has
// been added to a context since the span was started.
//
// It does nothing if ctx has no span, or one that is over, remote, or not recording,
// or if no SpanProcessor is active. In slots a span is shown at up to three places at a
// time; the goroutine record has no such limit.
func Attach(ctx context.Context) Attachment {
	p := active.Load()
	if p == nil {
		return Attachment{}
	}
	var l live
	if !p.find(trace.SpanContextFromContext(ctx), &l) {
		return Attachment{}
	}
	a := Attachment{p: p, id: l.ID}
	attributes := p.attributesOf(ctx)
	a.own = l.showWith(attributes)
	for i, r := range p.rings {
		if r != nil {
			a.before[i] = r.Shown()
			p.show(i, &l, attributes.Encoded(), p.isGuest(&l))
		}
	}
	if r := l.Pointers().record.Get(); r != nil && !l.Changed() {
		a.labels, a.hasLabels = r.Attach(attributes), true
		// Its end changes the version by compare-and-swap before it looks at the records.
		if l.Changed() {
			r.EndAsGuest()
			a.labels.Detach()
		}
	}
	return a
}

// Detach shows again what the goroutine showed before [Attach], as far as that is not
// over. It must be called on the same goroutine, and attachments be detached in the
// reverse order. The zero Attachment detaches nothing.
func (a Attachment) Detach() {
	if a.p == nil {
		return
	}
	if a.hasLabels {
		a.labels.Detach()
	}
	installed := a.p.installed()
	for i, r := range a.p.rings {
		if r == nil {
			continue
		}
		var before live
		if a.p.table.Find(sdkspan.Key{SpanID: a.before[i]}, &before.span) && before.load() {
			attributes := before.shownWith(installed)
			if attributes == nil && before.ID == a.id {
				attributes = a.own.Encoded()
			}
			a.p.show(i, &before, attributes, a.p.isGuest(&before))
		} else if r.Shown() == a.id {
			r.Clear()
		}
	}
}

// Go runs fn with ctx on a goroutine of its own, with the span of ctx attached until fn
// returns. It returns at once, and fn runs whether there is anything to show or not.
func Go(ctx context.Context, fn func(context.Context)) {
	go func() {
		defer Attach(ctx).Detach()
		fn(ctx)
	}()
}

// Refresh shows the span of ctx in the slot of the thread that the calling goroutine
// is on now. It is for thread slots only: after a call that blocked, Go may run the
// goroutine on another thread, whose slot knows nothing of it until a span starts or
// ends. It does nothing unless the goroutine is one that shows the span, or started
// it. The attributes stay those that the goroutine's record has, if that is of the span;
// else they are those of ctx.
func Refresh(ctx context.Context) {
	p := active.Load()
	if p == nil || p.rings[threadRing] == nil {
		return
	}
	var l live
	if p.find(trace.SpanContextFromContext(ctx), &l) && (l.origin.goid() != 0 && l.origin.goid() == p.runtime.GoroutineID() || p.shows(l.ID)) {
		attributes := p.attributesOf(ctx).Encoded()
		if r := p.installed(); r.Shows(l.ID) {
			attributes = r.Attributes()
		}
		p.show(threadRing, &l, attributes, p.isGuest(&l))
	}
}
