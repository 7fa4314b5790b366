// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	fakeSpans  = 0x80_0000
	worldCells = 12 // few, so that cells are soon reused
)

// spanWorld is a world in which goroutines start and end spans, on the observed thread and
// elsewhere. It changes in small steps, and records after each step which span is the true active
// span of the running goroutine.
//
// Its memory changes like the memory of a process that uses spanctx. Ending a span changes its cell
// and its records. Only the goroutine that ends a span may then change its own slot, entry and
// labels; those of other goroutines still refer to the ended span.
type spanWorld struct {
	*world

	free []uint32
	// live holds the live spans in start order. refs holds the reference to each span's cell, and
	// records the addresses of each span's records.
	live    []uint64
	refs    map[uint64]uint64
	records map[uint64][]uint64
	spans   map[uint64]*worldSpan
	// position holds the span that each goroutine has published or inherited last, which may have
	// ended. saved holds the positions to which each goroutine returns by Detach.
	position map[*worldGoroutine]worldPosition
	saved    map[*worldGoroutine][]worldPosition
	// acting is the goroutine that is currently moving to another span, or nil. entering is the span
	// that it moves to. leaving is the span that is currently ending, or 0.
	acting   *worldGoroutine
	entering uint64
	leaving  uint64
	// visited holds all spans in which a goroutine has ever been, by goroutine id.
	visited map[uint64][]uint64
}

// worldSpan holds the properties of a span that never change.
type worldSpan struct {
	goid       uint64 // of the goroutine that started it
	ancestors  []uint64
	dispatched bool
	before     worldPosition
}

// worldPosition is a span and the address of its record, each 0 if there is none.
type worldPosition struct{ span, record uint64 }

func newSpanWorld(seed uint64) *spanWorld {
	w := &spanWorld{
		world: newWorld(seed), refs: map[uint64]uint64{}, records: map[uint64][]uint64{}, spans: map[uint64]*worldSpan{},
		position: map[*worldGoroutine]worldPosition{}, saved: map[*worldGoroutine][]worldPosition{}, visited: map[uint64][]uint64{},
	}
	w.pieces[fakeSpans] = make([]byte, wire.SpansHeaderSize+worldCells*wire.CellSize)
	w.pieces[fakeGoroutines] = make([]byte, wire.GoroutinesHeaderSize+wire.GoroutinesCapacity*wire.GoroutineEntrySize)
	for address, words := range map[uint64][]uint32{
		fakeSpans:      {wire.SpansMagic, wire.SpansLayout1, worldCells, wire.CellSize, wire.SpansHeaderSize, worldCells},
		fakeGoroutines: {wire.GoroutinesMagic, wire.GoroutinesLayout1, wire.GoroutinesCapacity, wire.GoroutineEntrySize, wire.GoroutinesHeaderSize, wire.GoroutinesCapacity},
	} {
		for i, v := range words {
			binary.NativeEndian.PutUint32(w.pieces[address][4*i:], v)
		}
	}
	for i := range uint32(worldCells) {
		w.free = append(w.free, i)
	}
	return w
}

func (w *spanWorld) cell(ref uint64) []byte {
	return w.pieces[fakeSpans][wire.SpansHeaderSize+wire.CellSize*wire.RefIndex(ref):][:wire.CellSize]
}

func (w *spanWorld) entry(g *worldGoroutine) []byte {
	return w.pieces[fakeGoroutines][wire.GoroutinesHeaderSize+wire.GoroutineEntrySize*wire.GoroutineIndex(g.goid):][:wire.GoroutineEntrySize]
}

// publish returns a step that stores both words of the goroutine's entry.
func (w *spanWorld) publish(g *worldGoroutine, ref uint64) func() {
	return func() {
		put64(w.entry(g), ref)
		put64(w.entry(g)[8:], wire.GoroutineCheck(g.goid, g.g, wire.ActiveSpan(ref)))
	}
}

// worldTable returns the location and layout of the world's cells.
func worldTable() *spanTable {
	t := &spanTable{Table: &Table{
		Address: fakeSpans, HeaderSize: wire.SpansHeaderSize, EntrySize: wire.CellSize, Capacity: worldCells, Layout: wire.SpansLayout1,
		Fields: map[string]int{},
	}}
	for i, f := range wire.CellFields() {
		t.Fields[f.Name], t.offsets[i] = int(f.Offset), int(f.Offset)
	}
	return t
}

func (w *spanWorld) view(t testing.TB, which string) *threadView {
	t.Helper()
	v := w.world.view(t, which)
	v.spans = worldTable()
	if strings.Contains(which, "r") {
		v.record.Ancestors = worldAncestors
	}
	return v
}

func (w *spanWorld) isLive(span uint64) bool { return slices.Contains(w.live, span) }

// nearest returns the true active span of a goroutine whose last published span is position.
func (w *spanWorld) nearest(g *worldGoroutine, position worldPosition) worldPosition {
	if position.span == 0 || w.isLive(position.span) {
		return position
	}
	s := w.spans[position.span]
	if s.dispatched && s.goid == g.goid {
		return worldPosition{}
	}
	for _, ancestor := range s.ancestors {
		if w.isLive(ancestor) {
			return worldPosition{ancestor, w.records[ancestor][0]}
		}
	}
	return worldPosition{}
}

// record creates another record of a span and returns its address, or 0 if there is no space left.
func (w *spanWorld) record(span uint64) uint64 {
	if w.heap+worldRecordSize > fakeHeap+fakeHeapSize {
		return 0
	}
	s, ancestors := w.spans[span], make([]uint64, wire.Ancestors+1)
	for i, ancestor := range s.ancestors {
		ancestors[i] = w.refs[ancestor]
	}
	if s.dispatched {
		ancestors[wire.Ancestors] = s.goid
	}
	address := w.newRecord(span, ancestors...)
	w.records[span] = append(w.records[span], address)
	return address
}

func (w *spanWorld) label(g *worldGoroutine, record uint64) func() {
	return func() { put64(w.pieces[g.g][fakeOffsets.GLabels:], record) }
}

// show returns the steps in which a goroutine publishes a span in its entry and in the slot of its
// thread. A span of 0 means that it is in no span.
func (w *spanWorld) show(g *worldGoroutine, span uint64) (steps []func()) {
	setThread := func(span uint64, tid uint32) {
		cell := w.cell(w.refs[span])
		if span != 0 && binary.NativeEndian.Uint64(cell[0x28:]) == g.goid && binary.NativeEndian.Uint64(cell)&^wire.CellOver == w.refs[span] {
			binary.NativeEndian.PutUint32(cell[0x60:], tid)
		}
	}
	steps = append(steps, func() {
		tid := uint32(fakeTID)
		if g != w.running {
			tid++
		}
		setThread(w.position[g].span, 0)
		setThread(span, tid)
	}, func() { put64(w.entry(g), w.refs[span]) }, w.publish(g, w.refs[span]))
	if g == w.running {
		steps = append(steps, w.storeRef(w.slot(), g.goid, span, w.refs[span])...)
	}
	return steps
}

// goTo returns the steps in which a goroutine moves to another span.
func (w *spanWorld) goTo(g *worldGoroutine, position worldPosition) []func() {
	steps := []func(){func() { w.acting, w.entering = g, position.span }, w.label(g, position.record)}
	w.visited[g.goid] = append(w.visited[g.goid], position.span)
	return append(append(steps, w.show(g, position.span)...), func() { w.position[g], w.acting = position, nil })
}

func (w *spanWorld) act() {
	g := w.goroutines[w.rand.IntN(len(w.goroutines))]
	switch what := w.rand.IntN(16); {
	case what < 4: // the thread switches to another goroutine, or to none
		w.steps = append(w.steps, func() { w.schedule(g) })
	case what < 8:
		w.start(g)
	case what < 13:
		w.end()
	case what == 13 && len(w.saved[g]) < 4: // the goroutine attaches any span, or none
		var to worldPosition
		if len(w.live) > 0 && w.rand.IntN(3) > 0 {
			to.span = w.live[w.rand.IntN(len(w.live))]
			if to.record = w.record(to.span); to.record == 0 {
				return
			}
		}
		w.saved[g] = append(w.saved[g], w.nearest(g, w.position[g]))
		w.steps = append(w.steps, w.goTo(g, to)...)
	case what == 14 && len(w.saved[g]) > 0:
		last := len(w.saved[g]) - 1
		to := w.saved[g][last]
		w.saved[g] = w.saved[g][:last]
		w.steps = append(w.steps, w.goTo(g, w.nearest(g, to))...)
	case what == 15 && g != w.running: // the goroutine exits, and another one starts a goroutine that reuses its g
		parent := w.goroutines[w.rand.IntN(len(w.goroutines))]
		w.steps = append(w.steps, func() {
			g.goid += uint64(len(w.goroutines))
			put64(w.pieces[g.g][fakeOffsets.GGoid:], g.goid)
			record := binary.NativeEndian.Uint64(w.pieces[parent.g][fakeOffsets.GLabels:])
			w.position[g], w.saved[g] = worldPosition{w.position[parent].span, record}, nil
			if record == 0 {
				w.position[g] = worldPosition{}
			}
			w.visited[g.goid] = append(w.visited[g.goid], w.position[g].span)
			w.label(g, record)()
		})
	}
}

// start adds the steps in which a goroutine starts a span. Its parent is the goroutine's active
// span or, sometimes, any live span.
func (w *spanWorld) start(g *worldGoroutine) {
	if len(w.free) == 0 || w.heap+worldRecordSize > fakeHeap+fakeHeapSize {
		return
	}
	n := w.rand.IntN(len(w.free))
	index := w.free[n]
	w.free = slices.Delete(w.free, n, n+1)
	w.lastSpan++
	span := w.lastSpan
	cell := w.cell(uint64(index) << wire.RefIndexShift)
	ref := binary.NativeEndian.Uint64(cell)&^(wire.RefGeneration-1) + wire.RefGeneration | uint64(index)<<wire.RefIndexShift
	w.refs[span] = ref
	s := &worldSpan{goid: g.goid, before: w.nearest(g, w.position[g])}
	parent := s.before.span
	if len(w.live) > 0 && w.rand.IntN(4) == 0 {
		parent = w.live[w.rand.IntN(len(w.live))]
	}
	if parent != 0 {
		s.ancestors = append([]uint64{parent}, w.spans[parent].ancestors...)
		s.ancestors = s.ancestors[:min(len(s.ancestors), wire.Ancestors)]
		s.dispatched = !slices.Contains(s.ancestors, s.before.span)
	}
	w.spans[span] = s
	record := w.record(span)
	w.steps = append(w.steps,
		func() { w.acting, w.entering = g, span },
		func() { put64(cell, ref|wire.CellOver) },
		w.label(g, record),
		func() { put64(cell[0x10:], worldTraceID(span)) },
		func() { put64(cell[0x18:], span) },
		func() { put64(cell[0x20:], span); put64(cell[0x28:], g.goid) },
		func() {
			clear(cell[0x30:0x48])
			for i, ancestor := range s.ancestors {
				put64(cell[0x30+8*i:], w.refs[ancestor])
			}
			put64(cell[0x48:], 1)
			if s.dispatched {
				put64(cell[0x48:], 1|wire.CellDispatched)
			}
			put64(cell[0x50:], span)
		},
		func() { put64(cell, ref); w.live = append(w.live, span) },
	)
	w.visited[g.goid] = append(w.visited[g.goid], span)
	w.steps = append(w.steps, w.show(g, span)...)
	w.steps = append(w.steps, func() { w.position[g], w.acting = worldPosition{span, record}, nil })
}

// end adds the steps in which a goroutine ends any live span. It may or may not be in that span.
func (w *spanWorld) end() {
	if len(w.live) == 0 {
		return
	}
	span := w.live[w.rand.IntN(len(w.live))]
	by := w.goroutines[w.rand.IntN(len(w.goroutines))]
	in := w.rand.IntN(3) > 0 && w.position[by].span == span
	w.steps = append(w.steps, func() { w.leaving = span }, func() {
		put64(w.cell(w.refs[span]), w.refs[span]|wire.CellOver)
		w.live = slices.DeleteFunc(w.live, func(s uint64) bool { return s == span })
	})
	for _, record := range w.records[span] {
		w.steps = append(w.steps, func() { w.pieces[fakeHeap][record-fakeHeap+worldRecord+24] = 0 })
	}
	w.steps = append(w.steps, func() {
		w.leaving = 0
		w.free = append(w.free, wire.RefIndex(w.refs[span]))
		if !in {
			return
		}
		from := worldPosition{span: span}
		if w.spans[span].goid == by.goid {
			from = w.spans[span].before
		}
		w.steps = append(w.steps, w.goTo(by, w.nearest(by, from))...)
	})
}

func (w *spanWorld) step(before bool) {
	if len(w.steps) == 0 {
		w.act()
	}
	if len(w.steps) > 0 {
		do := w.steps[0]
		w.steps = w.steps[1:]
		do()
	}
	w.note(before)
}

// note records which spans a reader may report for the running goroutine at this moment. If before
// is true, these include all live spans in which the goroutine has ever been, and their ancestors.
func (w *spanWorld) note(before bool) {
	g := w.running
	if g == nil || w.truths == nil {
		return
	}
	truth := func(span uint64) { w.truths[fmt.Sprint(g.goid, span)] = true }
	truth(w.nearest(g, w.position[g]).span)
	if w.acting == g {
		truth(w.nearest(g, worldPosition{span: w.entering}).span)
		truth(w.entering)
	}
	if w.position[g].span == w.leaving {
		truth(w.leaving)
	}
	if !before {
		return
	}
	for _, span := range w.visited[g.goid] {
		if span == 0 {
			continue
		}
		for _, span := range append([]uint64{span}, w.spans[span].ancestors...) {
			if span == w.leaving || w.isLive(span) {
				truth(span)
			}
		}
	}
}

// TestProvenSpanWasLive checks that a proven span was the true one at some moment during the read.
// Between any two words that the reader reads, goroutines may start and end spans, attach them and
// detach from them, end each other's spans, and reuse cells.
//
// With slots but no goroutine table, the test accepts any live span in which the goroutine has ever
// been. The reason is that the slot has the span in which the goroutine was when it last ran on the
// thread. That span may still be live although the goroutine has entered another one on another
// thread.
func TestProvenSpanWasLive(t *testing.T) {
	for _, which := range []string{"t", "tr", "tg", "tgr", "g", "r", "gr", "r without a span table"} {
		t.Run(which, func(t *testing.T) {
			which, _, withoutTable := strings.Cut(which, " ")
			shown, idle, ancestors := 0, 0, 0
			stale := strings.Contains(which, "t") && !strings.Contains(which, "g")
			for seed := range uint64(testenv.Rounds(6, 60)) {
				w := newSpanWorld(seed)
				view := w.view(t, which)
				if withoutTable {
					view.spans, view.record.Ancestors = nil, 0
				}
				l := newThreadReader(w, view)
				step, note := func() { w.step(stale) }, func() { w.note(stale) }
				idle += w.readWhileMoving(t, l, seed, 60, step, note, func(s *ThreadSpan, id uint64) {
					shown++
					if s.LocalRootSpanID != [8]byte{} {
						require.Equal(t, s.SpanID, s.LocalRootSpanID)
					}
					if w.position[w.running].span != id {
						ancestors++
					}
				})
			}
			t.Logf("%d shown, %d of them ancestors, %d not", shown, ancestors, idle)
			assert.Greater(t, shown, 300)
			assert.True(t, withoutTable || ancestors > 10, "only cells lead to ancestors")
		})
	}
}
