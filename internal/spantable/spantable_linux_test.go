// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"math/bits"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/resources"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
)

func TestEmptyTable(t *testing.T) {
	table, _ := newTable(t, true, nil)
	assert.Zero(t, table.Used())
	assert.Empty(t, table.live())
	var s Span
	for _, r := range []Ref{0, 1 << 20, 1<<20 | 2, ^Ref(1)} {
		assert.False(t, table.Live(r) || table.End(r) || table.Load(r, &s) || table.IsOf(r, 0) || table.Is(r, sdkspan.Key{SpanID: 1}), "%#x", r)
		root, name := table.LocalRoot(r)
		assert.Zero(t, root)
		assert.Zero(t, name)
		assert.Zero(t, table.ancestorsOf(r))
	}
	assert.Zero(t, table.Find(sdkspan.Key{}))
	assert.Zero(t, table.Find(sdkspan.Key{SpanID: 1}))
}

// A reserved cell describes no span until Commit, and cannot be reserved again.
func TestReservedCellHasNoSpan(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // each P has its own stack of free cells
	table, _ := newTable(t, true, nil)
	first := table.start()
	require.True(t, table.end(first, true))
	p := goruntime.Pin()
	r := table.Reserve(p)
	other := table.Reserve(p)
	goruntime.Unpin()
	assert.Equal(t, first.Index(), r.Index(), "the warm cell")
	assert.NotEqual(t, r.Index(), other.Index())
	for _, ref := range []Ref{first, r, other} {
		assert.False(t, table.Live(ref) || table.End(ref) || table.Load(ref, new(Span)), "%#x", ref)
	}
	assert.Empty(t, table.live())
	assert.Zero(t, table.ancestorsOf(first), "the cell belongs to another span")
	s := spanOf(r)
	table.Commit(p, r, &s)
	assert.NoError(t, table.checkLive(r))
	assert.NoError(t, table.checkDead(first))
	assert.Equal(t, map[Ref]bool{r: true}, table.live())
}

// A new table does not issue the Refs of a closed table, because goroutines may still hold them.
func TestNextTableRepeatsNoRef(t *testing.T) {
	refs := map[Ref]bool{}
	for range 3 {
		table, err := New(Options{Memory: vma.Heap})
		require.NoError(t, err)
		var last Ref
		for n := range 100 {
			last = table.start()
			require.False(t, refs[last])
			refs[last] = true
			table.end(last, n%2 == 0)
		}
		require.NoError(t, table.Close())
		late := table.start() // as if by a goroutine that still uses the closed table
		require.False(t, refs[late])
		refs[late] = true
	}
}

// TestLateStartAndEnd checks that spans can safely start and end while the table is being closed, and
// start afterwards.
func TestLateStartAndEnd(t *testing.T) {
	table, _ := newTable(t, false, nil)
	p := goruntime.Pin()
	goruntime.Unpin()
	for range Capacity + 5 {
		table.end(table.start(), false) // so that each entry of the queue was used
	}
	ended, reserved := table.start(), table.Reserve(p)
	require.True(t, table.End(ended))
	require.NoError(t, table.Close())
	table.Free(ended)
	s := spanOf(reserved)
	table.Commit(p, reserved, &s)
	for range 10 {
		assert.NotZero(t, table.start())
	}
}

// If a span ends while it is being evicted, its cell is freed only once.
func TestSpanEndsDuringEviction(t *testing.T) {
	var table *Table
	var asked []Ref
	endsMeanwhile := false
	table, err := New(Options{Memory: vma.Heap, Spare: spareNone, Evict: func(r Ref) bool {
		assert.True(t, table.Live(r))
		asked = append(asked, r)
		if endsMeanwhile {
			assert.True(t, table.End(r))
		}
		return table.End(r)
	}})
	require.NoError(t, err)
	r := table.start()
	table.limit = 1
	table.hand.Store(^uint32(0) - bucketSize + 1)
	next := table.start()
	require.NotZero(t, next)
	assert.Equal(t, r.Index(), next.Index())
	assert.Equal(t, []Ref{r}, asked)

	endsMeanwhile = true
	table.hand.Store(^uint32(0) - bucketSize + 1)
	assert.Zero(t, table.start())
	assert.Equal(t, []Ref{r, next}, asked)
}

// If another goroutine ends a span, its cell keeps its contents while many other spans start and
// end.
func TestFreedCellsKeepContents(t *testing.T) {
	table, _ := newTable(t, true, nil)
	r := table.start()
	was := spanOf(r)
	require.True(t, table.end(r, false))
	for n := range minQueued - 1 {
		require.True(t, table.end(table.start(), false))
		require.Equal(t, was.Ancestors, table.ancestorsOf(r), "after %d", n)
	}
	for range 10 * minQueued {
		require.True(t, table.end(table.start(), false))
	}
	assert.Zero(t, table.ancestorsOf(r))
	assert.LessOrEqual(t, int(table.Used()), minQueued+2, "cells are reused")
}

// If several goroutines end a span at the same time, only one of them frees its cell.
func TestSpanEndsOnce(t *testing.T) {
	moreProcessors(t)
	table, _ := newTable(t, true, nil)
	for range testenv.Rounds(500, 20_000) {
		r := table.start()
		var ended atomic.Int32
		var done sync.WaitGroup
		for range 4 {
			done.Go(func() {
				if table.end(r, true) {
					ended.Add(1)
				}
			})
		}
		done.Wait()
		require.EqualValues(t, 1, ended.Load())
	}
}

// Find finds every live span, whether ids are random or follow a pattern.
func TestFindWithAnyIDs(t *testing.T) {
	random := func(n int) uint64 { return mix(uint64(n) + 1) }
	for name, id := range map[string]func(n int) uint64{
		"random":                      random,
		"counting":                    func(n int) uint64 { return uint64(n) + 1 },
		"counting, low byte first":    func(n int) uint64 { return bits.ReverseBytes64(uint64(n) + 1) },
		"counting, low bit first":     func(n int) uint64 { return bits.Reverse64(uint64(n) + 1) },
		"counting in the middle":      func(n int) uint64 { return (uint64(n)+1)<<27 | 7 },
		"one bit differs":             func(n int) uint64 { return random(n/64) ^ 1<<(n%64) },
		"multiples of the table size": func(n int) uint64 { return uint64(n+1) * localEntries },
	} {
		t.Run(name, func(t *testing.T) {
			table, evicted := newTable(t, true, nil)
			const spans = 1000
			var refs [spans]Ref
			for n := range refs {
				refs[n] = table.start(func(s *Span) { s.SpanID = id(n) })
			}
			found := 0
			for n, r := range refs {
				s := spanOf(r)
				s.SpanID = id(n)
				if table.Find(s.Key) == r {
					found++
				}
			}
			assert.Equal(t, spans, found)
			assert.Empty(t, evicted.all(t))
		})
	}
}

// Find works if GOMAXPROCS is raised above the number of Ps that have an index, and with more
// goroutines than Ps.
func TestFindAfterGOMAXPROCSWasRaised(t *testing.T) {
	table, _ := newTable(t, true, nil)
	table.locals = table.locals[:2]
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(len(table.locals) + 4))
	const workers = 24
	var refs [workers]atomic.Uint64
	var unknown atomic.Int64
	var stop atomic.Bool
	var done sync.WaitGroup
	for i := range workers {
		done.Go(func() {
			for n := 0; !stop.Load(); n++ {
				p := goruntime.Pin()
				r := table.startOn(p)
				goruntime.Unpin()
				if p >= len(table.locals) {
					unknown.Add(1)
				}
				refs[i].Store(uint64(r))
				if err := table.checkLive(r); err != nil {
					t.Error(err)
					return
				}
				other := Ref(refs[(i+n)%workers].Load())
				s := spanOf(other)
				if found := table.Find(s.Key); found != other && table.Live(other) {
					t.Errorf("found %#x instead of %#x", found, other)
					return
				}
				if !table.end(r, n%2 == 0) {
					t.Error("another goroutine has ended the span")
					return
				}
			}
		})
	}
	for unknown.Load() < 1000 && !t.Failed() {
		runtime.Gosched()
	}
	stop.Store(true)
	done.Wait()
}

// Spans that never end take up a bounded amount of memory, and do not keep new spans from being
// published.
func TestLeakedSpans(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const leaked, shownSpans = 200_000, 100
	spared := map[Ref]bool{} // read during evictions, so it must not change then
	table, evicted := newTable(t, false, func(r Ref, goid uint64, _ uintptr) bool {
		if s := spanOf(r); goid != s.Goid {
			t.Errorf("Spare was called for %#x with goroutine %d", r, goid)
		}
		return spared[r]
	})
	clock := uint64(0)
	next := func(s *Span) {
		clock++
		s.StartUnixNS = clock
	}
	for range shownSpans {
		spared[table.start(next)] = true // these spans are the oldest
	}
	before := heap()
	for range leaked {
		if table.start(next) == 0 {
			t.Fatal("there is no cell")
		}
	}
	assert.Less(t, heap()-before, int64(1<<20))
	assert.EqualValues(t, Capacity, table.Used())
	live := table.live()
	assert.Len(t, evicted.all(t), leaked+shownSpans-len(live), "every evicted span must be passed to Evict")
	assert.Greater(t, len(live), Capacity*9/10)
	for r := range spared {
		assert.True(t, live[r], "%#x was evicted although its starter publishes it", r)
	}
	// Mostly old spans were evicted.
	old := 0
	var s Span
	for r := range live {
		require.True(t, table.Load(r, &s))
		if s.StartUnixNS <= leaked/3 && !spared[r] {
			old++
		}
	}
	assert.Less(t, old, len(live)/10)

	var refs []Ref
	for range 100 {
		refs = append(refs, table.start(next))
	}
	for _, r := range refs {
		s := spanOf(r)
		assert.Equal(t, r, table.Find(s.Key))
		assert.True(t, table.end(r, true))
	}
	assert.EqualValues(t, table.Used(), len(table.live())+len(table.takeFree(t)), "no cell is lost")
}

// If every span is still published by the goroutine that started it, spans are evicted
// nevertheless.
func TestPublishedSpansAreEvicted(t *testing.T) {
	table, evicted := newTable(t, true, func(Ref, uint64, uintptr) bool { return true })
	for range Capacity + 1000 {
		if table.start() == 0 {
			t.Fatal("there is no cell")
		}
	}
	assert.GreaterOrEqual(t, len(evicted.all(t)), 1000)
}

// The index of a P keeps no span that has ended on that P. The next span with the same entry would have
// to read the ended span's cell.
func TestEndedSpansLeaveTheIndex(t *testing.T) {
	table, _ := newTable(t, true, nil)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for n := range 2 * localFree {
		r := table.start()
		s := spanOf(r)
		require.Equal(t, r, table.Find(s.Key))
		table.end(r, n%2 == 0)
		assert.Zero(t, *table.locals[0].entry(s.SpanID))
	}
}

// Concurrent pushes and pops neither lose nor duplicate numbers.
func TestQueueUnderContention(t *testing.T) {
	moreProcessors(t)
	const capacity = 64
	q := queue{entries: make([]queueEntry, capacity)}
	q.head.Store(1<<32 - 1000*capacity) // makes the 32-bit sequences wrap around during the test
	q.tail.Store(1<<32 - 1000*capacity)
	for n := range uint32(capacity) {
		q.entries[n].sequence.Store(1<<32 - 1000*capacity)
		q.push(n)
	}
	var held [capacity]atomic.Bool
	var done sync.WaitGroup
	for i := range 8 {
		done.Go(func() {
			var own []uint32
			for n := range testenv.Rounds(50_000, 1_000_000) {
				if number, ok := q.pop(); ok {
					if !held[number].CompareAndSwap(false, true) {
						t.Errorf("%d is in the queue twice", number)
						return
					}
					own = append(own, number)
				}
				if len(own) > n%4+i%2 {
					held[own[0]].Store(false)
					q.push(own[0])
					own = own[1:]
				}
			}
			for _, number := range own {
				held[number].Store(false)
				q.push(number)
			}
		})
	}
	done.Wait()
	all := map[uint32]bool{}
	for range capacity {
		n, ok := q.pop()
		require.True(t, ok, "%d of %d are left", len(all), capacity)
		all[n] = true
	}
	assert.Len(t, all, capacity)
}

// Load never mixes two spans, even while a few cells are reused continuously.
func TestLoadWhileCellsAreReused(t *testing.T) {
	for _, heap := range []bool{true, false} {
		moreProcessors(t)
		table, _ := newTable(t, heap, nil)
		table.limit = 3
		var last atomic.Uint64
		var stop atomic.Bool
		var done sync.WaitGroup
		for i := range 3 {
			done.Go(func() {
				for n := i; !stop.Load(); n++ {
					if r := table.start(); r != 0 {
						last.Store(uint64(r))
						if n%3 == 0 {
							runtime.Gosched()
						}
						table.end(r, n%2 == 0)
					}
				}
			})
		}
		loaded := 0
		for n := 0; loaded < rounds(5_000, 500_000) && !t.Failed(); n++ {
			r := Ref(last.Load())
			want, got := spanOf(r), Span{}
			if r != 0 && table.Load(r, &got) {
				loaded++
				assert.Equal(t, want, got)
			}
			if e := table.ancestorsOf(r); e != want.Ancestors && e != (Ancestors{}) {
				t.Errorf("within %x instead of %x", e, want.Ancestors)
			}
			if n%64 == 0 {
				runtime.Gosched()
			}
		}
		stop.Store(true)
		done.Wait()
	}
}

// Other processes find the table by the name of its mapping until the table is closed.
func TestMapping(t *testing.T) {
	mappings := func() int {
		found, err := resources.Mappings("OTELCTX_SPANS")
		require.NoError(t, err)
		return len(found)
	}
	files := resources.OpenFiles(t)
	table, _ := newTable(t, false, nil)
	assert.Equal(t, 1, mappings())
	assert.Equal(t, files, resources.OpenFiles(t))
	address := table.Address()
	assert.NotZero(t, address)
	r := table.start()
	require.NoError(t, table.Close())
	assert.Zero(t, mappings())
	magic := make([]byte, 4)
	_, err := remotemem.Of(os.Getpid()).ReadAt(magic, int64(address))
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 4), magic)

	// A goroutine may still use the table after Close. It finds empty cells, and can start and end
	// spans.
	table.End(r)
	next := table.start()
	assert.NoError(t, table.checkLive(next))
	assert.True(t, table.end(next, true))
	require.NoError(t, table.Close(), "again")
}

// If no memfd can be created, New still returns a table that works. It may also return an error.
func TestWithoutMemory(t *testing.T) {
	if !goruntime.Supported {
		t.Skip("nothing can be mapped on this platform")
	}
	var table *Table
	err := resources.WithoutDescriptors(func() error {
		var err error
		table, err = New(Options{Spare: spareNone, Evict: func(Ref) bool { return false }})
		return err
	})
	if err != nil { // the kernel does not name anonymous memory
		assert.ErrorContains(t, err, "span table: ")
	}
	assert.NoError(t, table.checkLive(table.start()))
	heap, _ := newTable(t, true, nil)
	assert.NoError(t, heap.Close())
}

func TestNothingAllocates(t *testing.T) {
	table, _ := newTable(t, true, nil)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		p := goruntime.Pin()
		r := table.Reserve(p)
		s := spanOf(r)
		table.Commit(p, r, &s)
		goruntime.Unpin()
		if table.Find(s.Key) != r || !table.End(r) {
			t.Error("the span is not live")
		}
		table.Barrier(r)
		table.FreeWarm(goruntime.Pin(), r)
		goruntime.Unpin()
	}))
}
