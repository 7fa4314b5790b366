// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/ringbuf"
)

// moreProcessors has the kernel switch between goroutines wherever they are, as well as
// the scheduler.
func moreProcessors(t *testing.T) {
	t.Helper()
	old := runtime.GOMAXPROCS(max(6, runtime.NumCPU()))
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// crew runs functions at the same time, as far as that can be had, again and again.
type crew struct {
	members []chan func(pause func())
	arrived atomic.Int64
	done    sync.WaitGroup
	closed  sync.WaitGroup
}

func newCrew(members int, seed uint64) *crew {
	c := &crew{members: make([]chan func(func()), members)}
	for i := range members {
		c.members[i] = make(chan func(func()))
		c.closed.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			pause := func() {
				for range random.IntN(200) {
					c.arrived.Load()
				}
			}
			for work := range c.members[i] {
				c.arrived.Add(-1)
				// Those that come first wait for the others, if those do come.
				for n := 0; n < 2000 && c.arrived.Load() > 0; n++ {
					continue
				}
				pause()
				work(pause)
				goruntime.SetLabels(nil)
				c.done.Done()
			}
		})
	}
	return c
}

// run runs at most one function per member and returns when all have returned.
func (c *crew) run(work ...func(pause func())) {
	c.arrived.Store(int64(len(work)))
	c.done.Add(len(work))
	for i, f := range work {
		c.members[i] <- f
	}
	c.done.Wait()
}

func (c *crew) close() {
	for _, member := range c.members {
		close(member)
	}
	c.closed.Wait()
}

// Spans of one family end, and are attached, at the same time on several goroutines.
// When all of that is over no carrier shows any that has ended, and those that live on
// are still taken back by their own end.
func TestOverlappingEnds(t *testing.T) {
	moreProcessors(t)
	for name, opts := range map[string][]Option{
		"capacity=64": everything(WithCapacity(64)),
		"capacity=2":  everything(WithCapacity(2)),
		"few entries": everything(WithCapacity(64)),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			if name == "few entries" {
				// Entries are used again at once.
				s.p.table = fewEntries(s.p)
			}
			crew := newCrew(5, 1)
			defer crew.close()
			for n := range testenv.Rounds(300, max(1500, long(6000))) {
				if !testOverlappingEnds(t, s, crew, n) {
					t.Logf("round %d", n)
					return
				}
			}
		})
	}
}

func testOverlappingEnds(t *testing.T, s *service, crew *crew, n int) bool {
	defer goruntime.SetLabels(nil)
	ctxRoot, root := s.root()
	ctxMid, mid := s.start(ctxRoot)
	_, c1 := s.start(ctxMid)
	var c2, c3 trace.Span
	crew.run(func(func()) {
		defer Attach(ctxMid).Detach()
		_, c2 = s.start(ctxMid)
	}, func(func()) {
		defer Attach(ctxMid).Detach()
		_, c3 = s.start(ctxMid)
	})
	attach := func(ctx context.Context) func(func()) {
		return func(pause func()) {
			for range 3 {
				a := Attach(ctx)
				pause()
				Refresh(ctx)
				a.Detach()
			}
		}
	}
	end := func(span trace.Span) func(func()) { return func(func()) { span.End() } }
	ended := []trace.Span{c1, c2, c3}
	switch n % 4 {
	case 0:
		// All of them, the parent included.
		crew.run(end(c1), end(c2), end(c3), end(mid), attach(ctxMid))
		ended = append(ended, mid)
	case 1:
		// The parent goes on at several places at once, and then ends.
		crew.run(end(c1), end(c2), end(c3), attach(ctxMid))
	case 2:
		crew.run(end(c1), end(c2), end(c3), end(mid), func(pause func()) {
			// Entries that become free are taken.
			for range 4 {
				ctx, span := s.root()
				a := Attach(ctxMid)
				pause()
				a.Detach()
				_, child := s.start(ctx)
				child.End()
				span.End()
				ended = append(ended, span, child)
			}
		})
		ended = append(ended, mid)
	default:
		crew.run(attach(ctxMid), attach(ctxMid), attach(ctxRoot), end(mid), end(c1))
		c2.End()
		c3.End()
		ended = append(ended, mid)
	}
	ok := true
	check := func(what string) {
		for _, span := range ended {
			if n := s.places(number(span)); n != 0 {
				ok = assert.Fail(t, "shown", "%s: an ended span at %d places", what, n)
			}
			if gorecord.Current() == number(span) {
				ok = assert.Fail(t, "shown", "%s: an ended span by its record", what)
			}
		}
	}
	check("children")
	mid.End()
	ended = append(ended, mid)
	check("parent")
	root.End()
	ended = append(ended, root)
	check("root")
	return s.assertNowhere(t) && ok
}

// A goroutine that a span is attached to, in the slot that it was started in, does not go
// on with its parent, as the goroutine does that started it.
func TestGuestsShowNoParent(t *testing.T) {
	moreProcessors(t)
	for name, opts := range map[string][]Option{
		"threads":    {WithCapacity(1), WithGoroutineRecord(false)},
		"goroutines": {WithCapacity(1), WithGoroutineRecord(false), WithThreadSlots(false), WithGoroutineSlots(true)},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			crew := newCrew(2, 1)
			defer crew.close()
			for range testenv.Rounds(4000, max(20_000, long(100_000))) {
				ctx, parent := s.root()
				ctx, child := s.start(ctx)
				crew.run(func(func()) { child.End() }, func(func()) {
					Attach(ctx).Detach()
					for _, r := range s.p.rings {
						if r != nil && r.Shown() != 0 {
							t.Errorf("the guest shows %x after it has gone, its host's parent is %x", r.Shown(), number(parent))
						}
					}
				})
				parent.End()
				if t.Failed() {
					return
				}
			}
		})
	}
}

// The goroutine that started a span comes late to note that it shows it, where a guest
// does meanwhile: the guest does not go on with the parent for that.
func TestNoteOfTheHostComesLate(t *testing.T) {
	s := serve(t, WithThreadSlots(false), WithGoroutineRecord(false), WithGoroutineSlots(true), WithCapacity(1))
	r := s.p.rings[goroutineRing]
	for _, elsewhere := range []bool{false, true} {
		ctx, parent := s.root()
		ctx, child := s.start(ctx)
		var l live
		require.True(t, s.p.find(child.SpanContext(), &l))
		apart(func() {
			a := Attach(ctx)
			require.Equal(t, number(child), r.Shown())
			require.True(t, l.note(goroutineRing, r, word(1, false, l.At)))
			if elsewhere {
				apart(func() { child.End() })
				assert.Zero(t, r.Shown())
				a.Detach()
			}
		})
		child.End()
		assert.Zero(t, s.places(number(parent)), "elsewhere: %v", elsewhere)
		parent.End()
		s.assertNowhere(t)
	}
}

// Who has shown a span, at a place that is noted, and then finds that it has ended
// meanwhile, takes it back: its end may have looked there before.
func TestShownAfterItsEnd(t *testing.T) {
	s := serve(t, everything(WithGoroutineRecord(false))...)
	apart(func() {
		_, span := s.root()
		var l live
		require.True(t, s.p.find(span.SpanContext(), &l))
		apart(func() { span.End() })
		for i := range s.p.rings {
			s.p.show(i, &l, nil, false)
		}
		assert.Zero(t, s.places(number(span)))
	})
	s.assertNowhere(t)
}

// A goroutine that started a span was about to go on with the parent, in a slot where a
// guest has come to show the span since: the guest does not stay with the parent.
func TestGuestLeavesTheParent(t *testing.T) {
	s := serve(t, WithThreadSlots(false), WithGoroutineRecord(false), WithGoroutineSlots(true), WithCapacity(1))
	r := s.p.rings[goroutineRing]
	ctx, parent := s.root()
	_, child := s.start(ctx)
	var p, l live
	require.True(t, s.p.find(parent.SpanContext(), &p))
	require.True(t, s.p.find(child.SpanContext(), &l))
	apart(func() {
		place := r.Store(&l.shows)
		require.True(t, r.Replace(place, l.ID, &p.shows), "what the end does that has looked before")
		apart(func() { child.End() })
		require.Equal(t, number(parent), r.Shown())
		l.keepHere(goroutineRing, r, place, true)
		assert.Zero(t, r.Shown())
	})
	parent.End()
	s.assertNowhere(t)
}

// More spans than the table has entries: those that have to give way are shown no more,
// and none is after its end, though others may just be taking it back or have its entry
// by now.
func TestEviction(t *testing.T) {
	moreProcessors(t)
	s := serve(t, everything(WithCapacity(64))...)
	s.p.table = fewEntries(s.p)
	var all sync.WaitGroup
	var shownOnce atomic.Int64
	for range 12 {
		all.Go(func() {
			own := service{t: t, p: s.p, tracer: s.tracer}
			for i, m := range s.rings {
				own.rings[i] = &memory{Memory: m.Memory, info: m.info}
			}
			for n := range testenv.Rounds(100, max(300, long(3000))) {
				ctx, a := own.root()
				ctx, b := own.start(ctx)
				_, c := own.start(ctx)
				if own.places(number(c)) > 0 {
					shownOnce.Add(1)
				}
				at := Attach(ctx)
				runtime.Gosched()
				at.Detach()
				order := []trace.Span{c, b, a}
				if n%2 == 0 {
					order = []trace.Span{a, c, b}
				}
				for _, span := range order {
					span.End()
					if own.places(number(span)) != 0 {
						t.Errorf("span %x is shown after its end", number(span))
					}
					if gorecord.Current() == number(span) {
						t.Errorf("span %x has a valid record after its end", number(span))
					}
				}
				if !assert.Zero(t, gorecord.Current()) || t.Failed() {
					return
				}
			}
		})
	}
	all.Wait()
	assert.Positive(t, shownOnce.Load())
	s.assertNowhere(t)
	s.p.table.All(func(l *span) { assert.Fail(t, "in the table", "%x", l.ID) })
}

// fewEntries is a table whose entries are used again at once.
func fewEntries(p *SpanProcessor) *table {
	return spantable.New([...]int{1, 1, 1}, p.evict, nil)
}

// An entry that is being evicted by somebody who does not get on with it: the end of the
// span does not leave it at that.
func TestEndWhileEvicted(t *testing.T) {
	s := serve(t, everything()...)
	s.p.table = fewEntries(s.p)
	apart(func() {
		_, span := s.root()
		var l live
		require.True(t, s.p.find(span.SpanContext(), &l))
		require.True(t, l.Claim()) // and then nothing, for now
		s.assertShows(t, span, span)
		span.End()
		s.assertShows(t, nil, nil)
		assert.Zero(t, s.places(number(span)))
		s.p.withdraw(&l.span)
		s.assertShows(t, nil, nil)

		// The same when the entry is about to be another span's.
		_, span = s.root()
		require.True(t, s.p.find(span.SpanContext(), &l))
		require.True(t, l.Claim())
		s.p.evict(&l.span)
		record := gorecord.Begin(1, 2, 3, 0, nil)
		l.Pointers().record.Put(record)
		span.End()
		assert.True(t, record.Valid(), "it is not that span's")
		record.End()
		l.Pointers().drop()
		l.Free()
	})
	s.assertNowhere(t)
}

// Who comes late to note a place finds the entry another span's, and leaves its places
// alone.
func TestNoteComesLate(t *testing.T) {
	s := serve(t, everything(WithCapacity(4096))...)
	s.p.table = fewEntries(s.p)
	r := s.p.rings[goroutineRing]
	apart(func() {
		for range testenv.Rounds(20, 200) {
			_, old := s.root()
			var l live
			require.True(t, s.p.find(old.SpanContext(), &l))
			apart(func() { old.End() })
			_, young := s.root()
			var l2 live
			require.True(t, s.p.find(young.SpanContext(), &l2))
			require.Same(t, l.Data(), l2.Data(), "free entries are used in their order")
			apart(func() {
				s.p.show(goroutineRing, &l, nil, true)
				s.assertShows(t, nil, nil)
			})
			for place := range ringbuf.Place(10) {
				assert.False(t, l.note(goroutineRing, r, word(place+1, false, l.At)))
			}
			assert.Zero(t, s.places(number(old)))
			assert.Equal(t, number(young), s.shown(t).goroutine)
			young.End()
			if !assert.Zero(t, s.places(number(young))) {
				return
			}
		}
	})
}

// Places that the span is not shown at any more are the only ones that give way, and
// those that do not get in are not shown.
func TestNote(t *testing.T) {
	s := serve(t, WithThreadSlots(false), WithGoroutineRecord(false), WithGoroutineSlots(true))
	r := s.p.rings[goroutineRing]
	ctx, span := s.root()
	var l live
	require.True(t, s.p.find(span.SpanContext(), &l))
	show := func(step chan bool) {
		a := Attach(ctx)
		step <- r.Shown() == l.ID
		<-step
		a.Detach()
		close(step)
	}
	var steps []chan bool
	for n := range 6 {
		step := make(chan bool)
		go show(step)
		assert.Equal(t, n < maxPlaces-1, <-step)
		steps = append(steps, step)
	}
	steps[0] <- true
	<-steps[0]
	step := make(chan bool)
	go show(step)
	assert.True(t, <-step, "one has made room")
	assert.Equal(t, maxPlaces, s.places(l.ID))
	span.End()
	assert.Zero(t, s.places(l.ID))
	for _, step := range append(steps[1:], step) {
		step <- true
		<-step
	}
	s.assertNowhere(t)
	for _, guest := range []bool{false, true} {
		for _, place := range []ringbuf.Place{0, 1, 1 << 24} {
			got, gotGuest := placeOf(word(place, guest, ^uint64(0)))
			assert.Equal(t, fmt.Sprint(place, guest), fmt.Sprint(got, gotGuest))
		}
	}
}

// Spans, each of which ends on the goroutine that started it or on another
// one, some attached elsewhere, nested or not: after the end no carrier shows it.
func TestEndedIsShownNowhere(t *testing.T) {
	s := serve(t, everything(WithCapacity(32))...)
	random := rand.New(rand.NewPCG(1, 2))
	type task struct {
		attach context.Context
		end    trace.Span
		start  context.Context
	}
	tasks, results := make(chan task), make(chan trace.Span)
	go func() { // the other goroutine
		defer close(results)
		for task := range tasks {
			var started trace.Span
			if task.attach != nil {
				a := Attach(task.attach)
				if task.end != nil {
					task.end.End()
					if gorecord.Current() == number(task.end) {
						t.Error("shown by the record of who ended it")
					}
				}
				a.Detach()
			} else if task.end != nil {
				task.end.End()
			}
			if task.end != nil && gorecord.Current() == number(task.end) {
				t.Error("shown by the record of who ended it")
			}
			if task.start != nil {
				_, started = s.start(task.start)
			}
			results <- started
		}
	}()
	elsewhere := func(do task) trace.Span {
		tasks <- do
		return <-results
	}
	enough := testenv.Rounds(10_000, long(1_000_000))
	var ended, endedElsewhere int
	check := func(span trace.Span) {
		ended++
		if n := s.places(number(span)); n != 0 {
			t.Fatalf("span %d is shown at %d places after its end", ended, n)
		}
		if gorecord.Current() == number(span) {
			t.Fatalf("span %d has a valid record after its end", ended)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(tasks)
		for ended < enough {
			ctx, root := s.root()
			open := []trace.Span{root}
			ctxs := []context.Context{ctx}
			for range random.IntN(4) {
				ctx, span := s.start(ctxs[random.IntN(len(ctxs))])
				open, ctxs = append(open, span), append(ctxs, ctx)
			}
			for len(open) > 0 {
				n := len(open) - 1
				if random.IntN(8) == 0 {
					n = random.IntN(len(open)) // out of order
				}
				span := open[n]
				switch random.IntN(10) {
				case 0:
					elsewhere(task{end: span})
					endedElsewhere++
				case 1:
					elsewhere(task{attach: ctxs[random.IntN(len(ctxs))], end: span})
					endedElsewhere++
				case 2:
					// It ends here, having been shown there too.
					started := elsewhere(task{attach: ctxs[n], start: ctxs[n]})
					span.End()
					check(span)
					started.End()
					span = started
				default:
					span.End()
				}
				check(span)
				open = append(open[:n], open[n+1:]...)
				ctxs = append(ctxs[:n], ctxs[n+1:]...)
				if len(ctxs) == 0 {
					break
				}
			}
		}
	}()
	<-done
	for range results {
		continue
	}
	t.Logf("%d spans ended, %d of them elsewhere", ended, endedElsewhere)
	s.assertNowhere(t)
}
