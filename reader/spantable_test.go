// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/wire"
)

// stillSpanWorld returns a world that does not change. Goroutine 1 is running in span 2, which it
// has started in span 1.
func stillSpanWorld(t *testing.T) *spanWorld {
	t.Helper()
	w := newSpanWorld(1)
	g := w.goroutines[0]
	w.running = g
	put64(w.pieces[fakeM][fakeOffsets.MCurg:], g.g)
	for range 2 {
		w.start(g)
		for len(w.steps) > 0 {
			do := w.steps[0]
			w.steps = w.steps[1:]
			do()
		}
	}
	return w
}

// endElsewhere ends a span as another goroutine does: it changes only the span's cell and records.
func (w *spanWorld) endElsewhere(span uint64) {
	put64(w.cell(w.refs[span]), w.refs[span]|wire.CellOver)
	for _, record := range w.records[span] {
		w.pieces[fakeHeap][record-fakeHeap+worldRecord+24] = 0
	}
}

// dispatcher changes the cell and the record of span 2 as if the goroutine goid had started it
// without being in any of its ancestors.
func (w *spanWorld) dispatcher(goid uint64) {
	put64(w.cell(w.refs[2])[0x28:], goid)
	w.cell(w.refs[2])[0x49] = 1
	put64(w.pieces[fakeHeap][w.records[2][0]-fakeHeap+worldAncestors+8*wire.Ancestors:], goid)
}

// reuse ends a span and reuses its cell for another span.
func (w *spanWorld) reuse(span uint64) {
	w.endElsewhere(span)
	put64(w.cell(w.refs[span]), w.refs[span]+wire.RefGeneration)
}

func (w *spanWorld) lookAt(t *testing.T, which string) *ThreadSpan {
	t.Helper()
	thread := Thread{TID: fakeTID, OwnTID: fakeTID}
	require.NoError(t, newThreadReader(w, w.view(t, which)).read(&thread, fakeM))
	return thread.Span
}

// TestCellStates checks which span the reader finds through each combination of carriers, for each
// state of the published span's cell.
func TestCellStates(t *testing.T) {
	for _, which := range []string{"t", "g", "r", "tg", "tgr"} {
		for name, test := range map[string]struct {
			change func(w *spanWorld)
			// want is the span expected without a goroutine record. byRecord is the span expected
			// with one: a record has the span's ancestors even if the cell has been reused.
			want, byRecord uint64
		}{
			"live":               {func(*spanWorld) {}, 2, 2},
			"ended":              {func(w *spanWorld) { w.endElsewhere(2) }, 1, 1},
			"outer ended":        {func(w *spanWorld) { w.endElsewhere(1) }, 2, 2},
			"both ended":         {func(w *spanWorld) { w.endElsewhere(1); w.endElsewhere(2) }, 0, 0},
			"reused":             {func(w *spanWorld) { w.reuse(2) }, 0, 1},
			"outer reused":       {func(w *spanWorld) { w.endElsewhere(2); w.reuse(1) }, 0, 0},
			"another starter":    {func(w *spanWorld) { w.endElsewhere(2); put64(w.cell(w.refs[2])[0x28:], 99) }, 1, 1},
			"unknown starter":    {func(w *spanWorld) { w.endElsewhere(2); put64(w.cell(w.refs[2])[0x28:], 0) }, 1, 1},
			"the dispatcher":     {func(w *spanWorld) { w.endElsewhere(2); w.dispatcher(1) }, 0, 0},
			"another dispatcher": {func(w *spanWorld) { w.endElsewhere(2); w.dispatcher(99) }, 1, 1},
		} {
			w := stillSpanWorld(t)
			test.change(w)
			want := test.want
			if which == "r" || which == "tgr" {
				want = test.byRecord
			}
			span := w.lookAt(t, which)
			if want == 0 {
				assert.Nil(t, span, "%s, %s", which, name)
			} else if assert.NotNil(t, span, "%s, %s", which, name) {
				assert.Equal(t, want, binary.BigEndian.Uint64(span.SpanID[:]), "%s, %s", which, name)
				assert.True(t, span.Proven)
			}
			assert.Less(t, w.calls, 10, "%s, %s", which, name)
		}
	}
}

// TestUntrustedCells checks that the reader returns no span if cells keep changing or references
// are invalid, and that unreadable cells do not prevent it from using records.
func TestUntrustedCells(t *testing.T) {
	w := stillSpanWorld(t)
	version := w.cell(w.refs[2])
	w.beforeWord = func() { put64(version, binary.NativeEndian.Uint64(version)^wire.CellOver) }
	assert.Nil(t, w.lookAt(t, "tg"))
	assert.LessOrEqual(t, w.calls, maxReads)

	for _, ref := range []uint64{1, wire.CellOver | wire.RefGeneration, math.MaxUint64, math.MaxUint64 - 1, 1 << 63} {
		w := stillSpanWorld(t)
		put64(w.slot()[0x28:], ref)
		w.publish(w.goroutines[0], ref)()
		assert.Nil(t, w.lookAt(t, "tg"), "%#x", ref)
		put64(w.cell(ref%worldCells), ref)
		w.lookAt(t, "tg")
	}
	w = stillSpanWorld(t)
	delete(w.pieces, fakeSpans)
	assert.Nil(t, w.lookAt(t, "tg"))
	require.NotNil(t, w.lookAt(t, "r"))
	assert.Equal(t, GoroutineRecord, w.lookAt(t, "tgr").Carrier)
	assert.Less(t, w.calls, 30)
}

// goodTable returns a valid advertisement that includes the ancestors in records.
func goodTable() map[string]*commonpb.AnyValue {
	a := goodAdvertisement()
	a[wire.KeyGo+wire.GoKeyAncestorsOffset] = intValue(worldAncestors)
	return a
}

// headedSpans returns the world of stillSpanWorld, with a header for its ring.
func headedSpans(t *testing.T) *spanWorld {
	t.Helper()
	w := stillSpanWorld(t)
	copy(w.pieces[fakeRing][:24], headed(t).pieces[fakeRing][:24])
	return w
}

// TestInvalidSpanTable checks that the reader ignores an invalid span table. It then uses the span
// in a slot, even if that span has ended.
func TestInvalidSpanTable(t *testing.T) {
	type advertised = map[string]*commonpb.AnyValue
	set := func(key string, v *commonpb.AnyValue) func(advertised, *spanWorld) {
		return func(a advertised, _ *spanWorld) { a[wire.KeySpans+key] = v }
	}
	without := func(key string) func(advertised, *spanWorld) {
		return func(a advertised, _ *spanWorld) { delete(a, wire.KeySpans+key) }
	}
	field := func(name string, offset int64) func(advertised, *spanWorld) {
		return func(a advertised, _ *spanWorld) {
			list := a[wire.KeySpans+wire.RingKeyFields].GetKvlistValue()
			list.Values = append(list.Values, keyValue(name, intValue(offset)))
		}
	}
	header := func(word int, v uint32) func(advertised, *spanWorld) {
		return func(_ advertised, w *spanWorld) { binary.NativeEndian.PutUint32(w.pieces[fakeSpans][4*word:], v) }
	}
	cases := map[string]func(advertised, *spanWorld){
		"address unreadable":  set(wire.RingKeyAddress, intValue(0x99_0000)),
		"address negative":    set(wire.RingKeyAddress, intValue(-8)),
		"address 0":           set(wire.RingKeyAddress, intValue(0)),
		"address far":         set(wire.RingKeyAddress, intValue(math.MaxInt64)),
		"address as text":     set(wire.RingKeyAddress, str("1")),
		"layout":              set(wire.RingKeyLayout, intValue(2)),
		"capacity 0":          set(wire.RingKeyCapacity, intValue(0)),
		"capacity too large":  set(wire.RingKeyCapacity, intValue(1<<19+1)),
		"capacity wrong":      set(wire.RingKeyCapacity, intValue(worldCells+1)),
		"cell size 0":         set(wire.SpansKeyCellSize, intValue(0)),
		"cell size too small": set(wire.SpansKeyCellSize, intValue(88)),
		"cell size too large": set(wire.SpansKeyCellSize, intValue(1<<20)),
		"cell size wrong":     set(wire.SpansKeyCellSize, intValue(256)),
		"header size":         set(wire.RingKeyHeaderSize, intValue(1<<40)),
		"field far":           field("span_id", 121),
		"field negative":      field("version", -1),
		"ancestors far":       field("ancestors", 112),
		"fields as text":      set(wire.RingKeyFields, str("x")),
		"header: magic":       header(0, 0),
		"header: layout":      header(1, 2),
		"header: capacity":    header(2, 1),
		"header: cell size":   header(3, 64),
		"header: header size": header(4, 64),
	}
	for _, key := range []string{
		wire.RingKeyAddress, wire.RingKeyLayout, wire.RingKeyCapacity, wire.SpansKeyCellSize, wire.RingKeyHeaderSize, wire.RingKeyFields,
	} {
		cases["no "+key] = without(key)
	}
	for i, f := range wire.CellFields() {
		cases["no field "+f.Name] = func(a advertised, _ *spanWorld) {
			fields := a[wire.KeySpans+wire.RingKeyFields].GetKvlistValue()
			fields.Values = slices.Delete(fields.GetValues(), i, i+1)
		}
	}
	w := headedSpans(t)
	v := newThreadView(w, contextOf(goodTable()))
	require.NotNil(t, v.spans)
	assert.Equal(t, worldTable(), v.spans)
	assert.Equal(t, worldAncestors, v.record.Ancestors)
	for name, change := range cases {
		w, a := headedSpans(t), goodTable()
		change(a, w)
		v := newThreadView(w, contextOf(a))
		assert.Nil(t, v.spans, name)
		w.endElsewhere(2)
		thread := Thread{TID: fakeTID, OwnTID: fakeTID}
		v.record.Offset = 0
		require.NoError(t, newThreadReader(w, v).read(&thread, fakeM), name)
		if assert.NotNil(t, thread.Span, name) {
			assert.Equal(t, [8]byte{7: 2}, thread.Span.SpanID, name)
		}
	}
	// An offset of the ancestors is invalid unless they lie between the labels and the record.
	for _, offset := range []int64{0, 8, worldRecord - 8, worldRecord + 28, -1} {
		a := goodTable()
		a[wire.KeyGo+wire.GoKeyAncestorsOffset] = intValue(offset)
		w := headedSpans(t)
		assert.Zero(t, newThreadView(w, contextOf(a)).record.Ancestors, offset)
	}
}
