// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

type payload struct{ a, b uint64 }

type testTable struct {
	*Table[payload, atomic.Pointer[payload]]

	evicted []uint64
}

type testSpan = Span[payload, atomic.Pointer[payload]]

func newTestTable(buckets [levels]int, spare func(*payload) bool) *testTable {
	t := &testTable{}
	t.Table = New(buckets, func(s *testSpan) { t.evicted = append(t.evicted, s.ID) }, spare)
	return t
}

// add adds a span whose payload says which one it is.
func (tt *testTable) add(t *testing.T, trace, id uint64) testSpan {
	t.Helper()
	var s testSpan
	require.True(t, tt.Reserve(id, &s))
	assert.True(t, s.Changed(), "until it is committed")
	ordered.Put(&s.Data().a, id)
	ordered.Put(&s.Data().b, ^id)
	s.Commit(trace, ^trace)
	assert.False(t, s.Changed())
	return s
}

func (tt *testTable) has(trace, id uint64) bool {
	var s testSpan
	return tt.Find(sdkspan.Key{TraceIDHigh: trace, TraceIDLow: ^trace, SpanID: id}, &s) && atomic.LoadUint64(&s.Data().a) == id && !s.Changed()
}

// take finds a span and claims it.
func (tt *testTable) take(k sdkspan.Key, s *testSpan) bool { return tt.Find(k, s) && s.Claim() }

func (tt *testTable) ids() (ids []uint64) {
	tt.All(func(s *testSpan) { ids = append(ids, s.ID) })
	return ids
}

func TestLifeOfASpan(t *testing.T) {
	tt := newTestTable([levels]int{2, 2, 2}, nil)
	s := tt.add(t, 1, 7)
	assert.True(t, tt.has(1, 7))
	assert.False(t, tt.has(2, 7), "another trace's")
	assert.False(t, tt.has(1, 8))
	var found testSpan
	assert.True(t, tt.Find(sdkspan.Key{SpanID: 7}, &found), "any trace's")
	assert.False(t, tt.Find(sdkspan.Key{}, &found), "which is no id")
	require.True(t, tt.Follow(s.Ref(), &found))
	assert.Equal(t, uint64(7), found.ID)
	high, low := found.TraceID()
	assert.Equal(t, []uint64{1, ^uint64(1)}, []uint64{high, low})

	// Of two with the same id each is found by its trace.
	tt.add(t, 2, 7)
	require.True(t, tt.Find(sdkspan.Key{TraceIDHigh: 2, TraceIDLow: ^uint64(2), SpanID: 7}, &found))
	assert.NotEqual(t, s.Ref(), found.Ref())

	// Claimed it is found by nobody, but by those who ask for that.
	require.True(t, s.Claim())
	assert.False(t, tt.has(1, 7))
	assert.False(t, tt.take(sdkspan.Key{TraceIDHigh: 1, TraceIDLow: ^uint64(1), SpanID: 7}, &found))
	assert.False(t, tt.Follow(s.Ref(), &found))
	var claimed []uint64
	tt.Claimed(7, func(s *testSpan) { claimed = append(claimed, s.Data().a) })
	assert.Equal(t, []uint64{7}, claimed)
	again := s
	assert.False(t, again.Claim())
	s.Release()
	assert.True(t, tt.has(1, 7))
	assert.True(t, again.Changed())
	assert.False(t, tt.Follow(again.Ref(), &found), "as of then")
	assert.ElementsMatch(t, []uint64{7, 7}, tt.ids())

	require.True(t, tt.take(sdkspan.Key{TraceIDHigh: 1, TraceIDLow: ^uint64(1), SpanID: 7}, &s))
	s.Free()
	assert.False(t, tt.has(1, 7))
	assert.True(t, tt.has(2, 7))
	next := tt.add(t, 3, 9)
	assert.NotEqual(t, s.Ref(), next.Ref())
	assert.Empty(t, tt.evicted)
}

func TestWhoGivesWay(t *testing.T) {
	for name, spare := range map[string]func(*payload) bool{
		"the oldest":                 nil,
		"the oldest that can":        func(e *payload) bool { return atomic.LoadUint64(&e.a)%2 == 1 },
		"the oldest if none of them": func(*payload) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			tt := newTestTable([levels]int{1, 1, 1}, spare)
			// Ids that are multiples of tickEvery make the table older.
			var ids []uint64
			for i := range uint64(levels * ways) {
				id := (i+1)*tickEvery | i%2
				tt.tick.Add(1)
				ids = append(ids, id)
				tt.add(t, 1, id)
			}
			assert.Empty(t, tt.evicted)
			assert.EqualValues(t, levels, tt.used.Load())
			assert.ElementsMatch(t, ids, tt.ids())
			want := ids[(levels-1)*ways] // the first in the last level, and even
			if name == "the oldest that can" {
				want = ids[(levels-1)*ways+1]
			}
			tt.add(t, 1, 1<<40)
			assert.Equal(t, []uint64{want}, tt.evicted)
			assert.False(t, tt.has(1, want))
			assert.True(t, tt.has(1, 1<<40))
		})
	}
}

func TestNoEntryIsFree(t *testing.T) {
	tt := newTestTable([levels]int{1, 1, 1}, nil)
	var held []testSpan
	for i := range uint64(levels * ways) {
		s := tt.add(t, 1, i+1)
		require.True(t, s.Claim())
		held = append(held, s)
	}
	var s testSpan
	assert.False(t, tt.Reserve(100, &s))
	held[3].Free()
	assert.True(t, tt.Reserve(100, &s))
	s.Free()
	assert.Empty(t, tt.ids())
	assert.False(t, tt.Reserve(0, &s), "no id")
}

// A Ref finds entries at the limits of each level.
func TestRefs(t *testing.T) {
	tt := newTestTable([levels]int{1 << 8, 1 << 8, 1 << 13}, nil)
	assert.Len(t, tt.pointers, Room+(1<<8+1)*ways)
	numbers := map[uint64]bool{}
	for i, n := range []int{1 << 8, 1 << 8, 1 << 13} {
		l := &tt.levels[i]
		assert.EqualValues(t, n-1, l.mask)
		for _, b := range []uint64{l.first, l.first + l.mask} {
			for _, way := range []uint64{0, ways - 1} {
				s := testSpan{table: tt.Table}
				s.cell, s.entry = tt.point(b, way, &s)
				s.cell.key, s.cell.version, s.At = 5, 1<<40|2, 1<<40|2
				numbers[s.number] = true
				var found testSpan
				require.True(t, tt.Follow(s.Ref(), &found))
				assert.Same(t, s.entry, found.entry)
				assert.Same(t, s.cell, found.cell)
				assert.Same(t, s.Pointers(), found.Pointers())
			}
		}
	}
	assert.Len(t, numbers, levels*2*2)
	assert.NotContains(t, numbers, 0)
}

func TestBuckets(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for procs, first := range map[int]int{1: 4, 2: 8, 3: 16, 4: 16, 64: 256, 200: 256} {
		runtime.GOMAXPROCS(procs)
		assert.Equal(t, [levels]int{first, 256, 8192}, Buckets(), "%d processors", procs)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	tt := newTestTable(Buckets(), nil)
	var s testSpan
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		tt.Reserve(7, &s)
		s.Commit(1, 2)
		tt.Find(sdkspan.Key{TraceIDHigh: 1, TraceIDLow: 2, SpanID: 7}, &s)
		tt.Follow(s.Ref(), &s)
		tt.take(sdkspan.Key{TraceIDHigh: 1, TraceIDLow: 2, SpanID: 7}, &s)
		s.Free()
		tt.Claimed(7, func(*testSpan) {})
	}))
}

// What is found is one span's, or was changed.
func TestManyAtOnce(t *testing.T) {
	for _, buckets := range []int{1, 64} {
		tt := New([levels]int{buckets, buckets, buckets}, func(*Span[payload, struct{}]) {}, nil)
		var wg sync.WaitGroup
		var stop atomic.Bool
		var found atomic.Int64
		for g := range uint64(4) {
			wg.Go(func() {
				for n := uint64(1); !stop.Load(); n++ {
					id := (n%16)<<8 | g + 1
					var s Span[payload, struct{}]
					if !tt.Reserve(id, &s) {
						continue
					}
					ordered.Put(&s.Data().a, n<<16|id)
					ordered.Put(&s.Data().b, ^(n<<16 | id))
					s.Commit(id, id)
					// The one before this, so that there is always one to be found.
					id = (n-1)%16<<8 | g + 1
					if tt.Find(sdkspan.Key{TraceIDHigh: id, TraceIDLow: id, SpanID: id}, &s) && s.Claim() {
						if s.Data().a != ^s.Data().b || s.Data().a&0xFFFF != id {
							stop.Store(true)
							t.Errorf("took %x, %x as %x", s.Data().a, s.Data().b, id)
						}
						s.Free()
					}
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				for n := uint64(0); found.Load() < 20_000 && !stop.Load(); n++ {
					id := (n%16)<<8 | n%4 + 1
					var s Span[payload, struct{}]
					if !tt.Find(sdkspan.Key{TraceIDHigh: id, TraceIDLow: id, SpanID: id}, &s) {
						continue
					}
					a, b := atomic.LoadUint64(&s.Data().a), atomic.LoadUint64(&s.Data().b)
					if s.Changed() {
						continue
					}
					found.Add(1)
					if a != ^b || a&0xFFFF != id {
						stop.Store(true)
						t.Errorf("found %x, %x as %x", a, b, id)
					}
				}
				stop.Store(true)
			})
		}
		wg.Wait()
	}
}

// An entry that holds a span is the span's alone until that gives way: whoever looks for
// a free one does not touch it, not even for a moment, in which its end would miss it.
func TestALiveSpanIsLeftAlone(t *testing.T) {
	tt := newTestTable([levels]int{1, 1, 1}, nil)
	for i := range uint64(ways - 1) {
		tt.add(t, 1, 100+i) // leaves one entry to fight for
	}
	reserve := func(s *testSpan) bool {
		for way := range uint64(ways) {
			if c := &tt.buckets[0].cells[way]; s.claimFree(c, 0) {
				s.cell, s.entry = c, &tt.buckets[0].entries[way]
				return true
			}
		}
		return false
	}
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			for range 500_000 {
				s := testSpan{ID: g + 1}
				if !reserve(&s) {
					continue
				}
				s.Commit(1, 1)
				var found testSpan
				if !tt.take(sdkspan.Key{TraceIDHigh: 1, TraceIDLow: 1, SpanID: g + 1}, &found) || found.At != s.At {
					t.Error("somebody has claimed it")
					return
				}
				found.Free()
			}
		})
	}
	wg.Wait()
}
