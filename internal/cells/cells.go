// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Capacity is how many spans can be live at a time.
const Capacity = 1 << 16

// Ref names the cell of one span. The zero Ref names nothing.
type Ref = wire.Ref

// Ancestors are the parent of a span, its grandparent and its great-grandparent, by the context
// that the span was started with.
type Ancestors = [wire.Ancestors]Ref

const _ = -(wire.Ancestors ^ 3) // All three are spelled out below, and in gorecord.

// Span is what a cell says of its span.
type Span struct {
	sdkspan.Key

	LocalRootSpanID uint64
	Goid            uint64
	Ancestors       Ancestors
	// Outside is whether the goroutine that started the span was in none of its ancestors, and
	// Before is what it was in.
	Outside     bool
	Before      Position
	TraceFlags  uint8
	StartUnixNS uint64
	G           uintptr
	// TID is the id of the thread that the goroutine shows the span on.
	TID uint32
	// Name and Endpoint are the numbers of its name and of that of its local root.
	Name, Endpoint uint16
}

// packNames returns what a cell has of names.
func packNames(r Ref, name, endpoint uint16) uint64 {
	return uint64(name) | uint64(endpoint)<<wire.CellEndpointShift | uint64(r)/wire.RefGeneration<<wire.CellGenerationShift
}

// Table is the cells of a process. [New] makes one. It is safe for concurrent use.
type Table struct {
	header *wire.SpansHeader
	// cells has [Capacity] of them. It is no pointer to an array: to see whether that is nil,
	// compiled code reads its first word. That would be cell 0, which a processor is writing to.
	cells  []wire.Cell
	region *vma.Region

	locals []local
	shared sharedIndex
	free   queue
	hand   atomic.Uint32
	// limit is how many cells may be used: Capacity, but for tests.
	limit uint32
	// base is the version that a cell without one counts from.
	base uint64

	spare func(Ref, uint64, uintptr) bool
	evict func(Ref) bool
}

// generations is the highest version of any table that was closed. Goroutines may still
// hold Refs of such a table when the next one comes up. So no table repeats a Ref.
var generations atomic.Uint64

// lateGenerations is how far the next table stays away from that: spans that start while
// their table is closed may still use up some.
const lateGenerations = 1 << 16 * wire.RefGeneration

// local is what only the goroutine that is pinned to one P stores to.
type local struct {
	index [localEntries]uint64
	free  [localFree]uint32
	n     uint32
	_     [60]byte
}

const (
	localBits    = 11
	localEntries = 1 << localBits
	localFree    = 64
)

// Options are how a table works with what shows its spans.
type Options struct {
	// Spare reports whether the goroutine with an id and g, which has started the span, still
	// shows it.
	Spare func(r Ref, goid uint64, g uintptr) bool
	// Evict ends a live span to make room, by [Table.End], and takes back what shows it. It reports
	// whether it did, or somebody else was first. A goroutine that ends the span itself finds it
	// over. So what readers would believe without asking the cell is best taken back before.
	//
	// Neither may be nil. Both are called while the caller is pinned.
	Evict func(Ref) bool
	// Heap has the cells in memory that no other process finds.
	Heap bool
}

// New returns a table without spans. If its memory cannot be mapped the table works all
// the same, but no other process finds it: err says why.
func New(o Options) (t *Table, err error) {
	t = &Table{
		spare: o.Spare, evict: o.Evict, shared: newSharedIndex(), base: generations.Load(),
		locals: make([]local, max(runtime.GOMAXPROCS(0), runtime.NumCPU())), limit: Capacity,
	}
	t.free.init(Capacity)
	t.region, err = vma.NewOrHeap(wire.SpansName, wire.SpansHeaderSize+Capacity*wire.CellSize, o.Heap)
	t.header, t.cells = wire.SpansIn(t.region.Bytes())
	t.header.Layout = wire.SpansLayout1
	t.header.Capacity = Capacity
	t.header.CellSize = wire.CellSize
	t.header.HeaderSize = wire.SpansHeaderSize
	if err = errors.Join(err, t.region.Publish(wire.SpansMagic)); err != nil {
		err = fmt.Errorf("span table: %w", err)
	}
	return t, err
}

// Address returns where the table's header is.
func (t *Table) Address() uint64 { return uint64(uintptr(unsafe.Pointer(t.header))) }

// Close withdraws the table from other processes. Its caller has ended the live spans, for cells on
// the heap keep them. Those that late goroutines still start have no effect.
func (t *Table) Close() error {
	highest := t.base
	for i := range t.cells[:t.Used()] {
		highest = max(highest, atomic.LoadUint64(&t.cells[i].Version))
	}
	highest = (highest + lateGenerations) &^ (wire.RefGeneration - 1)
	for last := generations.Load(); last < highest && !generations.CompareAndSwap(last, highest); last = generations.Load() {
	}
	if err := t.region.Withdraw(); err != nil {
		return fmt.Errorf("span table: close: %w", err)
	}
	return nil
}

// Used returns how many cells have been used: the indices of all Refs are below.
func (t *Table) Used() uint32 { return atomic.LoadUint32(&t.header.Used) }

func (t *Table) cell(r Ref) *wire.Cell { return &t.cells[r.Index()%Capacity] }

// Live reports whether the span is not over.
func (t *Table) Live(r Ref) bool {
	return r != 0 && atomic.LoadUint64(&t.cell(r).Version) == uint64(r)
}

// End ends a span and reports whether this call did: then the caller frees the cell.
func (t *Table) End(r Ref) bool {
	return r != 0 && atomic.CompareAndSwapUint64(&t.cell(r).Version, uint64(r), uint64(r)|wire.CellOver)
}

// Is reports whether r names the live span with a key.
func (t *Table) Is(r Ref, k sdkspan.Key) bool {
	if r == 0 || k.SpanID == 0 {
		return false
	}
	c := t.cell(r)
	return atomic.LoadUint64(&c.SpanID) == k.SpanID && atomic.LoadUint64(&c.TraceIDHigh) == k.TraceIDHigh &&
		atomic.LoadUint64(&c.TraceIDLow) == k.TraceIDLow && atomic.LoadUint64(&c.Version) == uint64(r)
}

// Load fills s with what is known of a span, and reports whether that is live.
func (t *Table) Load(r Ref, s *Span) bool {
	if r == 0 {
		return false
	}
	c := t.cell(r)
	s.TraceIDHigh, s.TraceIDLow = atomic.LoadUint64(&c.TraceIDHigh), atomic.LoadUint64(&c.TraceIDLow)
	s.SpanID, s.LocalRootSpanID = atomic.LoadUint64(&c.SpanID), atomic.LoadUint64(&c.LocalRootSpanID)
	s.Goid = atomic.LoadUint64(&c.Goid)
	s.Ancestors[0], s.Ancestors[1] = Ref(atomic.LoadUint64(&c.Ancestors[0])), Ref(atomic.LoadUint64(&c.Ancestors[1]))
	s.Ancestors[2] = Ref(atomic.LoadUint64(&c.Ancestors[2]))
	flags := atomic.LoadUint64(&c.Flags)
	s.TraceFlags, s.Outside, s.StartUnixNS = uint8(flags), flags&wire.CellOutside != 0, atomic.LoadUint64(&c.Start)
	s.Before = Position(atomic.LoadUint64(&c.Before))
	s.G = uintptr(atomic.LoadUint64(&c.G))
	names := atomic.LoadUint64(&c.Names)
	s.Name, s.Endpoint = uint16(names), uint16(names>>wire.CellEndpointShift)
	return atomic.LoadUint64(&c.Version) == uint64(r)
}

// IDs returns what identifies a span and its trace flags, all 0 if the span is over.
func (t *Table) IDs(r Ref) (k sdkspan.Key, traceFlags uint8) {
	if r == 0 {
		return sdkspan.Key{}, 0
	}
	c := t.cell(r)
	k.TraceIDHigh, k.TraceIDLow = atomic.LoadUint64(&c.TraceIDHigh), atomic.LoadUint64(&c.TraceIDLow)
	k.SpanID, traceFlags = atomic.LoadUint64(&c.SpanID), uint8(atomic.LoadUint64(&c.Flags))
	if atomic.LoadUint64(&c.Version) != uint64(r) {
		return sdkspan.Key{}, 0
	}
	return k, traceFlags
}

// Names returns the numbers of the names of a span and of its local root, which mean nothing
// if the span is over.
func (t *Table) Names(r Ref) (name, endpoint uint16) {
	names := atomic.LoadUint64(&t.cell(r).Names)
	return uint16(names), uint16(names >> wire.CellEndpointShift)
}

// LocalRoot returns the id of the local root of a span and the number of its name, both 0 if
// the span is over.
func (t *Table) LocalRoot(r Ref) (spanID uint64, name uint16) {
	if r == 0 {
		return 0, 0
	}
	spanID = atomic.LoadUint64(&t.cell(r).LocalRootSpanID)
	_, name = t.Names(r)
	if !t.Live(r) {
		return 0, 0
	}
	return spanID, name
}

// Rename gives a live span the name of this number, and if it is a local root its endpoint.
// Spans that have that endpoint already keep theirs.
func (t *Table) Rename(r Ref, name uint16) {
	var s Span
	if !t.Load(r, &s) || s.Name == name {
		return
	}
	endpoint := s.Endpoint
	if s.LocalRootSpanID == s.SpanID {
		endpoint = name
	}
	// If the cell is another span's by now, it has another generation. If somebody else has
	// renamed the span meanwhile, that is as new.
	atomic.CompareAndSwapUint64(&t.cell(r).Names, packNames(r, s.Name, s.Endpoint), packNames(r, name, endpoint))
}

// Reserve returns a Ref for a span that is about to start, whose cell is the caller's
// until [Table.Commit], or 0 if there is none. The caller is pinned to the P with this
// number until then.
func (t *Table) Reserve(p int) Ref {
	i, ok := t.takeWarm(p)
	if !ok {
		if i, ok = t.take(); !ok {
			return 0
		}
	}
	c := &t.cells[i]
	if invariants.Enabled {
		v := atomic.LoadUint64(&c.Version)
		invariants.Check(v == 0 || v&wire.CellOver != 0 || t.closed(), "a free cell has no live span")
	}
	// Generations begin with 1 more than the base, so that no Ref is 0.
	next := max(atomic.LoadUint64(&c.Version), t.base)&^(wire.RefGeneration-1) + wire.RefGeneration + uint64(i)<<wire.RefIndexShift
	// Readers see the new version before the cell changes.
	ordered.PutFirst(&c.Version, next|wire.CellOver)
	return Ref(next)
}

// Commit has the cell of a reserved Ref describe s, which is live from then on.
func (t *Table) Commit(p int, r Ref, s *Span) {
	c := t.cell(r)
	if invariants.Enabled {
		v := atomic.LoadUint64(&c.Version)
		invariants.Check(v == uint64(r)|wire.CellOver || t.closed(), "a cell is its own until it is committed")
		for _, ancestor := range s.Ancestors {
			invariants.Check(ancestor != r, "no span is its own ancestor")
		}
	}
	ordered.Put(&c.TraceIDHigh, s.TraceIDHigh)
	ordered.Put(&c.TraceIDLow, s.TraceIDLow)
	ordered.Put(&c.SpanID, s.SpanID)
	ordered.Put(&c.LocalRootSpanID, s.LocalRootSpanID)
	ordered.Put(&c.Goid, s.Goid)
	ordered.Put(&c.Ancestors[0], uint64(s.Ancestors[0]))
	ordered.Put(&c.Ancestors[1], uint64(s.Ancestors[1]))
	ordered.Put(&c.Ancestors[2], uint64(s.Ancestors[2]))
	flags := uint64(s.TraceFlags)
	if s.Outside {
		flags |= wire.CellOutside
	}
	ordered.Put(&c.Flags, flags)
	ordered.Put(&c.Before, uint64(s.Before))
	ordered.Put(&c.Start, s.StartUnixNS)
	ordered.Put(&c.G, uint64(s.G))
	ordered.Put32(&c.TID, s.TID)
	ordered.Put(&c.Names, packNames(r, s.Name, s.Endpoint))
	ordered.PutLast(&c.Version, uint64(r))
	if p >= len(t.locals) {
		t.share(r, s.SpanID) // There are more Ps than there were.
		return
	}
	// From here on Find returns it.
	entry := &t.locals[p].index[hash(s.SpanID, localBits)]
	if old := Ref(atomic.LoadUint64(entry)); t.Live(old) {
		t.share(old, atomic.LoadUint64(&t.cell(old).SpanID))
	}
	ordered.Put(entry, uint64(r))
}

// Barrier orders a Commit before what the caller looks at next. Any other atomic operation
// between the two does that too.
func (t *Table) Barrier(r Ref) { atomic.AddUint64(&t.cell(r).Version, 0) }

// Free gives back the cell of a span that the caller has ended. The cell describes the span
// for a while.
func (t *Table) Free(r Ref) {
	t.checkOver(r)
	// Pinned: who is in the middle of a push keeps all others from popping.
	goruntime.Pin()
	t.free.push(r.Index())
	goruntime.Unpin()
}

// closed reports whether the table is withdrawn, or is about to be. Its memory may be another one
// then, and not tell which cells are used.
func (t *Table) closed() bool { return atomic.LoadUint32(&t.header.Magic) == 0 }

// checkOver checks that a span is over whose cell is given back, for the first time.
func (t *Table) checkOver(r Ref) {
	if invariants.Enabled {
		v := atomic.LoadUint64(&t.cell(r).Version)
		invariants.Check(v == uint64(r)|wire.CellOver || t.closed(), "a cell is given back once, when its span is over")
	}
}

// All calls f for every live span.
func (t *Table) All(f func(Ref)) {
	for i := range t.cells[:t.Used()] {
		if v := atomic.LoadUint64(&t.cells[i].Version); v != 0 && v&wire.CellOver == 0 {
			f(Ref(v))
		}
	}
}

// SetThread notes on which thread the goroutine with this id shows a span, or with 0 that it
// shows another one. The slots of threads that it has been on before are out of date then.
// It does nothing if another goroutine has started the span. The span may be over, as long
// as its cell is not used for another one. It is called by that goroutine.
func (t *Table) SetThread(r Ref, goid uint64, tid uint32) {
	if r == 0 {
		return
	}
	c := t.cell(r)
	if atomic.LoadUint64(&c.Goid) == goid && t.describes(c, r) {
		ordered.Put32(&c.TID, tid)
	}
}

// IsOf reports whether the goroutine with this id has started a live span.
func (t *Table) IsOf(r Ref, goid uint64) bool {
	return r != 0 && atomic.LoadUint64(&t.cell(r).Goid) == goid && t.Live(r)
}
