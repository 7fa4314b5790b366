// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
)

// evicted collects the spans that a table evicts. Pinned goroutines add to it, so adding must
// neither allocate nor block.
type evicted struct {
	n    atomic.Int64
	refs [1 << 18]Ref
}

func (e *evicted) add(r Ref) { e.refs[e.n.Add(1)-1] = r }

// all returns the evicted spans. It fails the test if a span was evicted twice.
func (e *evicted) all(t testing.TB) map[Ref]bool {
	t.Helper()
	all := map[Ref]bool{}
	for _, r := range e.refs[:e.n.Load()] {
		if all[r] {
			t.Errorf("%#x was evicted twice", r)
		}
		all[r] = true
	}
	return all
}

func spareNone(Ref, uint64, uintptr) bool { return false }

// newTable returns a table that is closed when the test ends, and a collection of the spans that it
// evicts. If spare is nil, no span is spared.
func newTable(t testing.TB, heap bool, spare func(Ref, uint64, uintptr) bool) (*Table, *evicted) {
	t.Helper()
	if !goruntime.Supported {
		t.Skip("nothing can be mapped on this platform")
	}
	e := new(evicted)
	if spare == nil {
		spare = spareNone
	}
	var table *Table
	kind := vma.Published
	if heap {
		kind = vma.Heap
	}
	table, err := New(Options{Memory: kind, Spare: spare, Evict: func(r Ref) bool {
		ended := table.End(r)
		if ended {
			e.add(r)
		}
		return ended
	}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, table.Close()) })
	return table, e
}

// mix is a bijection, the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// spanOf returns the content of the span that tests start with a Ref. It depends only on the Ref,
// so any goroutine can compute the expected content of the cell. There are only two goroutine ids,
// so that consecutive spans in a cell often have the same id.
func spanOf(r Ref) Span {
	x := uint64(r)
	return Span{
		Key:             sdkspan.Key{TraceIDHigh: mix(x + 1), TraceIDLow: mix(x + 2), SpanID: mix(x)},
		LocalRootSpanID: mix(x + 3), Goid: 1 + mix(x+4)%2,
		Ancestors:  Ancestors{Ref(mix(x + 5)), Ref(mix(x + 6)), Ref(mix(x + 7))},
		Dispatched: mix(x+13)%2 == 0, Previous: ActiveSpan(mix(x + 14)),
		TraceFlags: uint8(mix(x + 8)), StartUnixNS: mix(x+9) >> 1, G: uintptr(mix(x + 10)),
		Name: uint16(mix(x + 11)), Endpoint: uint16(mix(x + 12)),
	}
}

// start starts a span with the content from spanOf, modified by change. It returns 0 if no cell is
// available.
func (t *Table) start(change ...func(*Span)) Ref {
	p := goruntime.Pin()
	defer goruntime.Unpin()
	return t.startOn(p, change...)
}

// startOn does the same as start on P number p, to which the caller must be pinned.
func (t *Table) startOn(p int, change ...func(*Span)) Ref {
	r := t.Reserve(p)
	if r == 0 {
		return 0
	}
	s := spanOf(r)
	for _, f := range change {
		f(&s)
	}
	t.Commit(p, r, &s)
	return r
}

// end ends a span and frees its cell. It returns false if the span had already ended.
func (t *Table) end(r Ref, warm bool) bool {
	if !t.End(r) {
		return false
	}
	t.freeCell(r, warm)
	return true
}

// freeCell frees the cell of an ended span. If warm is true, the next span on this P reuses the
// cell.
func (t *Table) freeCell(r Ref, warm bool) {
	p := goruntime.Pin()
	again := warm && t.FreeWarm(p, r)
	goruntime.Unpin()
	if !again {
		t.Free(r)
	}
}

// rounds is like [testenv.Rounds], but returns a tenth under the race detector, which slows these
// tests down.
func rounds(usually, all int) int {
	n := testenv.Rounds(usually, all)
	if testenv.Race {
		n /= 10
	}
	return n
}

// moreProcessors raises GOMAXPROCS to at least 8. If there are fewer CPUs, the kernel also preempts
// goroutines, at any instruction.
func moreProcessors(t *testing.T) {
	t.Helper()
	old := runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// ancestorsOf returns the ancestors of a span, or zeros if its cell was reused.
func (t *Table) ancestorsOf(r Ref) Ancestors {
	var l lineage
	if !t.lineage(r, &l) {
		return Ancestors{}
	}
	return l.ancestors
}

func (t *Table) live() map[Ref]bool {
	all := map[Ref]bool{}
	t.All(func(r Ref) { all[r] = true })
	return all
}

// takeFree takes all free cells out of the table and returns them. It fails the test if a cell is
// free twice.
func (t *Table) takeFree(tb testing.TB) map[uint32]bool {
	tb.Helper()
	free := map[uint32]bool{}
	add := func(index uint32) {
		if free[index] {
			tb.Errorf("cell %d is free twice", index)
		}
		free[index] = true
	}
	for i := range t.locals {
		for _, index := range t.locals[i].free[:t.locals[i].n] {
			add(index)
		}
		t.locals[i].n = 0
	}
	for index, ok := t.free.pop(); ok; index, ok = t.free.pop() {
		add(index)
	}
	return free
}
