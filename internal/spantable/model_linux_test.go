// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/sdkspan"
)

var seed = flag.Uint64("seed", 0, "seed of TestModel; 0 is a random one")

// TestModel checks the table against a simple model. Goroutines start, end, look up and hand over
// spans in a random order that depends on the seed. Each keeps lists of its live and ended spans,
// and compares all answers of the table with them.
func TestModel(t *testing.T) {
	for _, tt := range []struct {
		workers int
		heap    bool
	}{{1, true}, {1, false}, {8, true}, {8, false}} {
		t.Run(fmt.Sprintf("workers=%d heap=%v", tt.workers, tt.heap), func(t *testing.T) {
			if tt.workers > 1 {
				moreProcessors(t)
			}
			start := *seed
			if start == 0 {
				start = rand.Uint64()
			}
			t.Logf("go test -run '^%s$' -seed %d", t.Name(), start)
			table, evicted := newTable(t, tt.heap, nil)
			m := &model{table: table, passed: make(chan Ref, 64)}
			workers := make([]*modelWorker, tt.workers)
			var done sync.WaitGroup
			for i := range workers {
				w := &modelWorker{model: m, random: rand.New(rand.NewPCG(start, uint64(i)))}
				workers[i] = w
				done.Go(func() {
					for range rounds(20_000, 200_000) {
						if err := w.step(); err != nil {
							t.Errorf("goroutine %d: %v", i, err)
							return
						}
					}
				})
			}
			done.Wait()
			want := map[Ref]bool{}
			for _, w := range workers {
				for _, r := range w.live {
					want[r] = true
				}
			}
			close(m.passed)
			for r := range m.passed {
				want[r] = true
			}
			assert.Equal(t, want, table.live())
			assert.Empty(t, evicted.all(t), "there was room for all")
			// No cell is lost or free twice.
			for r := range want {
				require.True(t, table.end(r, false))
			}
			assert.Len(t, table.takeFree(t), int(table.Used()))
		})
	}
}

// maxLive is the maximum number of live spans per goroutine of the model.
const maxLive = 500

type model struct {
	table *Table
	// passed transfers live spans from one goroutine to another.
	passed chan Ref
}

type modelWorker struct {
	*model

	random *rand.Rand
	// live lists live spans that only this goroutine may end. dead lists some spans that have
	// ended.
	live, dead []Ref
}

func (w *modelWorker) step() error {
	switch n := w.random.IntN(10); {
	case n < 4 && len(w.live) < maxLive:
		r := w.table.start()
		if r == 0 {
			return fmt.Errorf("no cell for a span, with %d of this goroutine", len(w.live))
		}
		w.live = append(w.live, r)
	case n < 6 && len(w.live) > 0:
		i := w.random.IntN(len(w.live))
		r := w.live[i]
		w.live = slices.Delete(w.live, i, i+1)
		if !w.table.End(r) {
			return fmt.Errorf("%#x was not live", r)
		}
		want := spanOf(r)
		if e := w.table.ancestorsOf(r); e != want.Ancestors {
			return fmt.Errorf("%#x, which has ended and whose cell is not free, has ancestors %x", r, e)
		}
		w.table.freeCell(r, w.random.IntN(2) != 0)
		if len(w.dead) < maxLive {
			w.dead = append(w.dead, r)
		} else {
			w.dead[w.random.IntN(len(w.dead))] = r
		}
	case n < 7 && len(w.live) > 0:
		i := w.random.IntN(len(w.live))
		select {
		case w.passed <- w.live[i]:
			w.live = slices.Delete(w.live, i, i+1)
		default:
		}
	case n < 8:
		select {
		case r := <-w.passed:
			w.live = append(w.live, r)
		default:
		}
	case n < 9 && len(w.dead) > 0:
		return w.table.checkDead(w.dead[w.random.IntN(len(w.dead))])
	case len(w.live) > 0:
		return w.table.checkLive(w.live[w.random.IntN(len(w.live))])
	}
	return nil
}

// checkLive returns an error if the table gives a wrong answer about a live span.
func (t *Table) checkLive(r Ref) error {
	want, got := spanOf(r), Span{}
	k := want.Key
	otherTrace, other := k, k
	otherTrace.TraceIDLow++
	other.SpanID++
	root, endpoint := t.LocalRoot(r)
	for what, ok := range map[string]bool{
		"Live": t.Live(r), "Load": t.Load(r, &got), "what it loads": got == want, "Is": t.Is(r, k),
		"Is another trace": !t.Is(r, otherTrace), "Is another span": !t.Is(r, other), "Is no span": !t.Is(r, sdkspan.Key{}),
		"Find": t.Find(k) == r, "Find another trace": t.Find(otherTrace) == 0,
		"IsOf": t.IsOf(r, want.Goid), "IsOf another": !t.IsOf(r, want.Goid+1), "LocalRoot": root == want.LocalRootSpanID && endpoint == want.Endpoint,
		"Ancestors": t.ancestorsOf(r) == want.Ancestors,
		"Index":     r.Index() < t.Used(),
	} {
		if !ok {
			return fmt.Errorf("%#x is live: wrong answer of %s", r, what)
		}
	}
	return nil
}

// checkDead returns an error if the table gives a wrong answer about an ended span.
func (t *Table) checkDead(r Ref) error {
	was, got := spanOf(r), Span{}
	k := was.Key
	root, endpoint := t.LocalRoot(r)
	for what, wrong := range map[string]bool{
		"Live": t.Live(r), "Load": t.Load(r, &got), "Is": t.Is(r, k), "Find": t.Find(k) != 0, "IsOf": t.IsOf(r, was.Goid),
		"LocalRoot": root != 0 || endpoint != 0, "End": t.End(r),
	} {
		if wrong {
			return fmt.Errorf("%#x has ended: wrong answer of %s", r, what)
		}
	}
	// The ancestors of an ended span are known until its cell is reused.
	if e := t.ancestorsOf(r); e != was.Ancestors && e != (Ancestors{}) {
		return fmt.Errorf("%#x, which has ended, has ancestors %x", r, e)
	}
	return nil
}
