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

// Where a world has its cells. They are few, so that they are soon used for other spans.
const (
	fakeSpans  = 0x80_0000
	worldCells = 12
)

// spanWorld is a world that keeps its spans in cells, as spanctx does. A span that ends is
// over in its cell and its records at once. Slots and labels stay as they are, but for those
// of the goroutine that ends it.
type spanWorld struct {
	*world

	free []uint32
	// live are the live spans in the order of their starts, refs what names all spans, and
	// records the records of each.
	live    []uint64
	refs    map[uint64]uint64
	records map[uint64][]uint64
	// stacks are what goroutines are in, the innermost last. A span that is over stays
	// there until its goroutine goes on.
	stacks map[*worldGoroutine][]worldPosition
	labels map[*worldGoroutine]uint64
	// acting is who goes to a position or leaves the span leaving, in the step that is
	// under way.
	acting  *worldGoroutine
	to      uint64
	leaving uint64
	// shows is the span that each goroutine shows.
	shows map[*worldGoroutine]uint64
	// been has the spans that goroutines have ever been in.
	been map[uint64][]uint64
}

// worldPosition is a span, or 0 for nothing.
type worldPosition struct {
	span, record uint64
	attached     bool
}

func newSpanWorld(seed uint64) *spanWorld {
	w := &spanWorld{
		world: newWorld(seed), refs: map[uint64]uint64{}, records: map[uint64][]uint64{},
		stacks: map[*worldGoroutine][]worldPosition{}, labels: map[*worldGoroutine]uint64{},
		been: map[uint64][]uint64{}, shows: map[*worldGoroutine]uint64{},
	}
	w.pieces[fakeSpans] = make([]byte, wire.SpansHeaderSize+worldCells*wire.CellSize)
	for i, v := range []uint32{wire.SpansMagic, wire.SpansLayout1, worldCells, wire.CellSize, wire.SpansHeaderSize, worldCells} {
		binary.NativeEndian.PutUint32(w.pieces[fakeSpans][4*i:], v)
	}
	for i := range uint32(worldCells) {
		w.free = append(w.free, i)
	}
	return w
}

// cell returns the cell of a reference.
func (w *spanWorld) cell(ref uint64) []byte {
	return w.pieces[fakeSpans][wire.SpansHeaderSize+wire.CellSize*wire.RefIndex(ref):][:wire.CellSize]
}

// worldTable describes the cells.
func worldTable() *SpanTable {
	t := &SpanTable{
		Address: fakeSpans, HeaderSize: wire.SpansHeaderSize, CellSize: wire.CellSize, Capacity: worldCells, Fields: map[string]int{},
	}
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
		v.enclosingOffset = worldEnclosing
	}
	return v
}

// isLive reports whether a span is.
func (w *spanWorld) isLive(span uint64) bool { return slices.Contains(w.live, span) }

// innermost returns the live span that a goroutine with a stack is in, or 0, and its record.
func (w *spanWorld) innermost(stack []worldPosition) (span, record uint64) {
	for _, p := range slices.Backward(stack) {
		if p.span == 0 || w.isLive(p.span) {
			return p.span, p.record
		}
	}
	return 0, 0
}

// enclosing returns references to the live spans that a goroutine with a stack is in.
func (w *spanWorld) enclosing(stack []worldPosition) []uint64 {
	refs := make([]uint64, 0, wire.Enclosing)
	for i := len(stack) - 1; i >= 0 && stack[i].span != 0 && len(refs) < wire.Enclosing; i-- {
		if w.isLive(stack[i].span) {
			refs = append(refs, w.refs[stack[i].span])
		}
	}
	return append(refs, make([]uint64, wire.Enclosing-len(refs))...)
}

// record returns the address of a new record of a span, 0 if there is no room.
func (w *spanWorld) record(span uint64, enclosing []uint64) uint64 {
	if w.heap+worldRecordSize > fakeHeap+fakeHeapSize {
		return 0
	}
	at := w.newRecord(span, enclosing...)
	w.records[span] = append(w.records[span], at)
	return at
}

func (w *spanWorld) label(g *worldGoroutine, record uint64) func() {
	return func() {
		w.labels[g] = record
		put64(w.pieces[g.g][fakeOffsets.GLabels:], record)
	}
}

// show is the steps of showing a span or 0 in the slots of a goroutine.
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
		setThread(w.shows[g], 0)
		setThread(span, tid)
		w.shows[g] = span
	})
	for i, slot := range w.slots(g.goid) {
		if i == 1 || g == w.running {
			steps = append(steps, w.storeRef(slot, g.goid, span, w.refs[span])...)
		}
	}
	return steps
}

// trim returns a stack without the spans at its top that are over.
func (w *spanWorld) trim(stack []worldPosition) []worldPosition {
	for len(stack) > 0 && stack[len(stack)-1].span != 0 && !w.isLive(stack[len(stack)-1].span) {
		stack = stack[:len(stack)-1]
	}
	return slices.Clip(stack)
}

// goTo is the steps of a goroutine that goes to the innermost position of a stack.
func (w *spanWorld) goTo(g *worldGoroutine, stack []worldPosition) []func() {
	stack = w.trim(stack)
	span, record := w.innermost(stack)
	steps := []func(){func() { w.acting, w.to = g, span }, w.label(g, record)}
	w.been[g.goid] = append(w.been[g.goid], span)
	return append(append(steps, w.show(g, span)...), func() { w.stacks[g], w.acting = stack, nil })
}

func (w *spanWorld) act() {
	g := w.goroutines[w.rand.IntN(len(w.goroutines))]
	stack := w.trim(w.stacks[g])
	switch what := w.rand.IntN(16); {
	case what < 4: // another goroutine's turn on the thread, or nobody's
		w.steps = append(w.steps, func() {
			w.running = g
			curg := g.g
			if w.rand.IntN(4) == 0 {
				w.running, curg = nil, 0
			}
			put64(w.pieces[fakeM][fakeOffsets.MCurg:], curg)
		})
	case what < 8:
		if len(stack) < 8 {
			w.start(g, stack)
		}
	case what < 13:
		w.end()
	case what == 13: // attach to another goroutine's span, or to nothing
		position := worldPosition{attached: true}
		if len(w.live) > 0 && w.rand.IntN(3) > 0 {
			position.span = w.live[w.rand.IntN(len(w.live))]
			if binary.NativeEndian.Uint64(w.cell(w.refs[position.span])[0x28:]) == g.goid {
				return // its cell would say what is around it where it was started
			}
			if position.record = w.record(position.span, w.enclosing(stack)); position.record == 0 {
				return
			}
		}
		if len(stack) < 8 {
			w.steps = append(w.steps, w.goTo(g, append(stack, position))...)
		}
	case what == 14 && len(stack) > 0 && stack[len(stack)-1].attached:
		w.steps = append(w.steps, w.goTo(g, stack[:len(stack)-1])...)
	case what == 15 && g != w.running: // the goroutine ends, and its g is that of one that another one starts
		parent := w.goroutines[w.rand.IntN(len(w.goroutines))]
		w.steps = append(w.steps, func() {
			g.goid += uint64(len(w.goroutines))
			put64(w.pieces[g.g][fakeOffsets.GGoid:], g.goid)
			w.stacks[g] = slices.Clone(w.stacks[parent])
			for _, p := range w.stacks[g] {
				w.been[g.goid] = append(w.been[g.goid], p.span)
			}
			w.label(g, w.labels[parent])()
		})
	}
}

// start begins a span on a goroutine.
func (w *spanWorld) start(g *worldGoroutine, stack []worldPosition) {
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
	enclosing := w.enclosing(stack)
	record := w.record(span, enclosing)
	w.steps = append(w.steps,
		func() { w.acting, w.to = g, span },
		func() { put64(cell, ref|wire.CellOver) },
		w.label(g, record),
		func() { put64(cell[0x10:], worldTraceID(span)) },
		func() { put64(cell[0x18:], span) },
		func() { put64(cell[0x20:], span); put64(cell[0x28:], g.goid) },
		func() {
			for i, e := range enclosing {
				put64(cell[0x30+8*i:], e)
			}
			put64(cell[0x48:], 1)
			put64(cell[0x50:], span)
		},
		func() { put64(cell, ref); w.live = append(w.live, span) },
	)
	w.been[g.goid] = append(w.been[g.goid], span)
	w.steps = append(w.steps, w.show(g, span)...)
	w.steps = append(w.steps, func() { w.stacks[g], w.acting = append(stack, worldPosition{span: span, record: record}), nil })
}

// end ends any span, on a goroutine that is in it or elsewhere.
func (w *spanWorld) end() {
	if len(w.live) == 0 {
		return
	}
	span := w.live[w.rand.IntN(len(w.live))]
	by, at := w.goroutines[w.rand.IntN(len(w.goroutines))], -1
	if w.rand.IntN(3) > 0 {
		at = slices.IndexFunc(w.stacks[by], func(p worldPosition) bool { return p.span == span })
	}
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
		if at >= 0 { // it leaves what is inside of it too
			w.steps = append(w.steps, w.goTo(by, slices.Clip(w.stacks[by][:at]))...)
		}
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

// note notes what is true, or if before is true what was true before, of spans that are
// live.
func (w *spanWorld) note(before bool) {
	g := w.running
	if g == nil || w.truths == nil {
		return
	}
	truth := func(span uint64) { w.truths[fmt.Sprint(g.goid, span)] = true }
	span, _ := w.innermost(w.stacks[g])
	truth(span)
	if w.acting == g {
		truth(w.to)
	}
	for _, p := range w.stacks[g] {
		if p.span == w.leaving {
			truth(p.span)
		}
	}
	for _, span := range w.been[g.goid] {
		if before && (span == w.leaving || w.isLive(span)) {
			truth(span)
		}
	}
}

// Spans start and end, on their goroutines and elsewhere. Their cells are used again, and
// goroutines attach to spans and to nothing. All of that happens between any two words that
// are read. What is proven was true at a moment of the reading.
//
// A thread's slot may show what the goroutine was in when it was last on that thread. The
// goroutine may have changed spans on another thread since, while this span is live. So
// without goroutine slots any live span counts that the goroutine has been in.
func TestSpanThatIsShownWasLive(t *testing.T) {
	for _, which := range []string{"t", "tr", "tg", "tgr", "g", "r", "gr"} {
		t.Run(which, func(t *testing.T) {
			shown, idle, outward := 0, 0, 0
			stale := strings.Contains(which, "t") && !strings.Contains(which, "g")
			for seed := range uint64(testenv.Rounds(6, 60)) {
				w := newSpanWorld(seed)
				l := newThreadLook(w, w.view(t, which))
				pace := []int{1000, 300, 100, 40, 15, 5}[seed%6]
				for range 400 {
					for range w.rand.IntN(60) {
						w.step(stale)
					}
					w.truths = map[string]bool{}
					w.note(stale)
					w.beforeWord = func() {
						for w.rand.IntN(pace) == 0 {
							w.step(stale)
							if w.rand.IntN(8) == 0 {
								break
							}
						}
					}
					thread := Thread{TID: fakeTID, OwnTID: fakeTID}
					before := w.calls
					require.NoError(t, l.at(&thread, fakeM))
					require.LessOrEqual(t, w.calls-before, 3*maxLooks)
					w.beforeWord = nil
					s := thread.Span
					if s == nil {
						idle++
						continue
					}
					shown++
					id := binary.BigEndian.Uint64(s.SpanID[:])
					require.True(t, s.Proven)
					require.Equal(t, worldTraceID(id), binary.BigEndian.Uint64(s.TraceID[8:]))
					if s.LocalRootSpanID != [8]byte{} {
						require.Equal(t, s.SpanID, s.LocalRootSpanID)
					}
					require.Contains(t, w.truths, fmt.Sprint(thread.Goroutine, id), "%v, seed %d", s.Carrier, seed)
					if top := w.stacks[w.running]; len(top) > 0 && top[len(top)-1].span != id {
						outward++
					}
				}
			}
			t.Logf("%d shown, %d of them around another one, %d not", shown, outward, idle)
			assert.Greater(t, shown, 300)
			assert.Greater(t, outward, 10)
		})
	}
}
