// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ringview"
	"github.com/otelctx/otelctx/internal/wire"
)

// fakeMemory is the memory of a process, which a test can change during a read.
type fakeMemory struct {
	pieces map[uint64][]byte
	// beforeWord, if not nil, is called before each eight bytes are read.
	beforeWord func()
	// always, if not nil, fills b with the memory at an address outside of pieces. It returns false
	// if that is unreadable.
	always func(address uint64, b []byte) bool

	calls, words int // ReadParts calls, and words read in the last one
	ids          map[int][]int
}

func (f *fakeMemory) ReadParts(parts []remotemem.Part) (int, error) {
	f.calls++
	f.words = 0
	for i, p := range parts {
		if !f.read(p) {
			return i, fmt.Errorf("fake read of %d bytes at %#x: %w", len(p.Data), p.Address, syscall.EFAULT)
		}
	}
	return len(parts), nil
}

func (f *fakeMemory) read(p remotemem.Part) bool {
	for start, b := range f.pieces {
		if at := p.Address - start; p.Address >= start && at <= uint64(len(b)) && uint64(len(b))-at >= uint64(len(p.Data)) {
			for done := 0; done < len(p.Data); done += 8 {
				f.words++
				if f.beforeWord != nil {
					f.beforeWord()
				}
				copy(p.Data[done:min(done+8, len(p.Data))], b[at+uint64(done):])
			}
			return true
		}
	}
	return f.always != nil && f.always(p.Address, p.Data)
}

func (f *fakeMemory) Threads() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for tid := range f.ids {
			if !yield(tid, nil) {
				return
			}
		}
	}
}

func (f *fakeMemory) PresentPages(start, end uint64) (pages []uint64, err error) {
	for page := start; page < end; page += uint64(os.Getpagesize()) {
		for at, b := range f.pieces {
			if page >= at && page < at+uint64(len(b)) {
				pages = append(pages, page)
			}
		}
	}
	return pages, nil
}

func (*fakeMemory) ThreadStat(int) (procfs.ThreadStat, error) { return procfs.ThreadStat{}, nil }

func (*fakeMemory) ProgramHeaders() (uint64, error) { return 0, nil }

func (f *fakeMemory) ThreadIDs(tid int) ([]int, error) {
	ids, ok := f.ids[tid]
	if !ok {
		return nil, procfs.ErrProcessGone
	}
	return ids, nil
}

// Addresses in the fake process, and the id of its thread.
const (
	fakeRing       = 0x10_0000
	fakeM          = 0x30_0000
	fakeG          = 0x40_0000 // the g of the first goroutine; each g has its own page
	fakeHeap       = 0x50_0000
	fakeHeapSize   = 1 << 21
	fakeGoroutines = 0x100_0000
	fakeTID        = 77
)

var fakeOffsets = RuntimeOffsets{MCurg: 184, MProcid: 64, GGoid: 152, GLabels: 352}

func put64(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

// world is a process with one observed thread, which switches between goroutines. [spanWorld] adds
// spans.
type world struct {
	*fakeMemory

	rand       *rand.Rand
	goroutines []*worldGoroutine
	running    *worldGoroutine
	// steps lists the steps that have not been taken yet.
	steps    []func()
	lastSpan uint64
	heap     uint64

	// truths is the set of correct results of the current read: "goid spanID" for each span that
	// was the active span of a running goroutine at some moment.
	truths map[string]bool
}

type worldGoroutine struct{ g, goid uint64 }

const worldCapacity = 64

func newWorld(seed uint64) *world {
	w := &world{
		fakeMemory: &fakeMemory{pieces: map[uint64][]byte{
			fakeRing: make([]byte, 64+64*worldCapacity),
			fakeM:    make([]byte, 512),
			fakeHeap: make([]byte, fakeHeapSize),
		}},
		rand: rand.New(rand.NewPCG(seed, 1)),
		heap: fakeHeap,
	}
	put64(w.pieces[fakeM][fakeOffsets.MProcid:], fakeTID)
	for i := range uint64(3) {
		g := fakeG + i*0x1000
		w.pieces[g] = make([]byte, 512)
		w.goroutines = append(w.goroutines, &worldGoroutine{g, i + 1})
		put64(w.pieces[g][fakeOffsets.GGoid:], i+1)
	}
	return w
}

func (w *world) slot() []byte { return w.pieces[fakeRing][64+64*(fakeTID%worldCapacity):][:64] }

func worldTraceID(span uint64) uint64 { return span*1000 + 7 }

// storeRef returns the steps in which a writer stores a span and the reference to its cell in a
// slot. A span of 0 means no span.
func (w *world) storeRef(slot []byte, owner, span, ref uint64) []func() {
	m := uint64(fakeM)
	return []func(){
		func() {
			slot[0x18] = 1
			binary.NativeEndian.PutUint32(slot[0x1c:], binary.NativeEndian.Uint32(slot[0x1c:])+1)
		},
		func() {
			put64(slot[0x08:], 0)
			if span != 0 {
				put64(slot[0x08:], worldTraceID(span))
			}
		},
		func() { put64(slot[0x10:], span) },
		func() { put64(slot[0x20:], owner) },
		func() {
			put64(slot[0x28:], ref)
			put64(slot[0x30:], m)
			binary.NativeEndian.PutUint32(slot[0x38:], fakeTID)
		},
		func() { slot[0x18] = 0 },
	}
}

// Offsets in the world's records, from the label pointer.
const (
	worldAncestors  = 24 // followed by the id of a goroutine that does not return to the ancestors
	worldRecord     = worldAncestors + 8*(wire.Ancestors+1)
	worldList       = 96
	worldText       = 160
	worldRecordSize = 256
)

// newRecord creates a record of a span, in the layout that package gorecord uses, and returns its
// address.
func (w *world) newRecord(span uint64, ancestors ...uint64) uint64 {
	at := w.heap
	w.heap += worldRecordSize
	b := w.pieces[fakeHeap][at-fakeHeap:][:worldRecordSize]
	put64(b, at+worldList)
	put64(b[8:], 2)
	put64(b[16:], 2)
	for i, word := range ancestors {
		put64(b[worldAncestors+8*i:], word)
	}
	binary.BigEndian.PutUint64(b[worldRecord+8:], worldTraceID(span))
	binary.BigEndian.PutUint64(b[worldRecord+16:], span)
	b[worldRecord+24] = 1
	hex.Encode(b[worldText:], b[worldRecord:worldRecord+24])
	for i, label := range []struct{ at, size uint64 }{{worldText + 32, 16}, {worldText, 32}} {
		put64(b[worldList+32*i+16:], at+label.at)
		put64(b[worldList+32*i+24:], label.size)
	}
	return at
}

// schedule makes the thread run g, or sometimes no goroutine.
func (w *world) schedule(g *worldGoroutine) {
	w.running = g
	curg := g.g
	if w.rand.IntN(4) == 0 {
		w.running, curg = nil, 0
	}
	put64(w.pieces[fakeM][fakeOffsets.MCurg:], curg)
}

// view returns a view of the world with some carriers. In the argument, t stands for thread slots,
// g for the goroutine table, and r for goroutine records.
func (w *world) view(t testing.TB, which string) *threadView {
	t.Helper()
	v := &threadView{runtime: fakeOffsets}
	var err error
	for _, c := range which {
		switch c {
		case 't':
			v.threadRing, err = ringview.New(w, ringview.Info{Address: fakeRing, Layout: 2, Capacity: worldCapacity, HeaderSize: 64, SlotSize: 64}, nil)
		case 'g':
			v.goroutines = &goroutineTable{&Table{
				Address: fakeGoroutines, HeaderSize: wire.GoroutinesHeaderSize, EntrySize: wire.GoroutineEntrySize,
				Capacity: wire.GoroutinesCapacity, Layout: wire.GoroutinesLayout1,
			}}
		case 'r':
			v.record.Offset = worldRecord
		}
		require.NoError(t, err)
	}
	return v
}

// readWhileMoving reads the observed thread many times, while steps happen between any two words
// that are read. It checks that each span found is proven and was the true one at some moment
// during the read, and passes the span and its id to each. It returns the number of reads that
// found no span.
func (w *world) readWhileMoving(t *testing.T, l *threadReader, seed uint64, steps int, step, note func(), each func(*ThreadSpan, uint64)) (idle int) {
	t.Helper()
	// The seed determines whether the world changes rarely or often during a read.
	pace := []int{1000, 300, 100, 40, 15, 5}[seed%6]
	for range 400 {
		for range w.rand.IntN(steps) {
			step()
		}
		w.truths = map[string]bool{}
		note()
		w.beforeWord = func() {
			for w.rand.IntN(pace) == 0 {
				step()
				if w.rand.IntN(8) == 0 {
					break
				}
			}
		}
		thread := Thread{TID: fakeTID, OwnTID: fakeTID}
		before := w.calls
		require.NoError(t, l.read(&thread, fakeM))
		require.LessOrEqual(t, w.calls-before, 3*maxReads)
		w.beforeWord = nil
		s := thread.Span
		if s == nil {
			idle++
			continue
		}
		id := binary.BigEndian.Uint64(s.SpanID[:])
		require.True(t, s.Proven)
		require.Equal(t, worldTraceID(id), binary.BigEndian.Uint64(s.TraceID[8:]))
		require.Contains(t, w.truths, fmt.Sprint(thread.Goroutine, id), "%v, seed %d", s.Carrier, seed)
		each(s, id)
	}
	return idle
}

// stillWorld returns a world that does not change. Goroutine 1 is running in span 1.
func stillWorld(t *testing.T) *spanWorld {
	t.Helper()
	w := newSpanWorld(1)
	g := w.goroutines[0]
	w.running = g
	put64(w.pieces[fakeM][fakeOffsets.MCurg:], g.g)
	w.start(g)
	for _, do := range w.steps {
		do()
	}
	w.steps = nil
	return w
}

func (w *spanWorld) look(t *testing.T, which string, m uint64) Thread {
	t.Helper()
	thread := Thread{TID: fakeTID, OwnTID: fakeTID}
	require.NoError(t, newThreadReader(w, w.view(t, which)).read(&thread, m))
	return thread
}

// TestBestCarrierWins checks from which carrier the reader takes the span, and that it uses another
// carrier if one is missing, unreadable or inconsistent.
func TestBestCarrierWins(t *testing.T) {
	none := func(*spanWorld) {}
	for _, tt := range []struct {
		which  string
		change func(w *spanWorld)
		want   CarrierKind
		calls  int
	}{
		{"t", none, ThreadSlots, 8},
		{"tg", none, GoroutineTable, 8},
		{"tr", none, GoroutineRecord, 8},
		{"tgr", none, GoroutineRecord, 8},
		{"g", none, GoroutineTable, 8},
		{"r", none, GoroutineRecord, 8},
		{"tgr", func(w *spanWorld) { put64(w.pieces[fakeG][fakeOffsets.GLabels:], 0x99_0000) }, GoroutineTable, 8},
		{"tgr", func(w *spanWorld) { w.entry(w.goroutines[0])[8]++ }, GoroutineRecord, 8},
		{"tgr", func(w *spanWorld) { delete(w.pieces, fakeRing) }, GoroutineRecord, 8},
		// The goroutine has moved to this thread, whose slot still has the span of another
		// goroutine.
		{"tg", func(w *spanWorld) { w.slot()[0x20]++ }, GoroutineTable, 8},
		{"tr", func(w *spanWorld) { w.slot()[0x20]++ }, GoroutineRecord, 8},
	} {
		w := stillWorld(t)
		tt.change(w)
		thread := w.look(t, tt.which, fakeM)
		require.NotNil(t, thread.Span, tt.which)
		assert.True(t, thread.Span.Proven)
		assert.Equal(t, tt.want, thread.Span.Carrier)
		assert.Equal(t, uint64(1), thread.Goroutine)
		assert.Equal(t, [8]byte{7: 1}, thread.Span.SpanID)
		assert.LessOrEqual(t, w.calls, tt.calls, tt.which)
	}
}

// TestInconsistentThreadHasNoSpan checks that the reader returns no span for a thread if the data
// that would lead to the span is inconsistent or invalid.
func TestInconsistentThreadHasNoSpan(t *testing.T) {
	for name, test := range map[string]struct {
		which  string
		change func(w *spanWorld)
	}{
		"slot of another thread":            {"t", func(w *spanWorld) { w.slot()[0x38]++ }},
		"slot of another goroutine":         {"t", func(w *spanWorld) { w.slot()[0x20]++ }},
		"slot without an m":                 {"t", func(w *spanWorld) { put64(w.slot()[0x30:], 0) }},
		"m of another thread":               {"tgr", func(w *spanWorld) { w.pieces[fakeM][fakeOffsets.MProcid]++ }},
		"m at an unmapped address":          {"tgr", func(w *spanWorld) { put64(w.slot()[0x30:], 0x99_0000) }},
		"m at a kernel address":             {"t", func(w *spanWorld) { put64(w.slot()[0x30:], 1<<63) }},
		"no goroutine":                      {"tgr", func(w *spanWorld) { put64(w.pieces[fakeM][fakeOffsets.MCurg:], 0) }},
		"goroutine at an unmapped address":  {"tgr", func(w *spanWorld) { put64(w.pieces[fakeM][fakeOffsets.MCurg:], 0x99_0000) }},
		"another goroutine":                 {"tgr", func(w *spanWorld) { put64(w.pieces[fakeM][fakeOffsets.MCurg:], fakeG+0x1000) }},
		"goroutine without an id":           {"tgr", func(w *spanWorld) { put64(w.pieces[fakeG][fakeOffsets.GGoid:], 0) }},
		"slot being written":                {"t", func(w *spanWorld) { w.slot()[0x18] = 1 }},
		"entry of another goroutine":        {"g", func(w *spanWorld) { w.entry(w.goroutines[0])[8]++ }},
		"entry of an ended span":            {"g", func(w *spanWorld) { w.cell(w.refs[1])[0]++ }},
		"entry of another span's cell":      {"g", func(w *spanWorld) { w.cell(w.refs[1])[2]++ }},
		"entry without a span":              {"tgr", func(w *spanWorld) { w.publish(w.goroutines[0], 0)() }},
		"no labels":                         {"r", func(w *spanWorld) { put64(w.pieces[fakeG][fakeOffsets.GLabels:], 0) }},
		"wild labels":                       {"r", func(w *spanWorld) { put64(w.pieces[fakeG][fakeOffsets.GLabels:], 0x99_0000) }},
		"record has ended":                  {"r", func(w *spanWorld) { w.pieces[fakeHeap][worldRecord+24] = 0 }},
		"record with an unknown valid flag": {"r", func(w *spanWorld) { w.pieces[fakeHeap][worldRecord+24] = 2 }},
		"record without a trace id":         {"r", func(w *spanWorld) { clear(w.pieces[fakeHeap][worldRecord : worldRecord+16]) }},
		"record without a span id":          {"r", func(w *spanWorld) { clear(w.pieces[fakeHeap][worldRecord+16 : worldRecord+24]) }},
		"record too large":                  {"r", func(w *spanWorld) { binary.NativeEndian.PutUint16(w.pieces[fakeHeap][worldRecord+26:], 613) }},
		"other labels":                      {"r", func(w *spanWorld) { w.pieces[fakeHeap][worldText]++ }},
		"labels of another span":            {"r", func(w *spanWorld) { w.pieces[fakeHeap][worldText+32+15]++ }},
		"no list of labels":                 {"r", func(w *spanWorld) { put64(w.pieces[fakeHeap], 0) }},
		"wild list of labels":               {"r", func(w *spanWorld) { put64(w.pieces[fakeHeap], 0x99_0000) }},
		"endless list of labels":            {"r", func(w *spanWorld) { put64(w.pieces[fakeHeap][16:], maxLabels+1) }},
		"wild label":                        {"r", func(w *spanWorld) { put64(w.pieces[fakeHeap][worldList+16:], 0x99_0000) }},
	} {
		w := stillWorld(t)
		test.change(w)
		for _, m := range []uint64{0, fakeM} {
			if m == fakeM && name == "slot without an m" {
				continue // procid confirms that fakeM is the thread's m, so there is a span
			}
			assert.Nil(t, w.look(t, test.which, m).Span, name)
		}
		assert.Less(t, w.calls, 6*maxReads, name)
	}
}

// TestSpanEndsElsewhereDuringRead checks that the reader rejects a record if its goroutine leaves
// the thread during the read, and the span has ended by the time the goroutine returns. If the span
// is still live at that time, the reader must accept the record.
func TestSpanEndsElsewhereDuringRead(t *testing.T) {
	for _, whole := range []bool{false, true} {
		w := stillWorld(t)
		curg := w.pieces[fakeM][fakeOffsets.MCurg:]
		const recordWords = (worldRecord + wire.ThreadContextRecordSize + 7) / 8
		w.beforeWord = func() {
			switch {
			case w.calls != 3:
			case w.words == 1:
				put64(curg, 0)
			case w.words == recordWords+1:
				if whole {
					w.pieces[fakeHeap][worldRecord+24] = 0
				}
				put64(curg, fakeG)
			}
		}
		span := w.look(t, "r", fakeM).Span
		assert.Equal(t, !whole, span != nil)
		assert.GreaterOrEqual(t, w.calls, 3)
	}
}

func TestRecordWithAttributes(t *testing.T) {
	w := stillWorld(t)
	encoded := []byte("\x00\x02ab\x01\x01c")
	b := w.pieces[fakeHeap]
	// Move the list of labels and their text, to make room for attributes.
	copy(b[1024:], b[worldList:worldRecordSize])
	put64(b, fakeHeap+1024)
	put64(b[1024+16:], fakeHeap+1024+worldText-worldList+32)
	put64(b[1024+32+16:], fakeHeap+1024+worldText-worldList)
	binary.NativeEndian.PutUint16(b[worldRecord+26:], uint16(len(encoded)))
	copy(b[worldRecord+28:], encoded)
	thread := w.look(t, "r", fakeM)
	require.NotNil(t, thread.Span)
	assert.Equal(t, encoded, thread.Span.encoded)
}

func TestDecodeAttributes(t *testing.T) {
	keys := []string{"a", "", "c"}
	for encoded, want := range map[string]struct {
		attributes []Attribute
		all        bool
	}{
		"":                      {nil, true},
		"\x00":                  {nil, true},
		"\x00\x00":              {[]Attribute{{"a", ""}}, true},
		"\x00\x01x\x02\x01y":    {[]Attribute{{"a", "x"}, {"c", "y"}}, true},
		"\x00\x01x\x00\x01y":    {[]Attribute{{"a", "y"}}, true},
		"\x00\x01x\x02\x05y":    {[]Attribute{{"a", "x"}}, true},
		"\x01\x01x\x02\x01y":    {[]Attribute{{"c", "y"}}, false},
		"\xff\x01x\x02\x01\xfe": {[]Attribute{{"c", "\xfe"}}, false},
	} {
		attributes, all := decodeAttributes([]byte(encoded), keys)
		assert.Equal(t, want.attributes, attributes, "%q", encoded)
		assert.Equal(t, want.all, all, "%q", encoded)
	}
}

func TestOwnIDsInNamespace(t *testing.T) {
	for namespaced, ids := range map[bool]map[int][]int{false: {4: {4}, 5: {5}}, true: {1004: {1004, 40, 4}, 1005: {1005, 41, 5}}} {
		p := &Process{threads: threadState{source: &fakeMemory{ids: ids}}}
		for range 2 {
			threads, err := p.listThreads(t.Context())
			require.NoError(t, err)
			own := []int{}
			for _, thread := range threads {
				own = append(own, thread.OwnTID)
			}
			assert.ElementsMatch(t, []int{4, 5}, own)
			assert.Equal(t, namespaced, p.threads.namespaced)
		}
	}
}

func intValue(i int64) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: i}}
}

// goodAdvertisement returns a valid advertisement of all carriers and tables of a world.
func goodAdvertisement() map[string]*commonpb.AnyValue {
	a := map[string]*commonpb.AnyValue{
		wire.KeySchemaVersion:                       str(wire.SchemaGoLabels),
		wire.KeyGo + wire.GoKeyMCurgOffset:          intValue(184),
		wire.KeyGo + wire.GoKeyMProcidOffset:        intValue(64),
		wire.KeyGo + wire.GoKeyGGoidOffset:          intValue(152),
		wire.KeyGo + wire.GoKeyGLabelsOffset:        intValue(352),
		wire.KeyGo + wire.GoKeyRecordOffset:         intValue(worldRecord),
		wire.KeyThreadSlots + wire.RingKeyIndex:     str(wire.IndexThread),
		wire.KeyThreadSlots + wire.RingKeyMapping:   str("T"),
		wire.KeySpans + wire.RingKeyLayout:          intValue(1),
		wire.KeySpans + wire.SpansKeyCellSize:       intValue(wire.CellSize),
		wire.KeyGoroutines + wire.RingKeyLayout:     intValue(1),
		wire.KeyGoroutines + wire.TableKeyEntrySize: intValue(wire.GoroutineEntrySize),
	}
	for prefix, is := range map[string][3]int64{
		wire.KeySpans:      {fakeSpans, worldCells, wire.SpansHeaderSize},
		wire.KeyGoroutines: {fakeGoroutines, wire.GoroutinesCapacity, wire.GoroutinesHeaderSize},
	} {
		a[prefix+wire.RingKeyAddress], a[prefix+wire.RingKeyCapacity], a[prefix+wire.RingKeyHeaderSize] = intValue(is[0]), intValue(is[1]), intValue(is[2])
	}
	cellFields := &commonpb.KeyValueList{}
	for _, f := range wire.CellFields() {
		cellFields.Values = append(cellFields.Values, &commonpb.KeyValue{Key: f.Name, Value: intValue(int64(f.Offset))})
	}
	a[wire.KeySpans+wire.RingKeyFields] = &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: cellFields}}
	fields := &commonpb.KeyValueList{}
	for _, f := range wire.SlotFields(2) {
		fields.Values = append(fields.Values, &commonpb.KeyValue{Key: f.Name, Value: intValue(int64(f.Offset))})
	}
	for prefix, address := range map[string]int64{wire.KeyThreadSlots: fakeRing} {
		a[prefix+wire.RingKeyAddress] = intValue(address)
		a[prefix+wire.RingKeyLayout] = intValue(2)
		a[prefix+wire.RingKeyCapacity] = intValue(worldCapacity)
		a[prefix+wire.RingKeyHeaderSize] = intValue(64)
		a[prefix+wire.RingKeySlotSize] = intValue(64)
		a[prefix+wire.RingKeyFields] = &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: fields}}
	}
	return a
}

func contextOf(a map[string]*commonpb.AnyValue) *ProcessContext {
	pc := new(ProcessContext)
	for key, value := range a {
		pc.Attributes = append(pc.Attributes, &commonpb.KeyValue{Key: key, Value: value})
	}
	return pc
}

// headed returns the world of stillWorld, with a header for its ring.
func headed(t *testing.T) *spanWorld {
	t.Helper()
	w := stillWorld(t)
	for j, v := range []uint32{wire.RingMagic, 2, worldCapacity, 64, 64, 0} {
		binary.NativeEndian.PutUint32(w.pieces[fakeRing][4*j:], v)
	}
	return w
}

func usableKinds(v *threadView) (kinds []CarrierKind) {
	for _, c := range v.carriers {
		if c.Err == nil {
			kinds = append(kinds, c.Kind)
		}
	}
	return kinds
}

func TestAdvertisement(t *testing.T) {
	type advertised = map[string]*commonpb.AnyValue
	set := func(key string, v *commonpb.AnyValue) func(advertised) { return func(a advertised) { a[key] = v } }
	without := func(keys ...string) func(advertised) {
		return func(a advertised) {
			maps.DeleteFunc(a, func(k string, _ *commonpb.AnyValue) bool { return slices.Contains(keys, k) })
		}
	}
	all := []CarrierKind{ThreadSlots, GoroutineTable, GoroutineRecord}
	for name, test := range map[string]struct {
		change func(a advertised)
		want   []CarrierKind
	}{
		"good":                     {func(advertised) {}, all},
		"more than known":          {set("threadlocal.slots.color", str("red")), all},
		"other schema":             {set(wire.KeySchemaVersion, str("tlsdesc_v1_dev")), all[:2]},
		"no offsets":               {without(wire.KeyGo+wire.GoKeyMCurgOffset, wire.KeyGo+wire.GoKeyGGoidOffset), all[:1]},
		"wild offset":              {set(wire.KeyGo+wire.GoKeyMCurgOffset, intValue(-8)), all[:1]},
		"far offset":               {set(wire.KeyGo+wire.GoKeyGGoidOffset, intValue(1<<40)), all[:1]},
		"no label offset":          {without(wire.KeyGo + wire.GoKeyGLabelsOffset), all[:2]},
		"record inside the labels": {set(wire.KeyGo+wire.GoKeyRecordOffset, intValue(8)), all[:2]},
		"record offset too large":  {set(wire.KeyGo+wire.GoKeyRecordOffset, intValue(5000)), all[:2]},
		"no address":               {without(wire.KeyThreadSlots + wire.RingKeyAddress), all[1:]},
		"address as text":          {set(wire.KeyThreadSlots+wire.RingKeyAddress, str("1")), all[1:]},
		"wild address":             {set(wire.KeyThreadSlots+wire.RingKeyAddress, intValue(-1)), all[1:]},
		"other address":            {set(wire.KeyThreadSlots+wire.RingKeyAddress, intValue(fakeRing+8)), all[1:]},
		"capacity":                 {set(wire.KeyThreadSlots+wire.RingKeyCapacity, intValue(3)), all[1:]},
		"other capacity":           {set(wire.KeyThreadSlots+wire.RingKeyCapacity, intValue(32)), all[1:]},
		"slot size":                {set(wire.KeyThreadSlots+wire.RingKeySlotSize, intValue(1<<40)), all[1:]},
		"index":                    {set(wire.KeyThreadSlots+wire.RingKeyIndex, str("goroutine")), all[1:]},
		"no fields":                {without(wire.KeyThreadSlots + wire.RingKeyFields), all[1:]},
		"field as text": {set(wire.KeyThreadSlots+wire.RingKeyFields, &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{
			KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{keyValue("seq", str("x"))}},
		}}), all[1:]},
		"no span table": {without(wire.KeySpans + wire.RingKeyAddress), []CarrierKind{ThreadSlots, GoroutineRecord}},
		"other table":   {set(wire.KeyGoroutines+wire.RingKeyAddress, intValue(fakeGoroutines+8)), []CarrierKind{ThreadSlots, GoroutineRecord}},
		"small table":   {set(wire.KeyGoroutines+wire.RingKeyCapacity, intValue(8)), []CarrierKind{ThreadSlots, GoroutineRecord}},
		"nothing":       {func(a advertised) { clear(a) }, nil},
	} {
		a := goodAdvertisement()
		test.change(a)
		v := newThreadView(headed(t), contextOf(a))
		assert.Equal(t, test.want, usableKinds(v), "%s: %+v", name, v.carriers)
		assert.Equal(t, len(test.want) > 0, v.usable(), name)
		for _, c := range v.carriers {
			assert.Equal(t, Advertised, c.Source)
			if c.Err != nil {
				assert.False(t, c.Provable, name)
			}
		}
	}

	// After a ring has been closed, its addresses stay mapped, with other contents.
	w := headed(t)
	clear(w.pieces[fakeRing])
	v := newThreadView(w, contextOf(goodAdvertisement()))
	assert.Equal(t, all[1:], usableKinds(v))
	require.Len(t, v.carriers, 3)
	require.ErrorIs(t, v.carriers[0].Err, ringview.ErrNotRing)
}

func TestAdvertisedKeys(t *testing.T) {
	values := make([]*commonpb.AnyValue, 300)
	for i := range values {
		values[i] = str(fmt.Sprint("k", i))
	}
	values[1] = intValue(7)
	array := &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: values}}}
	keys := newAdvertisement(contextOf(map[string]*commonpb.AnyValue{wire.KeyAttributeKeyMap: array})).keys()
	assert.Len(t, keys, 256)
	assert.Equal(t, "k0", keys[0])
	assert.Empty(t, keys[1])
	assert.Empty(t, newAdvertisement(contextOf(nil)).keys())
}

func TestRingNames(t *testing.T) {
	for name, want := range map[string]int{
		"/memfd:OTELCTX_SLOTS (deleted)": 0, "[anon:OTELCTX_SLOTS]": 0, "[anon_shmem:OTELCTX_SLOTS]": 0,
		"/memfd:DD_OTEL_CTX (deleted)": 1, "/memfd:DD_OTEL_CTX": 1, "[anon:DD_OTEL_CTX]": 1,
		"": -1, "[anon:DD_OTEL_CTX2]": -1, "/memfd:OTELCTX_SLOTS2 (deleted)": -1, "/DD_OTEL_CTX": -1, "[anon:OTEL_CTX]": -1,
	} {
		assert.Equal(t, want, ringName([]byte(name)), name)
	}
}

// FuzzThreads checks that the reader terminates with valid results, whatever the process's memory
// and advertisement contain.
func FuzzThreads(f *testing.F) {
	f.Add(uint64(1), []byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(184), uint16(24), byte(7))
	f.Add(uint64(2), []byte{0, 0, 0x50, 0, 0, 0, 0, 0, 1}, uint16(0), uint16(4096), byte(7))
	f.Add(uint64(3), []byte{0, 0, 0x10, 0, 0, 0, 0, 0}, uint16(8), uint16(32), byte(1))
	f.Add(uint64(4), []byte{0, 0, 0x10, 0, 0, 0, 0, 0}, uint16(8), uint16(48), byte(15))
	f.Fuzz(func(t *testing.T, seed uint64, pattern []byte, offset, record uint16, which byte) {
		if len(pattern) == 0 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 2))
		memory := &fakeMemory{always: func(address uint64, b []byte) bool {
			for i := range b {
				b[i] = pattern[(address+uint64(i))%uint64(len(pattern))]
				if seed%2 == 0 && r.IntN(50) == 0 {
					b[i] ^= byte(r.Uint32())
				}
			}
			return seed%3 != 0 || address%5 != 0
		}}
		a := goodAdvertisement()
		a[wire.KeyGo+wire.GoKeyMCurgOffset] = intValue(int64(offset))
		a[wire.KeyGo+wire.GoKeyGGoidOffset] = intValue(int64(offset) / 2)
		a[wire.KeyGo+wire.GoKeyRecordOffset] = intValue(int64(record))
		v := newThreadView(headed(t), contextOf(a))
		// Read the fuzzed memory through the selected carriers.
		w := world{fakeMemory: memory}
		var names []rune
		for i, c := range "tgr" {
			if which>>i&1 == 1 && (c != 'r' || v.record.Offset > 0) {
				names = append(names, c)
			}
		}
		mixed := w.view(t, string(names))
		mixed.runtime = v.runtime
		if mixed.record.Offset > 0 {
			mixed.record.Offset = v.record.Offset
		}
		if v.runtime.MCurg == 0 || v.runtime.GGoid == 0 || v.runtime.GLabels == 0 {
			mixed.goroutines, mixed.record.Offset = nil, 0
		}
		if which&8 != 0 || mixed.goroutines != nil {
			mixed.spans = worldTable()
			mixed.record.Ancestors = max(mixed.record.Offset-8*(wire.Ancestors+1), 0)
		}
		thread := Thread{TID: fakeTID, OwnTID: fakeTID}
		require.NoError(t, newThreadReader(memory, mixed).read(&thread, fakeM))
		require.LessOrEqual(t, memory.calls, 3*maxReads)
		if s := thread.Span; s != nil {
			require.NotZero(t, s.SpanID)
			require.NotZero(t, s.TraceID)
			require.LessOrEqual(t, len(s.encoded), wire.MaxThreadContextRecord)
			decodeAttributes(s.encoded, []string{"a"})
			if s.Proven {
				require.NotZero(t, thread.Goroutine)
			}
		}
	})
}
