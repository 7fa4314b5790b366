// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/elastic"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/spansteps"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

var (
	programCount = flag.Int("programs", 0, "how many random programs TestContract runs in each configuration; 0 is few")
	firstSeed    = flag.Uint64("seed", 1, "seed of the first of them")
)

// The types below model which span a goroutine is in, according to docs/design/0001-span-path.md.
// Spans and goroutines are identified by their indices in the slices of model.

// none is the index for no span.
const none = -1

// in is the active span of a goroutine, or none. attached is true if the
// goroutine got there by Attach.
type in struct {
	span     int
	attached bool
}

var nothing = in{span: none}

type modelSpan struct {
	live    bool
	starter int
	// parent is the parent according to the SDK. ancestors are the ancestors by the context passed
	// to Start, nearest first.
	parent    int
	depth     int
	ancestors []int
	// previous is the active span of the starting goroutine at Start. dispatched is true if it was then in
	// none of the ancestors.
	previous   in
	dispatched bool
}

type modelGoroutine struct {
	// at is the active span that was last published. It is valid if published is true.
	at        in
	published bool
	// record is the span of the installed record, which the goroutine has either published or
	// inherited.
	record int
	// saved holds, for each element of attached, the active span that Detach restores.
	saved    []saved
	attached []Attachment
}

type saved struct {
	in
	record bool
}

type model struct {
	spans      []modelSpan
	goroutines []modelGoroutine
	// noRecords is true if goroutines have no records, so they inherit nothing.
	noRecords bool
}

// active returns the active span that goroutine g has published or inherited last, and whether it is known.
func (m *model) active(g int) (at in, known bool) {
	switch a := &m.goroutines[g]; {
	case a.published:
		return a.at, true
	case a.record != none:
		return in{span: a.record}, true
	default:
		return nothing, false
	}
}

// nearest returns the active span of goroutine g according to rule 3, if at was its last one and
// another goroutine may have ended that span.
func (m *model) nearest(g int, at in) in {
	if at.span == none || m.spans[at.span].live {
		return at
	}
	s := &m.spans[at.span]
	if s.starter == g && s.dispatched {
		return nothing
	}
	for _, ancestor := range s.ancestors {
		if m.spans[ancestor].live {
			if s.starter == g && !at.attached && s.previous.span == ancestor {
				return s.previous
			}
			return in{ancestor, at.attached}
		}
	}
	return nothing
}

func (m *model) publish(g int, at in) {
	a := &m.goroutines[g]
	a.at, a.published, a.record = at, true, at.span
	if m.noRecords {
		a.record = none
	}
}

// starts applies rule 1 when goroutine g starts a span. parent is the span of the context, or none.
func (m *model) starts(g, parent int, newRoot bool) {
	at, _ := m.active(g)
	at = m.nearest(g, at)
	s := modelSpan{live: true, starter: g, parent: parent, previous: at}
	if parent != none {
		s.depth = m.spans[parent].depth + 1
		if !m.spans[parent].live {
			parent = m.spans[parent].parent
		}
		if parent != none && m.spans[parent].live {
			s.ancestors = append([]int{parent}, m.spans[parent].ancestors...)
			s.ancestors = s.ancestors[:min(len(s.ancestors), wire.Ancestors)]
		}
	}
	if newRoot {
		s.parent = none
	}
	s.dispatched = len(s.ancestors) > 0 && !m.isIn(at.span, s.ancestors)
	m.spans = append(m.spans, s)
	m.publish(g, in{span: len(m.spans) - 1})
}

// isIn reports whether a goroutine whose active span is span is in one of spans, either directly or
// because span is a descendant.
func (m *model) isIn(span int, spans []int) bool {
	if span == none || slices.Contains(spans, span) {
		return span != none
	}
	return !m.spans[span].dispatched && slices.ContainsFunc(m.spans[span].ancestors, func(a int) bool { return slices.Contains(spans, a) })
}

// ends applies rules 2 and 3 when goroutine g ends span.
func (m *model) ends(g, span int) {
	ended := &m.spans[span]
	ended.live = false
	was, _ := m.active(g)
	at, left := was, false
	for at.span != none && at.span != span && !at.attached {
		if s := &m.spans[at.span]; s.starter != g || !slices.Contains(s.ancestors, span) {
			break
		}
		at, left = m.spans[at.span].previous, true
	}
	switch {
	case at.span == span && ended.starter == g && !at.attached:
		m.publish(g, m.nearest(g, ended.previous))
	case at.span == span || left || was.span != none && !m.spans[was.span].live:
		m.publish(g, m.nearest(g, at))
	}
}

// endsHere reports whether goroutine g, which ends span, has started it and is in it. The next span
// may then reuse the cell at once.
func (m *model) endsHere(g, span int) bool {
	at, _ := m.active(g)
	return at == in{span: span} && m.spans[span].starter == g
}

// needed reports whether some goroutine still needs the ancestors in the cell of an ended span: it
// did not start the span, and has no record that lists the ancestors.
func (m *model) needed(span int) bool {
	for i := range m.goroutines {
		a := &m.goroutines[i]
		if a.at.span == span && a.record != span && m.spans[span].starter != i ||
			slices.ContainsFunc(a.saved, func(s saved) bool { return s.span == span && !s.record }) {
			return true
		}
	}
	return slices.ContainsFunc(m.spans, func(s modelSpan) bool { return s.live && s.previous.span == span && s.previous.attached })
}

// program is a random sequence of operations, together with the model of their effects.
type program struct {
	*service
	model

	random *rand.Rand
	traced []trace.Span
	ctxs   []context.Context
	// reused is true for the ended spans whose cells may have been reused.
	reused map[int]bool
	actors []*spansteps.Actor
	log    []string
}

// check compares what each carrier publishes for each goroutine with the model.
func (p *program) check(t *testing.T) bool {
	t.Helper()
	for n, a := range p.actors {
		g := &p.goroutines[n]
		at, _ := p.active(n)
		now, want := p.nearest(n, at), shown{}
		id := uint64(0)
		if now.span != none {
			id = number(p.traced[now.span])
		}
		if g.published {
			want.thread, want.goroutine = id, id
		}
		if g.record != none {
			want.record = id
		}
		if p.threads == nil {
			want.thread = 0
		}
		var got shown
		a.Run(func() { got = p.shown(t) })
		if p.reused[at.span] { // only the record still lists the ancestors
			for _, carrier := range []struct{ want, got *uint64 }{{&want.thread, &got.thread}, {&want.goroutine, &got.goroutine}} {
				if *carrier.got == 0 {
					*carrier.want = 0
				}
			}
		}
		if !assert.Equal(t, want, got, "goroutine %d", n) {
			return false
		}
		if p.elastic != nil {
			id = 0 // Elastic's record has only the span that the goroutine has published itself
			if g.published && at.span != none && p.spans[at.span].live {
				id = number(p.traced[at.span])
			}
			a.Run(func() { got.thread = spanpath.MemoryOrder(p.elastic.SpanID(goid())) })
			if !assert.Equal(t, id, got.thread, "Elastic's record of goroutine %d", n) {
				return false
			}
		}
	}
	return true
}

// maxDepth limits the nesting of contexts, so that a span's cell has room for all ancestors.
const maxDepth = wire.Ancestors

// step runs one random operation.
func (p *program) step() {
	n := p.random.IntN(len(p.actors))
	a, g := p.actors[n], &p.goroutines[n]
	say := func(format string, args ...any) {
		p.log = append(p.log, fmt.Sprintf("%d: ", n)+fmt.Sprintf(format, args...))
	}
	some := none
	if len(p.traced) > 0 {
		some = max(0, len(p.traced)-1-p.random.IntN(8))
	}
	ctx := context.Background()
	if some != none {
		ctx = p.ctxs[some]
	}
	switch p.random.IntN(12) {
	case 0, 1, 2, 3:
		parent, newRoot := some, p.random.IntN(8) == 0
		if some == none || p.random.IntN(4) == 0 || p.spans[some].depth >= maxDepth {
			parent, ctx = none, context.Background()
		}
		say("start %d, parent %d, new root %v", len(p.traced), parent, newRoot)
		var opts []trace.SpanStartOption
		if newRoot {
			opts = append(opts, trace.WithNewRoot())
		}
		p.starts(n, parent, newRoot)
		a.Run(func() {
			ctx, span := p.start(ctx, opts...)
			p.ctxs, p.traced = append(p.ctxs, ctx), append(p.traced, span)
		})
	case 4, 5, 6, 7:
		if some == none || !p.spans[some].live {
			return
		}
		if p.endsHere(n, some) {
			if p.needed(some) {
				return
			}
			p.reused[some] = true
		}
		say("end %d", some)
		p.ends(n, some)
		a.Run(func() { p.traced[some].End() })
	case 8:
		to := nothing
		if some != none && p.spans[some].live && p.random.IntN(3) > 0 {
			to = in{some, true}
			if p.random.IntN(2) == 0 {
				ctx = trace.ContextWithSpanContext(context.Background(), p.traced[some].SpanContext())
			}
		} else {
			ctx = context.Background()
		}
		say("attach %d", to.span)
		at, _ := p.active(n)
		hadRecord := g.record == at.span && at.span != none
		at = p.nearest(n, at)
		g.saved = append(g.saved, saved{at, hadRecord && g.record == at.span})
		p.publish(n, to)
		a.Run(func() { g.attached = append(g.attached, Attach(ctx)) })
	case 9:
		last := len(g.attached) - 1
		if last < 0 {
			return
		}
		say("detach")
		p.publish(n, p.nearest(n, g.saved[last].in))
		g.saved = g.saved[:last]
		a.Run(func() { g.attached[last].Detach() })
		g.attached = g.attached[:last]
	case 10:
		p.relabel(n, some, ctx, say)
	default:
		if len(p.actors) < 6 {
			say("go %d", len(p.actors))
			p.goroutines = append(p.goroutines, modelGoroutine{at: nothing, record: g.record})
			p.actors = append(p.actors, spansteps.NewActor(a.Run))
		}
	}
}

// relabel makes a goroutine replace its labels, or call Do or Refresh.
func (p *program) relabel(n, some int, ctx context.Context, say func(string, ...any)) {
	a, g := p.actors[n], &p.goroutines[n]
	at, known := p.active(n)
	now := p.nearest(n, at)
	user := pprof.Labels("user", strconv.Itoa(p.random.IntN(2)))
	switch what := p.random.IntN(4); what {
	case 0, 1:
		if p.reused[at.span] {
			return // the goroutine's active span would become unknown
		}
		say("labels %d", what)
		g.record = none
		if what == 0 {
			a.Run(func() { pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), user)) })
		} else {
			a.Run(func() { pprof.Do(context.Background(), user, func(context.Context) {}) })
		}
	case 2:
		say("Do")
		if now.span != none || p.elastic != nil && known {
			p.publish(n, now)
		} else if g.record = none; p.reused[at.span] {
			return
		}
		a.Run(func() { Do(context.Background(), user, func(context.Context) {}) })
	default:
		say("refresh %d", some)
		ended := at.span != none && now.span == none // the last published span has ended, without a live ancestor
		if (!known || ended) && some != none && p.spans[some].live {
			now = in{span: some}
		}
		if now.span != none && now.span == some || p.elastic != nil && known {
			p.publish(n, now)
		}
		a.Run(func() { Refresh(ctx) })
	}
}

// TestContract runs random programs and checks after each step that every carrier publishes the
// span that the contract requires for every goroutine. To repeat a failed program, pass its seed.
func TestContract(t *testing.T) {
	for _, tt := range []struct {
		name             string
		opts             []Option
		elastic, sampled bool
	}{
		{name: "slots and records"},
		// The race detector does not see accesses to mapped memory.
		{name: "heap", opts: []Option{withHeap()}},
		{name: "names and keys", opts: []Option{WithAttributeKeys("tenant")}},
		{name: "slots", opts: []Option{WithLabels(LabelsOff)}},
		{name: "records", opts: []Option{WithThreadSlots(false)}},
		{name: "Elastic, slots and records", elastic: true},
		{name: "Elastic, heap", opts: []Option{withHeap()}, elastic: true},
		{name: "Elastic and slots", opts: []Option{WithLabels(LabelsOff)}, elastic: true},
		{name: "Elastic and records", opts: []Option{WithThreadSlots(false)}, elastic: true},
		{name: "Elastic", opts: []Option{WithThreadSlots(false), WithLabels(LabelsOff)}, elastic: true},
		{name: "sampled", sampled: true},
		{name: "sampled, heap", opts: []Option{withHeap()}, sampled: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.opts...)
			if tt.elastic {
				s.storeForElastic(t)
			}
			var sampler *everySecond
			if tt.sampled {
				sampler = new(everySecond)
				s = s.publishAll(t, sampler)
			}
			testContract(t, s, sampler)
		})
	}
}

// storeForElastic turns on Elastic's thread records, as package universalprofiling does.
func (s *service) storeForElastic(t *testing.T) {
	t.Helper()
	l, err := elastic.Install([]string{programs.Dir(t)}, wire.ProfilingProcessStorage{ServiceName: "test"}.Encode(), s.path.Runtime())
	if err != nil {
		t.Skip(err)
	}
	s.elastic = l.Records()
	change := func(e *spanpath.Elastic) {
		defer providers.Lock()()
		s.path.Change(func(f *spanpath.Features) { f.Elastic = e })
	}
	change(&spanpath.Elastic{Records: s.elastic, RootEnds: func(sdkspan.Key, uint8) {}, Failed: func(err error) { assert.NoError(t, err) }})
	t.Cleanup(func() { change(nil) })
}

// testContract runs random programs. If sampler is not nil, it is the sampler of s.
func testContract(t *testing.T, s *service, sampler *everySecond) {
	count := *programCount
	if count == 0 {
		count = testenv.Rounds(30, long(2000))
	}
	for seed := *firstSeed; seed < *firstSeed+uint64(count); seed++ {
		if sampler != nil {
			sampler.spans.Store(seed) // so that a failed program can be repeated
		}
		p := &program{service: s, random: rand.New(rand.NewPCG(seed, 0)), reused: map[int]bool{}}
		p.noRecords = !s.carriers.records
		for range 3 {
			p.actors = append(p.actors, spansteps.NewActor(spansteps.InNothing))
			p.goroutines = append(p.goroutines, modelGoroutine{at: nothing, record: none})
		}
		ok := true
		for step := 0; step < 60 && ok; step++ {
			p.step()
			ok = p.check(t)
		}
		for _, span := range p.traced {
			span.End()
		}
		for _, a := range p.actors {
			a.Stop()
		}
		if !ok {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(p.log, "\n"))
		}
		goruntime.SetLabels(nil)
	}
	s.assertNowhere(t)
}
