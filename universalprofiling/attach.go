// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"fmt"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/apmlib"
	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// Attachment is what [Attach] has changed.
type Attachment struct {
	i            *Integration
	goid         uint64
	before, span cells.Ref
}

// Attach shows the span of ctx on the calling goroutine's thread until [Attachment.Detach]. It
// shows nothing if ctx has no span that records in this process and is not over. It is for
// goroutines that work for a span which another goroutine has started, such as those of a
// pool:
//
//	defer universalprofiling.Attach(ctx).Detach()
//
// When the span ends, on whatever goroutine, it is not shown any more. Spans that the goroutine
// starts meanwhile are inside of it. Attach does nothing if there is no Integration.
func Attach(ctx context.Context) Attachment {
	i := active.Load()
	if i.off() {
		return Attachment{}
	}
	a := Attachment{i: i, goid: i.runtime.Goroutine().Goid, span: i.find(ctx)}
	a.before, _ = i.position(a.goid)
	i.guests.add(a.span, 1)
	i.goTo(a.span, a.goid)
	return a
}

// Detach shows again what the goroutine was in before [Attach], or if that is over what is live
// around it. It must be called on the same goroutine, and attachments be detached in the
// reverse order. On another goroutine it changes nothing there. The zero Attachment detaches
// nothing.
func (a Attachment) Detach() {
	if a.i == nil {
		return
	}
	if !a.i.off() && a.i.runtime.Goroutine().Goid == a.goid {
		a.i.goTo(a.before, a.goid)
	}
	a.i.guests.add(a.span, -1)
}

// Refresh shows again what the calling goroutine is in, on the thread that it is on now.
// That is the span that it has started or attached last, or the live span around that. If
// ctx has no span that records in this process and is not over, it shows nothing. That holds
// until a span starts or ends here or Refresh is called again.
//
// Call it after what may block: Go may have moved the goroutine to a thread that shows another
// goroutine's span. It does nothing if there is no Integration.
func Refresh(ctx context.Context) {
	i := active.Load()
	if i.off() {
		return
	}
	goid := i.runtime.Goroutine().Goid
	at, _ := i.position(goid)
	if i.find(ctx) != 0 {
		i.goTo(at, goid)
		return
	}
	hidden := apmlib.Span{Ref: uint64(at)}
	hidden.Hide()
	i.records.Store(&hidden)
}

// find returns the live, recording, local span of ctx, or 0.
func (i *Integration) find(ctx context.Context) cells.Ref {
	if k, ok := sdkspan.Recording(ctx); ok {
		return i.table.Find(k)
	}
	return 0
}

// guests counts for each cell the goroutines that have attached its span, also for a while
// after its end: their records show it too.
type guests [cells.Capacity]atomic.Int32

func (g *guests) any(ref cells.Ref) bool { return g[ref.Index()%cells.Capacity].Load() != 0 }

func (g *guests) add(ref cells.Ref, n int32) {
	if ref != 0 {
		g[ref.Index()%cells.Capacity].Add(n)
	}
}

// NewSampler returns a sampler that decides as next does, and calls [Refresh] for each span
// that next drops. Processors do not see such a span. Without Refresh the thread would go on
// showing what it showed before, which may be another goroutine's transaction. A dropped child
// of a live span counts for that span.
//
// nil stands for the sampler that a provider has without an option, which
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG choose.
func NewSampler(next sdktrace.Sampler) sdktrace.Sampler {
	if next == nil {
		next = sdkspan.DefaultSampler()
	}
	return sampler{next}
}

type sampler struct{ sdktrace.Sampler }

// ShouldSample decides as the sampler does.
func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := s.Sampler.ShouldSample(p)
	if r.Decision == sdktrace.Drop {
		Refresh(p.ParentContext)
	}
	return r
}

// Description names the sampler.
func (s sampler) Description() string {
	return fmt.Sprintf("UniversalProfiling{%s}", s.Sampler.Description())
}
