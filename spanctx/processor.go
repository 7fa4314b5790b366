// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/spanpath"
)

// SpanProcessor publishes the active span of each goroutine. It may be registered with several
// TracerProviders, and a process may have several. It is safe for concurrent use. A nil SpanProcessor
// does nothing.
type SpanProcessor struct {
	config config
	handle *providers.Handle
	// joined are the carriers that have published the spans of the processor's providers last.
	joined atomic.Pointer[carriers]
}

var _ sdktrace.SpanProcessor = (*SpanProcessor)(nil)

//nolint:gochecknoinits // internal/providers must not import this package
func init() {
	providers.Spans.Apply = apply
	providers.Spans.Gone = spanpath.ProviderGone
}

// apply publishes spans while there is a reference. The lock of package providers is held.
func apply(newest *providers.Reference) error {
	p := current.Load()
	switch {
	case newest == nil && p == nil:
		return nil
	case newest == nil:
		return p.shutdown()
	}
	if p == nil {
		owner := newest.Handle.Owner.(*SpanProcessor) //nolint:errcheck,forcetypeassert // only this package opens such handles
		if err := owner.config.open(); err != nil {
			return fmt.Errorf("publish active spans: %w", err)
		}
		p = current.Load()
		owner.joined.Store(p)
	}
	for owner := range providers.Spans.Owners {
		if o := owner.(*SpanProcessor); o.joined.Swap(p) != p { //nolint:errcheck,forcetypeassert // the same
			if err := p.addKeys(o.config.keys); err != nil {
				return err
			}
		}
	}
	return nil
}

// Current returns the newest SpanProcessor that publishes spans, for example the one created by
// [WithPublishing], or nil if there is none. Use it to call [SpanProcessor.Stats] or
// [SpanProcessor.AddAttributeKeys], which do nothing for a nil SpanProcessor.
func Current() *SpanProcessor {
	defer providers.Lock()()
	newest := providers.Spans.Newest()
	if newest == nil || current.Load() == nil {
		return nil
	}
	return newest.Handle.Owner.(*SpanProcessor) //nolint:errcheck,forcetypeassert // the same
}

// New returns a SpanProcessor that publishes the active span through the carriers chosen by opts, and
// advertises them: in the process context of package resourcepublisher or, while there is no process
// context, in a separate mapping. If that mapping cannot be created, the reason goes to [otel.Handle].
//
// All SpanProcessors of a process publish together, with the options of the first one. Keys of
// [WithAttributeKeys] are combined. If another option differs, New fails and names it.
//
// A carrier stays off if this Go runtime does not support it or if the kernel refuses to map its memory;
// [SpanProcessor.Stats] has the reason. The goroutine table and slots of layout 2 also need the span
// table. If goroutine ids cannot be read in this version of Go, thread slots name the span that was last
// published on the thread, and everything else is off. If no carrier works, New fails. The
// error wraps [errors.ErrUnsupported] if nothing can be published on this platform. Otherwise it says
// which option is invalid or differs, why no carrier is on, or why the advertisement cannot be
// published.
func New(opts ...Option) (*SpanProcessor, error) {
	if err := differs(opts); err != nil {
		return nil, err
	}
	return open(newConfig(opts))
}

// open returns a SpanProcessor that holds a provisional reference.
func open(c config) (*SpanProcessor, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("publish active spans: %w", err)
	}
	p := &SpanProcessor{config: c}
	var err error
	if p.handle, err = providers.Spans.Open(p, nil); err != nil {
		return nil, err
	}
	return p, nil
}

// differs returns an error that names the options that differ from those with which spans are published.
func differs(opts []Option) error {
	p := current.Load()
	if p == nil {
		return nil
	}
	asked := p.config
	for _, o := range opts {
		asked = o.apply(asked)
	}
	return p.differs(asked)
}

// WithPublishing publishes the spans of a TracerProvider. It is short for
// [sdktrace.WithSpanProcessor] with the result of [ForProvider].
func WithPublishing(opts ...Option) sdktrace.TracerProviderOption {
	return sdktrace.WithSpanProcessor(ForProvider(opts...))
}

// ForProvider is [New] for programs that run with or without profilers: errors go to [otel.Handle], and
// so does the reason for each carrier that stays off. The provider works in any case. If nothing can be
// published, the result is nil. Use ForProvider for a provider that already exists:
//
//	tp.RegisterSpanProcessor(spanctx.ForProvider())
//
// Options that differ from those of the first SpanProcessor have no effect, which is reported.
//
// ForProvider returns nil if the environment variable OTELCTX_SPANS_DISABLED=true is set, unless
// [WithEnabled] overrides it. The package documentation lists the variables.
func ForProvider(opts ...Option) *SpanProcessor {
	c := newConfig(opts)
	if !c.enabled {
		return nil
	}
	first := current.Load() == nil
	if err := differs(opts); err != nil {
		otel.Handle(err)
	}
	p, err := open(c)
	if err == nil && first {
		err = p.Stats().Off
	}
	if err != nil {
		otel.Handle(err)
	}
	return p
}

// Stats says where spans are published, and what is left out: see [SpanProcessor.Stats].
type Stats struct {
	// Carriers lists the active carriers: thread_slots, goroutine_table, goroutine_record.
	Carriers []string
	// Off joins the reasons why requested carriers, or the tables of spans and names, are off. It is nil if
	// all of them are on.
	Off error
	// RefusedAttributeKeys counts the attribute keys that were rejected because there were already 256. A
	// key that is rejected repeatedly counts each time.
	RefusedAttributeKeys int64
	// SpansWithoutName counts how often a span was published without its name or endpoint because the
	// limit of 4,095 names had been reached: at its start, or when [Attach] or [Refresh] published its
	// current name. See [WithSpanNames].
	SpansWithoutName int64
	// Evicted counts live spans that are no longer published because there were more than 65,536.
	Evicted uint64
}

// Stats returns the current state and counts, which all SpanProcessors that publish together share. It
// is zero while nothing is published.
func (p *SpanProcessor) Stats() Stats {
	if p == nil {
		return Stats{}
	}
	return current.Load().stats()
}

// AddAttributeKeys adds keys to those of [WithAttributeKeys]. They apply to spans that start
// afterwards. New keys are advertised before attributes are published with them, and duplicates are
// ignored. Keys cannot be removed. The space for attributes in slots is fixed at construction: see
// [WithSlotAttributeSpace]. After Shutdown, AddAttributeKeys does nothing.
//
// If the keys cannot be advertised, AddAttributeKeys returns an error, such as
// [resourcepublisher.ErrTooLarge], and changes nothing. Keys above the limit of 256 are not an
// error, but counted in [Stats].
func (p *SpanProcessor) AddAttributeKeys(keys ...attribute.Key) error {
	if p == nil {
		return nil
	}
	defer providers.Lock()()
	c := current.Load()
	if c == nil || !p.handle.HasReference() {
		return nil
	}
	if err := c.addKeys(keys); err != nil {
		return err
	}
	p.config = WithAttributeKeys(keys...).apply(p.config)
	return nil
}

// OnStart publishes the span for the calling goroutine. ctx is the context passed to Start.
func (p *SpanProcessor) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || s == nil {
		return
	}
	r := p.handle.Started(s)
	c := current.Load()
	if c == nil || r == nil {
		return
	}
	if c.profileIDs {
		s.SetAttributes(profileIDKey.String(s.SpanContext().SpanID().String()))
	}
	c.path.Start(ctx, s, r)
}

// OnEnd ends the span for every reader. It may run on any goroutine. If the calling goroutine is in
// the span, or in a descendant that it has started, OnEnd publishes the goroutine's new active span.
func (p *SpanProcessor) OnEnd(s sdktrace.ReadOnlySpan) {
	if p == nil || s == nil {
		return
	}
	if path := p.lastPath(); path != nil {
		path.End(s)
	}
}

// lastPath returns the path that publishes spans. If nothing is published any more, it returns the last
// one, because the calling goroutine may still have labels of a span.
func (p *SpanProcessor) lastPath() *spanpath.Path {
	c := current.Load()
	if c == nil {
		c = p.joined.Load()
	}
	if c == nil {
		return nil
	}
	return c.path
}

// ForceFlush does nothing, because nothing is buffered.
func (p *SpanProcessor) ForceFlush(context.Context) error { return nil }

// Shutdown stops publishing the spans of the provider that is being shut down. If that was the last one,
// it withdraws the advertisement, ends the published spans, and closes the slots and tables. ctx is not
// used, because Shutdown does not wait. Spans may start and end during and after Shutdown; they are not
// published.
//
// If it is not a TracerProvider that calls Shutdown, the SpanProcessor stops for good.
func (p *SpanProcessor) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	return p.handle.Shutdown()
}
