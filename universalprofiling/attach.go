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

// Attachment restores the span that was published before [Attach]: see [Attachment.Detach].
type Attachment struct {
	i            *integration
	goid         uint64
	before, span cells.Ref
}

// Attach publishes the span of ctx on the calling goroutine's thread until [Attachment.Detach]. Use
// it on goroutines that work for a span started by another goroutine, such as the workers of a pool:
//
//	defer universalprofiling.Attach(ctx).Detach()
//
// The span must be live and have been started in this process; otherwise Attach publishes no span.
// ctx may contain the span itself or only its ids, provided that they are not remote.
//
// Once the span has ended, on any goroutine, it is no longer published. When a span that the
// attached goroutine has started ends, the attached span is published again. Attach does nothing if
// there is no Integration.
func Attach(ctx context.Context) Attachment {
	i := active.Load()
	if i.inactive() {
		return Attachment{}
	}
	a := Attachment{i: i, goid: i.runtime.Goroutine().Goid, span: i.find(ctx)}
	a.before, _ = i.position(a.goid)
	i.attachCounts.add(a.span, 1)
	i.publishRef(a.span, a.goid)
	return a
}

// Detach publishes the span that the goroutine was in before [Attach] or, if that has ended, its
// nearest live ancestor. Call it on the goroutine that called Attach, and detach nested attachments
// in reverse order. On another goroutine it publishes nothing. On the zero Attachment it does
// nothing.
func (a Attachment) Detach() {
	if a.i == nil {
		return
	}
	if !a.i.inactive() && a.i.runtime.Goroutine().Goid == a.goid {
		a.i.publishRef(a.before, a.goid)
	}
	a.i.attachCounts.add(a.span, -1)
}

// Refresh publishes the calling goroutine's span again, on the thread that the goroutine is running
// on now. That span is the one that the goroutine started or attached last, or its nearest live
// ancestor. If ctx has no live span that records in this process, Refresh publishes no span until
// the goroutine starts or ends a span, or calls Attach, Detach or Refresh.
//
// Call it after blocking calls: Go may have moved the goroutine to a thread that publishes another
// goroutine's span. Refresh does nothing if there is no Integration.
func Refresh(ctx context.Context) {
	i := active.Load()
	if i.inactive() {
		return
	}
	goid := i.runtime.Goroutine().Goid
	current, _ := i.position(goid)
	if i.find(ctx) != 0 {
		i.publishRef(current, goid)
		return
	}
	hidden := apmlib.Span{Ref: uint64(current)}
	hidden.Hide()
	i.records.Store(&hidden)
}

// find returns the live span whose ids are those of the span in ctx, or 0 if there is none or the span
// in ctx is remote.
func (i *integration) find(ctx context.Context) cells.Ref {
	if k, ok := sdkspan.Local(ctx); ok {
		return i.table.Find(k)
	}
	return 0
}

// attachCounts holds, for each cell, the number of goroutines that have attached its span. While it
// is not zero, goroutines other than the one that started the span may have published it, and their
// records must be cleared when the span ends. A count may stay above zero for some time after the
// span has ended.
type attachCounts [cells.Capacity]atomic.Int32

func (g *attachCounts) any(ref cells.Ref) bool { return g[ref.Index()%cells.Capacity].Load() != 0 }

func (g *attachCounts) add(ref cells.Ref, n int32) {
	if ref != 0 {
		g[ref.Index()%cells.Capacity].Add(n)
	}
}

// NewSampler returns a sampler that decides like next, and calls [Refresh] for each span that next
// drops. The SDK does not call processors for such a span, so without Refresh the thread would keep
// publishing its previous span, which may belong to another goroutine's transaction. Samples in a
// dropped child of a live span are attributed to the live span.
//
// A nil next stands for the sampler of a provider without a sampler option, which
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG choose.
func NewSampler(next sdktrace.Sampler) sdktrace.Sampler {
	if next == nil {
		next = sdkspan.DefaultSampler()
	}
	return sampler{next}
}

type sampler struct{ sdktrace.Sampler }

// ShouldSample calls the wrapped sampler, and Refresh if it drops the span.
func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := s.Sampler.ShouldSample(p)
	if r.Decision == sdktrace.Drop {
		Refresh(p.ParentContext)
	}
	return r
}

// Description returns UniversalProfiling{...} around the description of the wrapped sampler.
func (s sampler) Description() string {
	return fmt.Sprintf("UniversalProfiling{%s}", s.Sampler.Description())
}
