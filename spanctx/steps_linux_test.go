// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"net"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/testing/spansteps"
)

// runSteps runs a program in the notation of package spansteps, with these additional operations:
//
//	%   replace all labels, as pprof.SetGoroutineLabels does
//	#   call Do with other labels
//	_   another goroutine overwrites the slot of the thread
//	$   another goroutine takes the goroutine's entry
//	(   move to another thread, which has another slot
//	)   move back to the first thread, whose slot is unchanged
//	|   dial; during the call, the goroutine must be in no span
func runSteps(t *testing.T, s *service, program string) {
	t.Helper()
	user := pprof.Labels("user", "label")
	left := map[uint64]*ring.Span{} // the saved slots, by goroutine; only one step runs at a time
	spansteps.Run(t, spansteps.Publisher{
		Tracer: s.tracer, Refresh: Refresh, Go: Go,
		Attach: func(ctx context.Context) func() { return Attach(ctx).Detach },
		EndAgain: func(span trace.Span) {
			if recorded, ok := span.(sdktrace.ReadOnlySpan); ok {
				s.path.End(recorded)
			}
		},
		Evict: func(ctx context.Context) { assert.True(t, s.path.Evict(s.path.Find(ctx))) },
		Active: func(ctx context.Context) (span, localRoot uint64) {
			if span = s.current(t); span != 0 && span == number(trace.SpanFromContext(ctx)) {
				localRoot = readCell(t, s.cells.Address(), uint64(s.path.Find(ctx))).localRoot
			}
			return span, localRoot
		},
		With: func(ctx context.Context, attributes string) context.Context {
			return with(ctx, keysAndValues(attributes)...)
		},
		CheckAttributes: func(span trace.Span, attributes string) {
			s.assertAttributes(t, span, keysAndValues(attributes)...)
		},
		Operations: map[string]func(){
			"$": s.collide,
			"_": func() { s.storeSlot(new(ring.Span), 0) },
			"(": func() {
				if s.carriers.slots != nil {
					left[goid()] = s.slot()
					s.storeSlot(new(ring.Span), 1)
				}
			},
			")": func() {
				if s.carriers.slots != nil {
					s.storeSlot(left[goid()], 0)
				}
			},
			"|": func() {
				dial := func(context.Context, string, string) (net.Conn, error) {
					assert.Zero(t, s.current(t), "while it dials")
					return nil, net.ErrClosed
				}
				_, err := DialContext(dial)(context.Background(), "", "")
				assert.ErrorIs(t, err, net.ErrClosed)
			},
			"%": func() { pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), user)) },
			"#": func() {
				before := s.current(t)
				Do(context.Background(), user, func(context.Context) { assert.Equal(t, before, s.current(t), "in Do") })
			},
		},
	}, program)
	s.assertNowhere(t)
}

func (s *service) slot() *ring.Span {
	goruntime.Pin()
	defer goruntime.Unpin()
	self := s.carriers.runtime.Self()
	span, _, _, _ := s.carriers.slots.Load(uint64(self.TID)) //nolint:dogsled // only the span matters
	return &span
}

// storeSlot stores span in the calling thread's slot, for the calling goroutine if another is 0, and otherwise for a
// different goroutine.
func (s *service) storeSlot(span *ring.Span, another uint64) {
	if s.carriers.slots == nil {
		return
	}
	goruntime.Pin()
	defer goruntime.Unpin()
	self := s.carriers.runtime.Self()
	self.Goid += another
	s.carriers.slots.Store(uint64(self.TID), span, &self)
}

// keysAndValues splits "k=v,l=w" into its keys and values.
func keysAndValues(attributes string) []string {
	return strings.FieldsFunc(attributes, func(r rune) bool { return strings.ContainsRune("=,", r) })
}

func TestSteps(t *testing.T) {
	configs := map[string][]Option{
		"everything": nil, "table": {WithLabels(LabelsOff), WithThreadSlots(false)},
		"record": {WithThreadSlots(false), hideTable{}}, "threads": {WithLabels(LabelsOff), hideTable{}},
	}
	shared := map[string]string{
		"nested":       "= +a=a +b<a=b/a +c<b=c/a -c=b/a -b=a +d<a=d/a -d=a -a= +e=e -e=",
		"out of order": "+a +b<a +c<b -b=a -c=a -a= +d +e<d +f<e -d= -f= -e=",
		"deep":         "+a +b<a +c<b +d<c +e<d +f<e +g<f -g=f/a -e=d/a -a= -f=",
		"ended twice":  "+a +b<a -b -b=a +c<a -b=c/a -c -a -a=",
		// Overlapping siblings are not nested.
		"siblings here":           "+a +b<a +c<a -b=c/a -c=a +d<a +e<a -e=d/a -d=a -a=",
		"roots here":              "+a +b -a=b -b= +c +d -d=c -c=",
		"siblings end elsewhere":  "+a +b<a +c<a +d<a +e<a 2-b=  =e/a 2-c 2-d =e/a 2-e =a -a=",
		"last sibling first":      "+a +b<a +c<a +d<a 2-d 1=a 2-b 2-c 1=a +e<a=e/a -e=a -a=",
		"eight siblings":          "+r +a<r +b<r +c<r +d<r +e<r +f<r +g<r +h<r 2-a 2-h 1=r 2-g 2-f 2-e 2-d 2-c 2-b 1=r +i<r=i/r -i=r -r=",
		"siblings in a child":     "+a +b<a +c<b +d<a 2-d 1=a 2-c 1=a -a= -b=",
		"ended elsewhere":         "+a +b<a +c<b 2-c 1=b/a 2-b 1=a +d<a=d/a -d=a +e<a +f<e 2-f -e=a -a=",
		"all ended elsewhere":     "+a +b<a +c<b 2-b 1=c/a 2-a 1=c/a 2-c 1=",
		"parent elsewhere":        "+p 2+c<p=c/p 2-c= 2+d<p 3-d 2= 1=p -p=",
		"child elsewhere":         "+a +b<a 2+o=o 2-b=o 2-o= 1=a +c<a=c/a -c=a 2-a 1=",
		"another end goes back":   "+a +b<a 2-b 2+o -o=a -a=",
		"below one that is over":  "+a +b<a -b +c<b=c/a -c=a -a +d<a=d/a +e<d=e/a -e=d/a -d=",
		"below two that are over": "+a +b<a -b +c<b -c -a= +d<c=d/a -d= +e?a=e/0 -e=",
		"parent over, end apart":  "+a +b<a -b +c<b 2-c 1=a -a=",
		"new root":                "+a +b^a=b +c<b=c/b -c=b -b=a +d^a 2-d 1=a -a=",
		"new root in a new root":  "+a +b^a +c^b 2-c 1=b 2-b 1=a",
		"remote parent":           "+a +b&a=b -b=a +c&a +d<c=d/c 2-d 1=c 2-c 1= -a",
		"a loop that hands over":  "+a 2-a 1= +b=b +c=c 2-b 1=c 2-c 1=",
		"a loop in other traces":  "2+r 2+s +a<r=a/r +b<s=b/s 2-b 1= +c<r 2-a 2-c 1= -c",
		"a dispatcher":            "2+r 2+s +l=l +a<r=a/r 2-a 1= +b<s=b/s -b= -l=",
		"a dispatcher's children": "2+r +a<r +b<a 2-b 1=a/r 2-a",
		"siblings of a stranger":  "2+r +a<r +b<r +c<r 2-c 1= 2-b 2-a 1= +d<r 2-d 1=",
		"evicted":                 "+a +b<a *b -b=a -a=",
		"evicted parent":          "+a +b<a +c<b *b =c/a +d<b 2-d 1=a -c -a=",

		"attach":                          "2+a @a=a @a=a !=a != @= !=",
		"attach in a span":                "2+a +b=b @a=a !=b -b= @a +c<a=c/a -c=a !=",
		"Go":                              "2+a +o >3<a 3=a 3+b<a=b/a 3-b=a 2-a 3= 1=o -o=",
		"attach nothing":                  "+a @= +b=b -b= !=a -a=",
		"attach one that is over":         "+a +b<a -b @b= !=a -a= @a= !=",
		"attach by ids":                   "2+a +o @?a=a +b<a=b/a -b=a 2-a 1= !=o 1-o= @?a= !=",
		"attach by remote ids":            "2+a @&a= !=",
		"Go by ids":                       "+a >3?a 3=a 3+b<a=b/a 3-b=a 1-a 3=",
		"attach one's parent":             "+a +b<a @a=a !=b/a -b=a",
		"attached span ends elsewhere":    "2+a 2+b<a @b=b/a 3-b 1=a 2=a 1!= 2-a 2=",
		"attached span ends here":         "2+a 2+b<a @b=b/a -b=a 2=a !=",
		"attached span ends at its start": "2+a 2+b<a @b=b/a 2-b=a !=",
		"attached in a span of one's own": "2+a 2+b<a +o @b=b/a 2+x 3-b 1=a !=o -o=",
		"detached elsewhere":              "+o 2+a @a=a 3!1= 1=a !=o -o= 2-a",
		"own span attached":               "+a +b<a @b=b/a -b=a !=a -a=",
		"own span attached, parent ends":  "+a +b<a @b=b/a -a=b/a !=b/a -b=",
		"own root attached":               "+o +a @a=a -a= !=  -o=",
		"own span left and attached":      "+o +a +b<a @= @b=b/a -b=a != !=a -a=o -o=",
		"an event loop":                   "2+r 2+s +l @= +a<r=a/r @= +b<s=b/s !=a/r @a=a/r -a= != !=l -l= -b",
		"worker's own span":               "2+a @a=a +b<a=b/a 2-a 1=b/a -b= !=",
		"worker's child":                  "2+a 2+b<a @b +c<b=c/a -c=b/a !=",
		"a stream left open":              "2+a @a +b<a=b/a -a= -b= !=",
		"a stream of another job":         "2+a 2+s +w=w +b<a=b/a -s=b/a -a=w -b=w -w=",
		"detach from one that is over":    "2+r +a @r=r 3-a != @a= !=",
		"ended before the detach":         "+a +b<a @a=a -a= !=b/a -b=",
		"ended while attached":            "+a +b<a @a 2-b !=a -a=",
		"attached and siblings":           "2+a @a +b<a +c<a +d<a 2-d 1=a 2-b 2-c 1=a !=",
		"refresh on another thread":       "+a=a _ ~a=a ~a=a ~=a 2@a=a 2~a=a 2!= -a= ~a=",
		// After the goroutine has lost its entry, it may have left the span of the context, so no span is published. A
		// child that it starts then is known.
		"lost position":             "+a +b<a=b/a $ -a= -b=",
		"lost position, then child": "+a $ +b<a=b/a -b=a -a=",
		"dial":                      "|= +a |=a +b<a |=b/a -b=a -a= |=",
		"dial without inheriting":   "2+a |= 1+b=b |=b -b= 2-a",
	}
	run := func(programs map[string]string, opts ...Option) func(t *testing.T) {
		return func(t *testing.T) {
			s := serve(t, opts...)
			for name, text := range programs {
				t.Run(name, func(t *testing.T) { runSteps(t, s, text) })
			}
		}
	}
	runSampled := func(programs map[string]string, opts ...Option) func(t *testing.T) {
		return func(t *testing.T) {
			for name, sampler := range map[string]sdktrace.Sampler{"never": sdktrace.NeverSample(), "every second": new(everySecond)} {
				t.Run(name, func(t *testing.T) {
					s := serve(t, opts...).publishAll(t, sampler)
					for program, text := range programs {
						t.Run(program, func(t *testing.T) { runSteps(t, s, text) })
					}
				})
			}
		}
	}
	for config, opts := range configs {
		t.Run(config, run(shared, opts...))
		t.Run(config+", sampled", runSampled(shared, opts...))
	}
	withRecords := map[string]string{
		"inherited":                              "+a >2 2=a 2+b<a=b/a 2-b=a 3-a 2= 1=",
		"inherited, ended":                       "+a +b<a >2 2=b/a 3-b 2=a 1=a 2+c<a=c/a 2-c=a 1-a 2=",
		"inherited, ends it":                     "+a +b<a >2 2-b=a 1=a -a= 2=",
		"inherited by a stranger":                "3+r +a<r >2 4-a 1= 2=r 2+b<r=b/r 2-b=r 3-r 2=",
		"inherited, in turn":                     "+a +b<a >2 2>3 3=b/a 1-b 3=a 1-a 3=",
		"leaves what it started":                 "+a >2 2+b<a 1-a 2=b/a 2-b=",
		"labels":                                 "+a +b<a %=b/a -b=a % +c<a=c/a % -c=a ~a=a -a=",
		"labels, ended elsewhere":                "+a +b<a % 2-b 1=a ~a=a -a=",
		"labels of an heir":                      "+a >2 2%= 2~a=a 2%=a 1-a 2=",
		"Do":                                     "+a +b<a #=b/a -b=a #=a 2-a 1#=",
		"Do of an heir":                          "+a >2 2#=a 2+b<a=b/a 2-b=a 1-a 2=",
		"refresh with another":                   "+a +b<a ~a=b/a ~=b/a -b ~b=a -a ~a=",
		"refresh, another root ended elsewhere":  "+a +b 2-b 1= ~a=a -a=",
		"refresh, another request's child ended": "2+q 1+a +b<q 2-b 1= ~a=a -a= 2-q=",
		"refresh, explicitly in nothing":         "+a @= ~a= ! -a=",
		"refresh, unknown":                       "2+a ~a=a ~=a 2-a 1=",
		"refresh, unknown, by ids":               "2+a ~&a= ~?a=a 2-a 1=",
		"dial, inherited":                        "+a >2 2=a 2|= >3 3+b<a=b/a 3|=b/a 3-b 1=a -a=",
		"dial, attached":                         "+a 2@a 2|=a 2!= -a=",
		"labels, lost position":                  "+a % +b<a % $ -a= -b=",
		"labels, lost position, then child":      "+a % $ +b<a=b/a -b=a -a=",
	}
	t.Run("with records", run(withRecords))
	t.Run("with records, sampled", runSampled(withRecords))
	// Two threads share the only slot, which then names the span of another goroutine.
	for name, opts := range map[string][]Option{
		"everything": nil, "table": {WithLabels(LabelsOff), WithThreadSlots(false)}, "threads": {WithLabels(LabelsOff), hideTable{}},
	} {
		t.Run("one slot/"+name, run(map[string]string{"another's": "+o 2+s=s 2-s= 1-o="}, append(opts, WithSlotCapacity(1))...))
	}
	// With thread slots alone, a goroutine returns to a thread whose slot still names an earlier span of that goroutine.
	// The cell tells readers that the slot is out of date until the goroutine publishes there again.
	t.Run("slot left behind", run(map[string]string{
		"another span":           "+f ( -f +o )= +i<o=i/o -i=o -o=",
		"in a live one":          "+o ( +m<o )= +i<m=i/o -i=m/o -m=o -o=",
		"ended meanwhile":        "+o +i<o ( -i )= -o=",
		"inner ended elsewhere":  "+o +i<o 2-i 1( @ )= -o=",
		"moved, a lost position": "+o $ ( +i<o )= -o=",
	}, WithLabels(LabelsOff), hideTable{}))
}

// TestStepsWithAttributes checks that spans are published with the attributes of the contexts passed to Start and
// Attach, and that a goroutine that returns to a span publishes the same attributes as before.
func TestStepsWithAttributes(t *testing.T) {
	programs := map[string]struct {
		program string
		only    string // "records" or "slots"; all carriers if empty
	}{
		"of spans":                {"+a{k=1,hidden=2}=a{k=1} +b<a{m=3,k=4}=b/a{k=4,m=3} +c<b=c/a{k=4,m=3} -c=b/a{k=4,m=3} -b=a{k=1} +n=n{} -n +e<a=e/a{k=1} -e -a=", ""},
		"attached":                {"+a{k=1}=a{k=1} @a{l=2}=a{k=1,l=2} @a{l=3}=a{k=1,l=3} +s<a=s/a{k=1} -s=a{k=1,l=3} !=a{k=1,l=2} !=a{k=1} -a=", "records"},
		"attached, child":         {"+a{k=1} @a{l=2} +c<a{l=2}=c/a{k=1,l=2} ~c=c/a{k=1,l=2} ~c{k=3}=c/a{k=1,l=2} -c=a{k=1,l=2} ~a=a{k=1,l=2} !=a{k=1} -a=", "records"},
		"attached by a worker":    {"+a{k=1} 2@a{l=2}=a{k=1,l=2} 2+w<a{k=3}=w/a{k=3} 2-w=a 2!= 1=a{k=1} -a= @a{l=2}= !=", ""},
		"worker, back":            {"+a{k=1} 2@a{l=2} 2+w<a{k=3} 2-w=a{k=1,l=2} 2!= -a=", "records"},
		"attached, ends":          {"+a @a{k=1} @a{k=2}=a{k=2} 2-a 1= != !=", ""},
		"own span attached, ends": {"+a{k=1} @a{l=2} -a= !=", ""},
		// Without records, the attributes set by Attach are not remembered. The span's own attributes are published
		// instead.
		"attached, no record": {"+a{k=1} @a{l=2}=a{k=1,l=2} @a{l=3}=a{k=1,l=3} !=a{k=1} !=a{k=1} -a=", "slots"},
	}
	for carrier, opts := range carrierOptions() {
		t.Run(carrier, func(t *testing.T) {
			s := serve(t, append(opts, WithAttributeKeys("k", "l"), WithAttributeKeys("m"))...)
			sampled := s.publishAll(t, new(everySecond))
			for name, tt := range programs {
				if tt.only != "" && (tt.only == "slots") != (carrier == "slots") {
					continue
				}
				t.Run(name, func(t *testing.T) { runSteps(t, s, tt.program) })
				t.Run(name+", sampled", func(t *testing.T) { runSteps(t, sampled, tt.program) })
			}
		})
	}
}
