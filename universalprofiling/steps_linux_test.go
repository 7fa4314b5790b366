// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/elastic"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/spansteps"
)

// runSteps runs a program in the notation of package spansteps, with these additional operations:
//
//	%   the goroutine moves to a thread that publishes no span
//	#   forget the local roots of ended spans
//
// A goroutine is in the span that its thread's record publishes. Local roots are transactions.
func runSteps(t *testing.T, s *service, program string) {
	t.Helper()
	records := s.library.Records()
	shown := func() uint64 { return spanpath.MemoryOrder(records.SpanID(s.goid())) }
	spansteps.Run(t, spansteps.Publisher{
		Tracer: s.tracer, Refresh: func(ctx context.Context) { spanpath.Refresh(ctx, false) },
		Attach:   func(ctx context.Context) func() { return spanpath.Attach(ctx).Detach },
		EndAgain: func(span trace.Span) { s.path.End(span.(sdktrace.ReadOnlySpan)) },
		Evict: func(ctx context.Context) {
			r := s.path.Find(ctx)
			assert.True(t, s.path.Evict(r))
			s.cells.Free(r)
		},
		Active: func(ctx context.Context) (span, transaction uint64) {
			var n spantable.Span
			if span = shown(); s.cells.Load(s.path.Find(ctx), &n) && span == n.SpanID {
				transaction = n.LocalRootSpanID
			}
			return span, transaction
		},
		Operations: map[string]func(){
			"%": func() {
				for id := shown(); id != 0; id = shown() {
					records.Clear(s.goid(), spanpath.MemoryOrder(id))
				}
			},
			"#": s.cells.ForgetRoots,
		},
	}, program)
	s.cells.All(func(r spantable.Ref) { assert.Fail(t, "live", "cell %d", r.Index()) })
}

// TestSteps checks that the record of a thread publishes the span that its goroutine started or attached last. When
// another goroutine ends that span, the record must be cleared. The nearest live ancestor must be published when the
// first goroutine starts or ends its next span.
func TestSteps(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t)
	for name, program := range map[string]string{
		"children first":       "+r=r +c<r=c/r +g<c=g/r -g=c/r -c=r -r=",
		"parent first":         "+r +c<r=c/r -r= -c=",
		"in between":           "+r +c<r +g<c=g/r -c=r -g=r -r=",
		"ended elsewhere":      "+r +c<r=c/r 2-c 1= +o<c=o/r -o=r -r=",
		"parent elsewhere":     "+r +c<r +g<c 2-c 1=g/r -g=r -r=",
		"three elsewhere":      "+r +a<r +b<a +c<b=c/r 2-b 1=c/r 2-a 1=c/r -c=r 2-r 1= +n<c=n/r -n=",
		"by a goroutine in it": "+r +c<r=c/r 2+o<r=o/r 2-c=o/r 1= 2-o= 1= -r=",
		"another span's end":   "+o +i<o=i/o 2-i 2+x 1= -x=o -o=",
		"ended twice":          "+r +c<r -c -c=r -r=",
		"evicted":              "+r +c<r +g<c=g/r *c=g/r -c=g/r 2*g 1= -g=r +n=n -n=r -r=",

		// The transaction is the local root, even if that has ended. It is never the child itself.
		"below an ended span":          "+r=r +c<r=c/r -c=r +l<c=l/r -l=r -r=",
		"below an ended root":          "+r -r= +l<r=l/r -l=",
		"in an ended trace":            "+r +c<r -c -r +l<c=l/r # +n<c=n/0 -n=l/r -l=",
		"remote parent":                "+x -x= +r&x=r +c<r=c/r -c +l<c=l/r -l -r= +m<r=m/r -m +n<c=n/r -n # +o<c=o/0 -o=",
		"remote parent in the process": "+x=x +r&x=r -r=x -x=",

		"attach nothing":       "+o=o @= !=o -o=",
		"attach an ended span": "2+r 2+v<r 2-v +o @v= !=o -o=",
		"attach by ids":        "2+r +o @?r=r !=o 2-r 1@?r= !=o -o=",
		"attach by remote ids": "2+r +o @&r= !=o -o=",
		"attach in turn":       "2+r +o @r=r +c<r=c/r @o=o !=c/r -c=r 2-o 1=r !=",
		"detach elsewhere":     "2+r +o @r=r 3!1= 1=r -o",
		"ended by a third":     "+r 2@r=r 3-r 2= 1= 2+n=n 2-n= 2!=",
		"ended while attached": "+r 2@r=r 2-r= 1= 2+n=n 2-n= 2!=",
		"evicted and attached": "+r 2@r=r 3*r 2= 1= 2+n=n 2-n= 2!=",

		"refresh":              "+r +c<r=c/r %= ~r=c/r -c=r %= ~r=r -r= ~r=",
		"refresh with nothing": "+r +c<r ~=c/r ~r=c/r ~=c/r -c=r -r=",

		// The contract of docs/design/0001-span-path.md, in cases that a thread record alone cannot decide.
		"a starter goes back, though another has attached": "+o +a 2@a 1-a=o 2! -o=",
		"a starter leaves what another has attached":       "+a +b<a 2@b 1-a= 2! 1-b=",
		"a dropped root in a span":                         "+a ~=a -a=",
		"refresh after an end elsewhere":                   "2+q 1+a +b<q 2-b 1= ~a=a -a= 2-q=",
		"its own span attached":                            "+o +a @a -a= ! -o=",
		"its own span attached, with a child":              "+o +a @a +c<a -c=a -a= ! -o=",
		"detached elsewhere, then ended":                   "+o +a @a 2!1 1-a= -o=",
	} {
		t.Run(name, func(t *testing.T) { runSteps(t, s, program) })
	}
	requireReported(t, handled, "65536 spans are live")
}

// TestSampler checks that the sampler calls Refresh for a dropped span, because the thread may still publish another
// goroutine's span. Inside a span, that span must stay published.
func TestSampler(t *testing.T) {
	s := newService(t)
	dropping, keeping := NewSampler(sdktrace.NeverSample()), NewSampler(sdktrace.AlwaysSample())
	assert.Equal(t, "UniversalProfiling{AlwaysOffSampler}", dropping.Description())
	locked(func() {
		ctx, root := s.tracer.Start(t.Context(), "root")
		nothing := sdktrace.SamplingParameters{ParentContext: t.Context()}
		assert.Equal(t, sdktrace.RecordAndSample, keeping.ShouldSample(nothing).Decision)
		s.shownHere(root)
		assert.Equal(t, sdktrace.Drop, dropping.ShouldSample(nothing).Decision)
		s.shownHere(root)
		dropping.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx})
		s.shownHere(root)
		root.End()

		records, other := s.library.Records(), s.goid()+1<<15
		goruntime.Pin()
		assert.True(t, records.Store(&elastic.Span{SpanID: 1}, other))
		goruntime.Unpin()
		assert.EqualValues(t, 1, records.SpanID(other))
		dropping.ShouldSample(nothing)
		assert.Zero(t, records.SpanID(other), "the thread still publishes the other goroutine's span")
	})
	// After Shutdown, these calls must do nothing.
	assert.NoError(t, s.processor.Shutdown(t.Context()))
	dropping.ShouldSample(sdktrace.SamplingParameters{ParentContext: t.Context()})
}
