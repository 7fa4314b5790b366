// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"regexp"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// steps is a program in a small language. Each step consists of a goroutine (1 if omitted), an
// operation, and optionally the span that the goroutine must be in afterwards:
//
//	+c<p   start span c with the context of p; +c^p as a new root; +c&p with p as a remote parent;
//	       +c?p with a context that has the ids of p alone
//	-c     end span c; again, the SDK calls the processor again
//	@c     attach the context of c, @ an empty one; ?c a context that has the ids of c alone
//	!      detach what was attached last; !2 what goroutine 2 attached last, which stays attached there
//	~c     refresh with the context of c
//	%      replace all labels, as pprof.SetGoroutineLabels does
//	#      Do something else with labels
//	>2     start goroutine 2, which inherits; >2<c by Go with the context of c; other goroutines inherit nothing
//	*c     evict span c, as another goroutine's Start does
//	=c/r   it is in span c, whose local root is r: c itself if left out, 0 if unknown; = alone is no span
type steps struct {
	*service
	t      *testing.T
	actors map[string]*actor
	spans  map[string]trace.Span
	ctxs   map[string]context.Context
}

var stepSyntax = regexp.MustCompile(`^(\d?)(?:([-+@?!~%#>*])(\w*)(?:([<^&?])(\w+))?)?(?:(=)(\w*)(?:/(\w+))?)?$`)

func runSteps(t *testing.T, s *service, text string) {
	t.Helper()
	r := &steps{s, t, map[string]*actor{}, map[string]trace.Span{}, map[string]context.Context{"": context.Background()}}
	done := ""
	for step := range strings.FieldsSeq(text) {
		parts := stepSyntax.FindStringSubmatch(step)
		require.NotNil(t, parts, "step %s", step)
		name := parts[1]
		if name == "" {
			name = "1"
		}
		a := r.actors[name]
		if a == nil {
			a = newActor(inNothing)
			r.actors[name] = a
		}
		r.step(a, parts[2], parts[3], parts[4], parts[5])
		done += " " + step
		if parts[6] != "" && !r.isIn(a, parts[7], parts[8]) {
			t.Errorf("after%s", done)
			break
		}
	}
	for _, span := range r.spans {
		span.End()
	}
	for _, a := range r.actors {
		a.stop()
	}
	s.assertNowhere(t)
}

func (r *steps) step(a *actor, what, name, how, parent string) {
	a.run(func() {
		switch what {
		case "+":
			ctx := r.ctxs[parent]
			var opts []trace.SpanStartOption
			switch how {
			case "^":
				opts = append(opts, trace.WithNewRoot())
			case "&":
				ctx = trace.ContextWithRemoteSpanContext(ctx, r.spans[parent].SpanContext())
			case "?":
				ctx = trace.ContextWithSpanContext(ctx, r.spans[parent].SpanContext())
			}
			r.ctxs[name], r.spans[name] = r.start(ctx, opts...)
		case "-":
			if span := r.spans[name]; span.IsRecording() {
				span.End()
			} else {
				span.End()
				r.p.OnEnd(span.(sdktrace.ReadOnlySpan))
			}
		case "@":
			a.attached = append(a.attached, Attach(r.ctxs[name]))
		case "?":
			a.attached = append(a.attached, Attach(trace.ContextWithSpanContext(context.Background(), r.spans[name].SpanContext())))
		case "!":
			if name != "" {
				other := r.actors[name].attached
				other[len(other)-1].Detach()
				return
			}
			last := len(a.attached) - 1
			a.attached[last].Detach()
			a.attached = a.attached[:last]
		case "~":
			Refresh(r.ctxs[name])
		case "%":
			pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("user", "label")))
		case "#":
			before := r.current(r.t)
			Do(context.Background(), pprof.Labels("user", "label"), func(context.Context) {
				assert.Equal(r.t, before, r.current(r.t), "in Do")
			})
		case ">":
			started := newActor(func(start func()) {
				if how == "" {
					start()
				}
			})
			if how != "" {
				Go(r.ctxs[parent], func(context.Context) { started.loop() })
			}
			r.actors[name] = started
		case "*":
			assert.True(r.t, r.p.evict(r.p.find(r.ctxs[name])))
		}
	})
}

// isIn reports whether carriers publish a span with this local root for a goroutine.
func (r *steps) isIn(a *actor, span, root string) bool {
	if root == "" {
		root = span
	}
	want, wantRoot, got, gotRoot := uint64(0), uint64(0), uint64(0), uint64(0)
	if span != "" {
		if want = number(r.spans[span]); root != "0" {
			wantRoot = number(r.spans[root])
		}
	}
	a.run(func() {
		if got = r.current(r.t); got == want && want != 0 {
			gotRoot = readCell(r.t, r.p.cells.Address(), uint64(r.p.find(r.ctxs[span]))).localRoot
		}
	})
	return assert.Equal(r.t, []uint64{want, wantRoot}, []uint64{got, gotRoot}, "span and local root")
}

func TestSteps(t *testing.T) {
	configs := map[string][]Option{
		"everything": nil, "table": {WithGoroutineRecord(false), WithThreadSlots(false)},
		"record": {WithThreadSlots(false), WithGoroutineTable(false)}, "threads": {WithGoroutineRecord(false), WithGoroutineTable(false)},
	}
	for name, text := range map[string]string{
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
		"below two that are over": "+a +b<a -b +c<b -c -a= +d<c=d/0 -d= +e?a=e/0 -e=",
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
		"attach an identity":              "2+a ?a= !=",
		"attach one's parent":             "+a +b<a @a=a !=b/a -b=a",
		"attached span ends elsewhere":    "2+a 2+b<a @b=b/a 3-b 1=a 2=a 1!= 2-a 2=",
		"attached span ends here":         "2+a 2+b<a @b=b/a -b=a 2=a !=",
		"attached span ends at its start": "2+a 2+b<a @b=b/a 2-b=a !=",
		"attached in a span of one's own": "2+a 2+b<a +o @b=b/a 2+x 3-b 1=a !=o -o=",
		"detached elsewhere":              "+o 2+a @a=a 3!1= 1=a !=o -o= 2-a",
		"own span attached":               "+a +b<a @b=b/a -b=a !=a -a=",
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
	} {
		for config, opts := range configs {
			t.Run(name+"/"+config, func(t *testing.T) { runSteps(t, serve(t, opts...), text) })
		}
	}
	// Cases that need goroutine records.
	for name, text := range map[string]string{
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
	} {
		t.Run(name, func(t *testing.T) { runSteps(t, serve(t), text) })
	}
}
