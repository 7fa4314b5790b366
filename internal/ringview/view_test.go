// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringview

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

var errFault = errors.New("fault")

// viewMemory is fake memory. Its callbacks can change the content during a read.
type viewMemory struct {
	base  uint64
	bytes []byte
	// beforePart is called before each part is read, and beforeWord before each eight bytes. n is
	// the number of the call, from 1. Both may be nil.
	beforePart, beforeWord func(n int)

	parts, words, calls int
}

func (m *viewMemory) ReadParts(parts []remotemem.Part) (int, error) {
	m.calls++
	for i, p := range parts {
		m.parts++
		if m.beforePart != nil {
			m.beforePart(m.parts)
		}
		at := p.Address - m.base
		if p.Address < m.base || at > uint64(len(m.bytes)) || uint64(len(m.bytes))-at < uint64(len(p.Data)) {
			return i, fmt.Errorf("%d bytes at %#x: %w", len(p.Data), p.Address, errFault)
		}
		for done := 0; done < len(p.Data); done += 8 {
			m.words++
			if m.beforeWord != nil {
				m.beforeWord(m.words)
			}
			copy(p.Data[done:min(done+8, len(p.Data))], m.bytes[at+uint64(done):])
		}
	}
	return len(parts), nil
}

const viewBase = 0x7f00_0000_1000

// newViewMemory returns the memory of an empty ring that info describes.
func newViewMemory(info Info) *viewMemory {
	m := &viewMemory{base: info.Address, bytes: make([]byte, info.HeaderSize+info.Capacity*info.SlotSize)}
	header := []uint32{wire.RingMagic, uint32(info.Layout), uint32(info.Capacity), uint32(info.SlotSize)}
	if info.Layout == wire.RingLayout2 {
		header = append(header, uint32(info.HeaderSize), uint32(info.Index))
	}
	for i, v := range header {
		binary.NativeEndian.PutUint32(m.bytes[4*i:], v)
	}
	return m
}

func info1(capacity int) Info {
	return Info{Address: viewBase, Layout: 1, Capacity: capacity, HeaderSize: 32, SlotSize: 32}
}

func info2(capacity, slotSize int, index int) Info {
	return Info{Address: viewBase, Layout: 2, Capacity: capacity, HeaderSize: 64, SlotSize: slotSize, Index: index}
}

func (m *viewMemory) slot(i Info, n int) []byte {
	return m.bytes[i.HeaderSize+n*i.SlotSize:][:i.SlotSize]
}

type rawSlot struct {
	high, low, span uint64
	inUse, flags    byte
	attrsSize       uint16
	seq             uint32
	owner, ref      uint64
	m               uint64
	tid             uint32
	attrs           []byte
}

// put writes the bytes of a slot of layout 2, or as many of them as fit into b.
func (r *rawSlot) put(b []byte) {
	full := make([]byte, 64, 64+len(r.attrs))
	ne := binary.NativeEndian
	ne.PutUint64(full[0x00:], r.high)
	ne.PutUint64(full[0x08:], r.low)
	ne.PutUint64(full[0x10:], r.span)
	full[0x18], full[0x19] = r.inUse, r.flags
	ne.PutUint16(full[0x1a:], r.attrsSize)
	ne.PutUint32(full[0x1c:], r.seq)
	ne.PutUint64(full[0x20:], r.owner)
	ne.PutUint64(full[0x28:], r.ref)
	ne.PutUint64(full[0x30:], r.m)
	ne.PutUint32(full[0x38:], r.tid)
	copy(b, append(full, r.attrs...))
}

// raw returns the content of the slot of thread 5 after write number n. Its values depend on n, so
// that mixtures of two writes are recognized.
func raw(n uint64) rawSlot {
	return rawSlot{
		high: n * 0x0101, low: n * 0x0202, span: n * 0x0303, flags: 1, seq: uint32(n),
		owner: n * 7, ref: n * 0x0404, m: n * 0x1000, tid: 5,
	}
}

// slotOf returns raw(n) as a View must return it.
func slotOf(n uint64) Slot {
	s := Slot{Owner: n * 7, Ref: n * 0x0404, M: n * 0x1000, TID: 5, Seq: uint32(n), TraceFlags: 1}
	binary.BigEndian.PutUint64(s.TraceID[:8], n*0x0101)
	binary.BigEndian.PutUint64(s.TraceID[8:], n*0x0202)
	binary.BigEndian.PutUint64(s.SpanID[:], n*0x0303)
	return s
}

func mustView(t testing.TB, m remotemem.Reader, i Info) *View {
	t.Helper()
	v, err := New(m, i, nil)
	require.NoError(t, err)
	return v
}

func TestViewReadsLayout2(t *testing.T) {
	info := info2(8, 128, wire.RingByThread)
	m := newViewMemory(info)
	r := raw(3)
	r.attrs, r.attrsSize = []byte("\x00\x03abc"), 5
	r.tid = 13
	r.put(m.slot(info, 5))

	v, err := FindIn(m, viewBase, uint64(len(m.bytes)))
	require.NoError(t, err)
	assert.Equal(t, info, v.Info())
	require.NoError(t, v.Verify())
	m.calls = 0
	got, err := v.Read(13)
	require.NoError(t, err)
	want := slotOf(3)
	want.TID, want.Attributes = 13, []byte("\x00\x03abc")
	assert.Equal(t, want, got)
	assert.Equal(t, 1, m.calls, "a slot that does not change takes one call")
	assert.True(t, got.HasSpan())

	// Slots that have been returned must not change with the memory.
	clear(m.slot(info, 5))
	assert.Equal(t, []byte("\x00\x03abc"), got.Attributes)
}

func TestViewReadsLayout1(t *testing.T) {
	info := info1(4)
	m := newViewMemory(info)
	binary.NativeEndian.PutUint64(m.slot(info, 2)[8:], 0x0a0b)
	binary.NativeEndian.PutUint64(m.slot(info, 2)[16:], 0x0c0d)
	v, err := FindIn(m, viewBase, uint64(len(m.bytes)))
	require.NoError(t, err)
	assert.Equal(t, info, v.Info())
	for _, id := range []uint64{2, 6, 1<<40 + 2} {
		got, err := v.Read(id)
		require.NoError(t, err)
		assert.Equal(t, Slot{TraceID: [16]byte{14: 0x0a, 15: 0x0b}, SpanID: [8]byte{6: 0x0c, 7: 0x0d}}, got)
	}
	_, err = v.Read(3)
	require.ErrorIs(t, err, ErrEmpty)
}

func TestViewUsesFields(t *testing.T) {
	info := info2(2, 96, wire.RingByThread)
	m := newViewMemory(info)
	fields := map[string]int{
		"trace_id_high": 40, "trace_id_low": 48, "span_id": 56, "in_use": 3, "seq": 4,
		"attrs_size": 30, "attrs": 90, "owner_goid": 64, "of_a_later_version": 5000,
	}
	v, err := New(m, info, fields)
	require.NoError(t, err)
	b := m.slot(info, 1)
	for i := range b {
		b[i] = 0xee // garbage in all bytes that belong to no field
	}
	ne := binary.NativeEndian
	ne.PutUint64(b[40:], 1)
	ne.PutUint64(b[48:], 2)
	ne.PutUint64(b[56:], 3)
	ne.PutUint64(b[64:], 4)
	b[3] = 0
	ne.PutUint32(b[4:], 9)
	ne.PutUint16(b[30:], 6)
	copy(b[90:], "sixsix")
	got, err := v.Read(1)
	require.NoError(t, err)
	assert.Equal(t, Slot{
		TraceID: [16]byte{7: 1, 15: 2}, SpanID: [8]byte{7: 3}, Owner: 4, Seq: 9, Attributes: []byte("sixsix"),
	}, got)
}

func TestViewEmptyAndForeignSlots(t *testing.T) {
	threads, goroutines := info2(4, 64, wire.RingByThread), info2(4, 64, wire.RingByGoroutine)
	for name, test := range map[string]struct {
		info   Info
		change func(*rawSlot)
		id     uint64
		ok     bool
	}{
		"thread":                 {threads, func(*rawSlot) {}, 5, true},
		"other thread":           {threads, func(*rawSlot) {}, 1, false},
		"no trace":               {threads, func(r *rawSlot) { r.high, r.low = 0, 0 }, 5, false},
		"high half only":         {threads, func(r *rawSlot) { r.low = 0 }, 5, true},
		"no span":                {threads, func(r *rawSlot) { r.span = 0 }, 5, false},
		"goroutine":              {goroutines, func(r *rawSlot) { r.owner = 9 }, 9, true},
		"other goroutine":        {goroutines, func(r *rawSlot) { r.owner = 9 }, 13, false},
		"goroutine, not by tid":  {goroutines, func(r *rawSlot) { r.owner = 9 }, 5, false},
		"thread ids are 32 bits": {threads, func(*rawSlot) {}, 1<<32 + 5, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newViewMemory(test.info)
			r := raw(1)
			test.change(&r)
			r.put(m.slot(test.info, 1))
			got, err := mustView(t, m, test.info).Read(test.id)
			if !test.ok {
				require.ErrorIs(t, err, ErrEmpty)
				assert.Zero(t, got)
				return
			}
			require.NoError(t, err)
			assert.True(t, got.HasSpan())
		})
	}
}

// TestViewNeverMixesWrites checks that a slot that a SlotReader accepts comes from a single write,
// no matter when during the read a writer takes its steps.
func TestViewNeverMixesWrites(t *testing.T) {
	for _, layout := range []int{1, 2} {
		// steps are the stages in which a writer changes a slot from raw(1) to raw(2).
		info, steps := info2(1, 64, wire.RingByThread), []func(b []byte){
			func(b []byte) { r := raw(1); r.seq, r.inUse = 2, 1; r.put(b) },
			func(b []byte) { r := raw(1); r.seq, r.inUse, r.high = 2, 1, 2*0x0101; r.put(b) },
			func(b []byte) { r := raw(2); r.inUse, r.ref = 1, 0x0404; r.put(b) },
			func(b []byte) { r := raw(2); r.put(b) },
		}
		if layout == 1 {
			info = info1(1)
		}
		m := newViewMemory(info)
		v := mustView(t, m, info)
		plain := func(r rawSlot) Slot {
			b := make([]byte, 64)
			r.put(b)
			if layout == 1 {
				b = b[:32]
				binary.NativeEndian.PutUint32(b[28:], 0)
				b[25] = 0
			}
			return v.decode(b)
		}
		words := 0
		for _, p := range append(v.NewSlotReader().Before(), v.NewSlotReader().After()...) {
			words += (len(p.Data) + 7) / 8
		}
		// Try all schedules: each step can happen before any word of the read, but not before an
		// earlier step.
		var at [4]int
		var try func(step, from int)
		tried := 0
		seen := [3]int{}
		try = func(step, from int) {
			if step < len(at) {
				for moment := from; moment <= words+1; moment++ {
					at[step] = moment
					try(step+1, moment)
				}
				return
			}
			tried++
			write := func(f func([]byte)) {
				b := make([]byte, 64)
				f(b)
				if layout == 1 {
					binary.NativeEndian.PutUint32(b[28:], 0)
					b[25] = 0
				}
				copy(m.slot(info, 0), b)
			}
			write(func(b []byte) { r := raw(1); r.put(b) })
			m.words, m.beforeWord = 0, func(n int) {
				for i := range at {
					if at[i] == n {
						write(steps[i])
					}
				}
			}
			l := v.NewSlotReader()
			_, err := m.ReadParts(append(l.Before(), l.After()...))
			require.NoError(t, err)
			got, err := l.Slot()
			switch {
			case err != nil:
				require.ErrorIs(t, err, ErrBusy)
				seen[0]++
			case got.SpanID == plain(raw(1)).SpanID:
				require.Equal(t, plain(raw(1)), got, "steps at %v", at)
				seen[1]++
			default:
				require.Equal(t, plain(raw(2)), got, "steps at %v", at)
				seen[2]++
			}
		}
		try(0, 1)
		for _, n := range seen {
			assert.NotZero(t, n, "layout %d: %d tried, %v", layout, tried, seen)
		}
	}
}

// TestViewDetectsWriteBetweenHalves checks that a View rejects a slot if a whole write happens
// between the two reads of in_use, which both return 0.
func TestViewDetectsWriteBetweenHalves(t *testing.T) {
	info := info2(1, 64, wire.RingByThread)
	m := newViewMemory(info)
	v := mustView(t, m, info)
	old, next := raw(1), raw(2)
	// torn has some fields of the old slot and some of the new one.
	torn := old
	torn.ref, torn.owner, torn.m = next.ref, next.owner, next.m
	m.beforePart = func(n int) {
		switch (n - 1) % 5 {
		case 0:
			old.put(m.bytes[64:])
		case 2:
			torn.put(m.bytes[64:])
		case 3:
			next.put(m.bytes[64:])
		}
	}
	_, err := v.Slot(0)
	require.ErrorIs(t, err, ErrBusy)
}

func TestViewGivesUp(t *testing.T) {
	for _, info := range []Info{info1(2), info2(2, 64, wire.RingByThread)} {
		m := newViewMemory(info)
		m.slot(info, 1)[24] = 1 // in use forever
		v := mustView(t, m, info)
		_, err := v.Slot(1)
		require.ErrorIs(t, err, ErrBusy)
		_, err = v.Read(1)
		require.ErrorIs(t, err, ErrBusy)
		assert.Equal(t, 2*readAttempts, m.calls)
		_, err = v.Slot(0)
		require.NoError(t, err)
	}
}

func TestViewWaitsForAWriter(t *testing.T) {
	info := info2(1, 64, wire.RingByThread)
	m := newViewMemory(info)
	v := mustView(t, m, info)
	r := raw(4)
	r.inUse = 1
	r.put(m.bytes[64:])
	m.beforePart = func(n int) {
		if n == 5*(readAttempts-1)+1 {
			m.bytes[64+24] = 0
		}
	}
	got, err := v.Slot(0)
	require.NoError(t, err)
	assert.Equal(t, slotOf(4), got)
}

func TestViewLyingAttributeSizes(t *testing.T) {
	info := info2(1, 128, wire.RingByThread)
	for size, want := range map[uint16]int{0: 0, 1: 1, 64: 64, 65: 0, 128: 0, math.MaxUint16: 0} {
		m := newViewMemory(info)
		r := raw(1)
		r.attrsSize, r.attrs = size, make([]byte, 64)
		r.put(m.bytes[64:])
		got, err := mustView(t, m, info).Slot(0)
		require.NoError(t, err)
		assert.Len(t, got.Attributes, want, size)
	}
}

// TestViewOfAnyCapacity checks that a View can read rings of layout 1 whose capacity is not a power
// of two. Other publishers may create such rings.
func TestViewOfAnyCapacity(t *testing.T) {
	info := info1(7)
	m := newViewMemory(info)
	for n := range 7 {
		s := &rawSlot{low: 1, span: uint64(n + 1)}
		s.put(m.slot(info, n))
	}
	view := mustView(t, m, info)
	for _, tid := range []uint64{0, 6, 7, 8, 700001} {
		got, err := view.Slot(tid)
		require.NoError(t, err)
		assert.Equal(t, tid%7+1, binary.BigEndian.Uint64(got.SpanID[:]), tid)
	}
}

func TestViewRejectsInvalidLayouts(t *testing.T) {
	good := info2(8, 64, wire.RingByThread)
	for name, change := range map[string]func(*Info){
		"layout 0":            func(i *Info) { i.Layout = 0 },
		"layout 3":            func(i *Info) { i.Layout = 3 },
		"no slots":            func(i *Info) { i.Capacity = 0 },
		"negative capacity":   func(i *Info) { i.Capacity = -8 },
		"odd capacity":        func(i *Info) { i.Capacity = 7 },
		"huge capacity":       func(i *Info) { i.Capacity = 1 << 25 },
		"largest capacity":    func(i *Info) { i.Capacity = math.MinInt },
		"small slots":         func(i *Info) { i.SlotSize = 16 },
		"negative slots":      func(i *Info) { i.SlotSize = -64 },
		"slots too small":     func(i *Info) { i.SlotSize = 32 },
		"large slots":         func(i *Info) { i.SlotSize = 1025 },
		"small header":        func(i *Info) { i.HeaderSize = 31 },
		"large header":        func(i *Info) { i.HeaderSize = 4097 },
		"no address":          func(i *Info) { i.Address = 0 },
		"kernel address":      func(i *Info) { i.Address = 1 << 63 },
		"address at the end":  func(i *Info) { i.Address = 1<<63 - 100 },
		"address wraps":       func(i *Info) { i.Address = math.MaxUint64 - 8 },
		"index":               func(i *Info) { i.Index = 2 },
		"layout 1, goroutine": func(i *Info) { *i = info1(8); i.Index = wire.RingByGoroutine },
	} {
		i := good
		change(&i)
		_, err := New(&viewMemory{}, i, nil)
		require.ErrorIs(t, err, ErrNotRing, name)
	}
	all := func() map[string]int {
		fields := map[string]int{}
		for _, f := range wire.SlotFields(2) {
			fields[f.Name] = int(f.Offset)
		}
		return fields
	}
	for name, change := range map[string]func(map[string]int){
		"negative":     func(f map[string]int) { f["m"] = -1 },
		"beyond":       func(f map[string]int) { f["m"] = 57 },
		"far beyond":   func(f map[string]int) { f["tid"] = math.MaxInt },
		"attributes":   func(f map[string]int) { f["attrs"] = 65 },
		"no seq":       func(f map[string]int) { delete(f, "seq") },
		"no in_use":    func(f map[string]int) { delete(f, "in_use") },
		"no span":      func(f map[string]int) { delete(f, "span_id") },
		"no trace":     func(f map[string]int) { delete(f, "trace_id_low") },
		"none at all":  func(f map[string]int) { clear(f) },
		"no high half": func(f map[string]int) { delete(f, "trace_id_high") },
	} {
		fields := all()
		change(fields)
		_, err := New(&viewMemory{}, good, fields)
		require.ErrorIs(t, err, ErrNotRing, name)
	}
	_, err := New(&viewMemory{}, good, all())
	require.NoError(t, err)
}

func TestFindChecksTheHeader(t *testing.T) {
	for name, change := range map[string]func(*viewMemory){
		"magic":              func(m *viewMemory) { m.bytes[0]++ },
		"layout":             func(m *viewMemory) { m.bytes[4] = 3 },
		"capacity":           func(m *viewMemory) { m.bytes[8] = 3 },
		"beyond the mapping": func(m *viewMemory) { m.bytes[8] = 16 },
		"slots of layout 1":  func(m *viewMemory) { m.bytes[4] = 1 },
		"index":              func(m *viewMemory) { m.bytes[20] = 9 },
	} {
		m := newViewMemory(info2(8, 64, wire.RingByThread))
		change(m)
		_, err := FindIn(m, viewBase, uint64(len(m.bytes)))
		require.ErrorIs(t, err, ErrNotRing, name)
	}
	m := newViewMemory(info2(8, 64, wire.RingByThread))
	_, err := Find(m, viewBase+8)
	require.ErrorIs(t, err, ErrNotRing)
	_, err = Find(m, 8)
	require.ErrorIs(t, err, errFault)
	require.NotErrorIs(t, err, ErrNotRing)

	v := mustView(t, m, info2(8, 64, wire.RingByThread))
	require.NoError(t, v.Verify())
	m.bytes[8] = 4
	require.ErrorIs(t, v.Verify(), ErrNotRing)
	clear(m.bytes) // as after Close
	require.ErrorIs(t, v.Verify(), ErrNotRing)
}

func TestViewMemoryErrors(t *testing.T) {
	m := newViewMemory(info2(8, 64, wire.RingByThread))
	v := mustView(t, m, info2(8, 64, wire.RingByThread))
	m.bytes = m.bytes[:64+64]
	_, err := v.Slot(0)
	require.NoError(t, err)
	_, err = v.Slot(1)
	require.ErrorIs(t, err, errFault)
	_, err = v.Read(7)
	require.ErrorIs(t, err, errFault)
	assert.NotErrorIs(t, err, ErrEmpty)
}

// TestFieldsOfAView checks that Fields returns the offsets of the layout, or those given to New
// without the unknown names.
func TestFieldsOfAView(t *testing.T) {
	m := newViewMemory(info1(4))
	v, err := New(m, info1(4), nil)
	require.NoError(t, err)
	want := map[string]int{"trace_id_high": 0, "trace_id_low": 8, "span_id": 16, "in_use": 24}
	assert.Equal(t, want, v.Fields())
	v.Fields()["span_id"] = 1
	assert.Equal(t, want, v.Fields(), "the map is a copy")

	advertised := map[string]int{"trace_id_high": 8, "trace_id_low": 0, "span_id": 16, "in_use": 24, "seq": 28, "m": 40, "what": 1}
	v, err = New(m, info2(4, 64, wire.RingByThread), advertised)
	require.NoError(t, err)
	delete(advertised, "what")
	assert.Equal(t, advertised, v.Fields())
	assert.Nil(t, (*View)(nil).Fields())
}

// FuzzView checks that the slot read from arbitrary memory, which may change once during the read,
// is what an independent decoder finds before or after the change.
func FuzzView(f *testing.F) {
	header := func(i Info) []byte { return newViewMemory(i).bytes }
	f.Add(header(info2(2, 128, wire.RingByThread)), uint64(5), byte(0), []byte{}, uint16(0))
	f.Add(header(info2(4, 64, wire.RingByGoroutine)), uint64(9), byte(3), []byte{1, 2, 3}, uint16(24))
	f.Add(header(info1(4)), uint64(2), byte(2), []byte{7}, uint16(40))
	busy := header(info1(1))
	busy[32+24] = 1
	f.Add(busy, uint64(0), byte(9), []byte{0}, uint16(32+24))
	f.Fuzz(func(t *testing.T, memory []byte, id uint64, at byte, change []byte, where uint16) {
		m := &viewMemory{base: viewBase, bytes: append([]byte(nil), memory...)}
		v, err := FindIn(m, viewBase, uint64(len(memory)))
		if err != nil {
			require.Nil(t, v)
			return
		}
		info := v.Info()
		require.LessOrEqual(t, info.HeaderSize+info.Capacity*info.SlotSize, len(memory))
		if info.Layout == 2 {
			require.Equal(t, 1, bits.OnesCount(uint(info.Capacity)))
		}

		m.parts, m.words = 0, 0
		m.beforeWord = func(n int) {
			if n == int(at) && int(where) < len(m.bytes) {
				copy(m.bytes[where:], change)
			}
		}
		s, err := v.Slot(id)
		require.LessOrEqual(t, m.parts, readAttempts*5)
		require.LessOrEqual(t, len(s.Attributes), info.SlotSize)
		if err != nil {
			require.ErrorIs(t, err, ErrBusy)
			require.Zero(t, s)
			return
		}
		// The memory changes at most once, so the result must match the memory before or after the
		// change.
		n := int(id % uint64(info.Capacity))
		before := &viewMemory{base: viewBase, bytes: memory}
		if info.Layout == 2 && string(before.slot(info, n)) != string(m.slot(info, n)) &&
			string(before.slot(info, n)[0x1c:0x20]) == string(m.slot(info, n)[0x1c:0x20]) {
			return // a change that does not increment seq need not be noticed
		}
		got := fmt.Sprintf("%x", s)
		require.Contains(t, []string{oracle(info, before.slot(info, n)), oracle(info, m.slot(info, n))}, got)
	})
}

// oracle decodes a slot at the offsets of docs/wire-format.md, and formats it. It returns "" if the
// slot is being written.
func oracle(i Info, b []byte) string {
	if b[0x18] != 0 {
		return ""
	}
	ne, be := binary.NativeEndian, binary.BigEndian
	var s Slot
	be.PutUint64(s.TraceID[0:], ne.Uint64(b[0x00:]))
	be.PutUint64(s.TraceID[8:], ne.Uint64(b[0x08:]))
	be.PutUint64(s.SpanID[:], ne.Uint64(b[0x10:]))
	if i.Layout == 2 {
		s.TraceFlags = b[0x19]
		if size := int(ne.Uint16(b[0x1a:])); size > 0 && 0x40+size <= len(b) {
			s.Attributes = b[0x40 : 0x40+size]
		}
		s.Seq = ne.Uint32(b[0x1c:])
		s.Owner = ne.Uint64(b[0x20:])
		s.Ref = ne.Uint64(b[0x28:])
		s.M = ne.Uint64(b[0x30:])
		s.TID = ne.Uint32(b[0x38:])
	}
	return fmt.Sprintf("%x", s)
}
