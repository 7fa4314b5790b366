// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

// The contract of attribution (docs/design/0001-span-path.md) as a model: which spans a
// goroutine is in, the innermost last.
type model struct {
	chain []int
	// saved are the chains from before each Attach.
	saved [][]int
	// slot is whether the goroutine has shown anything itself, and relabelled whether the
	// user has replaced its labels since.
	slot, relabelled bool
}

// actor is a goroutine that does what it is told, on a thread of its own.
type actor struct {
	model

	do       chan func()
	done     chan struct{}
	attached []Attachment
}

func newActor(inherits func(start func())) *actor {
	a := &actor{do: make(chan func()), done: make(chan struct{})}
	inherits(func() {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for f := range a.do {
				f()
				a.done <- struct{}{}
			}
			close(a.done)
		}()
	})
	return a
}

func (a *actor) run(f func()) {
	a.do <- f
	<-a.done
}

func (a *actor) stop() {
	close(a.do)
	<-a.done
}

// program is a random program, and what the model says of it.
type program struct {
	*service

	random *rand.Rand
	spans  []trace.Span
	ctxs   []context.Context
	live   []bool
	// starter is which actor has started each span, or nobody if it has attached the span
	// somewhere else since.
	starter []int
	// under are the chains that they were started in.
	under  [][]int
	actors []*actor
	log    []string
}

// maxDepth is that of chains: a span names three around it, so that all of a chain is known
// whatever ends first.
const maxDepth = 4

// nobody is no actor.
const nobody = -1

// named returns those spans of a chain that the cell of a span in it names.
func named(chain []int) []int { return chain[max(0, len(chain)-wire.Enclosing):] }

// nearest returns the id of the innermost live span of a chain, or 0.
func (p *program) nearest(chain []int) uint64 {
	for _, n := range slices.Backward(chain) {
		if p.live[n] {
			return number(p.spans[n])
		}
	}
	return 0
}

// check compares what each carrier shows of each goroutine with what the model says.
func (p *program) check(t *testing.T) bool {
	t.Helper()
	for n, a := range p.actors {
		in, want := p.nearest(a.chain), shown{}
		if top := len(a.chain) - 1; a.slot && top >= 0 {
			// A slot names one span. What is around it is in the cell, as it was for the
			// goroutine that has started the span, when it did.
			slot := in
			if last := a.chain[top]; !p.live[last] {
				if slot = 0; p.starter[last] == n {
					slot = p.nearest(p.under[last])
				}
			}
			want.thread, want.goroutine = slot, slot
		}
		if !a.relabelled {
			want.record = in
		}
		if p.rings[threadRing] == nil {
			want.thread = 0
		}
		var got shown
		a.run(func() { got = p.shown(t) })
		if !assert.Equal(t, want, got, "goroutine %d", n) {
			return false
		}
	}
	return true
}

// leaveOver has a goroutine that shows another span leave those for good that are over.
func (p *program) leaveOver(a *actor) {
	for len(a.chain) > 0 && !p.live[a.chain[len(a.chain)-1]] {
		a.chain = a.chain[:len(a.chain)-1]
	}
}

// step does one thing at random.
func (p *program) step() {
	n := p.random.IntN(len(p.actors))
	a := p.actors[n]
	say := func(format string, args ...any) {
		p.log = append(p.log, fmt.Sprintf("%d: ", n)+fmt.Sprintf(format, args...))
	}
	some := -1
	if len(p.spans) > 0 {
		some = max(0, len(p.spans)-1-p.random.IntN(8))
		some = min(some, len(p.spans)-1)
	}
	switch p.random.IntN(9) {
	case 0, 1, 2:
		if len(a.chain) >= maxDepth {
			return
		}
		ctx := context.Background()
		if some >= 0 && p.random.IntN(4) > 0 {
			ctx = p.ctxs[some]
		}
		say("start %d", len(p.spans))
		a.run(func() {
			ctx, span := p.start(ctx)
			p.ctxs, p.spans, p.live = append(p.ctxs, ctx), append(p.spans, span), append(p.live, true)
		})
		p.starter = append(p.starter, n)
		p.under = append(p.under, nil)
		p.leaveOver(a)
		p.under[len(p.spans)-1] = slices.Clone(a.chain)
		a.chain = append(slices.Clip(a.chain), len(p.spans)-1)
		a.slot, a.relabelled = true, false
	case 3, 4, 5:
		if some < 0 {
			return
		}
		say("end %d", some)
		was := p.live[some]
		p.live[some] = false
		a.run(func() { p.spans[some].End() })
		if at := slices.Index(a.chain, some); was && at >= 0 {
			a.chain = a.chain[:at]
			p.leaveOver(a)
			a.slot, a.relabelled = true, false
		} else if top := len(a.chain) - 1; was && top >= 0 && !p.live[a.chain[top]] {
			p.leaveOver(a)
			a.slot, a.relabelled = true, false
		}
	case 6:
		if len(a.chain) >= maxDepth || some < 0 {
			return
		}
		p.leaveOver(a)
		ctx, chain := context.Background(), []int(nil)
		if p.random.IntN(3) > 0 {
			ctx = p.ctxs[some]
			if p.live[some] {
				chain = append(slices.Clone(a.chain), some)
				top := len(a.chain) - 1
				if p.starter[some] == n && (top < 0 || a.chain[top] != some) && !slices.Equal(named(a.chain), named(p.under[some])) {
					p.starter[some] = nobody // Its cell does not say what it goes back to.
				}
			}
		}
		say("attach %d: %v", some, chain)
		a.run(func() { a.attached = append(a.attached, Attach(ctx)) })
		a.saved = append(a.saved, a.chain)
		a.chain, a.slot, a.relabelled = chain, true, false
	case 7:
		if len(a.attached) == 0 {
			return
		}
		say("detach")
		last := len(a.attached) - 1
		a.run(func() { a.attached[last].Detach() })
		a.chain = a.saved[last]
		p.leaveOver(a)
		a.attached, a.saved = a.attached[:last], a.saved[:last]
		a.slot, a.relabelled = true, false
	default:
		switch {
		case p.random.IntN(2) == 0 && a.slot:
			user := pprof.Labels("user", strconv.Itoa(p.random.IntN(2)))
			if p.random.IntN(2) == 0 {
				say("labels %v", user)
				a.run(func() { pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), user)) })
			} else {
				say("pprof.Do %v", user)
				a.run(func() { pprof.Do(context.Background(), user, func(context.Context) {}) })
			}
			a.relabelled = true
			// Around a span that was attached only the labels knew what there is. The cell
			// knows what was around the span when it was started.
			if len(a.chain) > 0 {
				top, under := a.chain[len(a.chain)-1], []int(nil)
				if p.starter[top] == n {
					under = p.under[top]
				}
				a.chain = append(slices.Clone(under), top)
			}
		case len(p.actors) < 6 && !a.relabelled:
			say("go %d", len(p.actors))
			b := newActor(a.run)
			b.chain = slices.Clone(a.chain)
			p.actors = append(p.actors, b)
		}
	}
}

// Random programs: after each step every carrier shows of every goroutine what the contract
// says. The seed of a program that fails runs it again.
func TestContract(t *testing.T) {
	for name, opts := range map[string][]Option{
		"mapped": nil,
		// The race detector watches memory of the heap alone.
		"heap":            {withHeap()},
		"hidden labels":   {WithLabels(LabelsHidden)},
		"names and keys":  {WithSpanNames(true), WithAttributeKeys("tenant")},
		"no thread slots": {WithThreadSlots(false)},
	} {
		t.Run(name, func(t *testing.T) { testContract(t, serve(t, opts...)) })
	}
}

func testContract(t *testing.T, s *service) {
	first, programs := uint64(1), testenv.Rounds(50, long(2000))
	for seed := first; seed < first+uint64(programs); seed++ {
		p := &program{service: s, random: rand.New(rand.NewPCG(seed, 0))}
		for range 3 {
			p.actors = append(p.actors, newActor(func(start func()) {
				goruntime.SetLabels(nil)
				start()
			}))
		}
		ok := true
		for step := 0; step < 60 && ok; step++ {
			p.step()
			ok = p.check(t)
		}
		for _, span := range p.spans {
			span.End()
		}
		for _, a := range p.actors {
			a.stop()
		}
		if !ok {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(p.log, "\n"))
		}
		goruntime.SetLabels(nil)
	}
	s.assertNowhere(t)
}
