// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spantable publishes the live spans of the process in memory that other processes can read.
// Each span has its own cell.
//
// A span keeps its cell from Start to End. During that time a [Ref], which consists of the cell's
// number and a generation, identifies the span. Every other place that publishes the span only
// stores its Ref: one compare-and-swap of the cell's version ([Table.End]) ends the span
// everywhere, and nobody has to keep a list of these places. A span that never ends occupies only
// its cell.
//
// # Concurrency
//
// A goroutine that reserves a cell owns it until it commits the cell. Any goroutine may read a cell
// at any time. What it has read is valid if the version has not changed meanwhile ([Table.Load]).
// Any goroutine may end a span, and the goroutine whose compare-and-swap succeeds frees the cell.
//
// # Allocation
//
// Each P has a small stack of free cells (last in, first out), which are likely to be in the CPU
// cache. All other free cells are in a shared queue (first in, first out). If a span is ended by a
// goroutine other than its starter, the cell goes to the queue, so that it still describes the span
// for a while. When no cell is free, the table compares eight spans and evicts the oldest. Spans
// are evicted last if the goroutine that started them is still in them.
//
// # Lookup by id
//
// Each P has a small hash table with the Refs of the spans started on it. If a new span needs the
// entry of a live span, the live span moves to a shared hash table.
//
// The package does not know where a span is published, nor which goroutines are in it.
package spantable

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Capacity is the maximum number of live spans.
const Capacity = 1 << 16

// Ref identifies a span by its cell and the cell's generation. The zero Ref identifies no span.
type Ref = wire.Ref

// Ancestors are the parent, grandparent and great-grandparent of a span, according to the context
// passed to Start.
type Ancestors = [wire.Ancestors]Ref

const _ = -(wire.Ancestors ^ 3) // This file and gorecord handle the three ancestors one by one.

// Span is the content of a cell.
type Span struct {
	sdkspan.Key

	LocalRootSpanID uint64
	Goid            uint64
	Ancestors       Ancestors
	// Dispatched is true if the goroutine that started the span was in none of the span's ancestors.
	// Previous is the active span of that goroutine before Start.
	Dispatched bool
	Previous   ActiveSpan
	TraceFlags uint8
	// Provider is the number of the provider of the span (package providers).
	Provider    uint16
	StartUnixNS uint64
	G           uintptr
	// TID is the id of the thread whose slot publishes the span for the goroutine that started it,
	// or 0.
	TID uint32
	// Name is the number of the span's name, and Endpoint the number of its local root's name.
	Name, Endpoint uint16
}

// packNames returns the word of a cell that contains the numbers of both names.
func packNames(r Ref, name, endpoint uint16) uint64 {
	return uint64(name) | uint64(endpoint)<<wire.CellEndpointShift | uint64(r)/wire.RefGeneration<<wire.CellGenerationShift
}

// Table contains one cell per live span of a process. Use [New] to create it. It is safe for
// concurrent use.
type Table struct {
	header *wire.TableHeader
	// cells has length [Capacity], and locals has length maxLocals. They are slices because a pointer
	// to an array would cost a nil check, which reads from element 0 while another CPU may be writing
	// there.
	cells  []wire.Cell
	region *vma.Region

	locals  []local
	shared  *sharedIndex
	private *vma.Region // contains locals, shared and the entries of free
	// usedLocals is the number of locals to search: 0, or 1 more than the highest P that has started or
	// ended a span. sharedBits says which of the shared index's tables is the largest in use.
	usedLocals, sharedBits atomic.Uint32
	hand                   atomic.Uint32
	// limit is the number of cells that may be used: Capacity, or less in tests.
	limit uint32
	// base is a lower bound for the versions of this table.
	base uint64

	isPublished func(Ref, uint64, uintptr) bool
	evict       func(Ref) bool

	free queue
}

// generations is the base of the next table. It is above all versions that closed tables have used.
// So a new table never issues a Ref of a closed table, which a goroutine may still hold.
var generations atomic.Uint64

// lateGenerations is the gap between the highest version of a closed table and the first version of
// the next table. It leaves room for spans that start while the old table is being closed.
const lateGenerations = 1 << 16 * wire.RefGeneration

// private is the part of the table that other processes do not need.
type private struct {
	queued [Capacity]queueEntry
	shared sharedIndex
	locals [maxLocals]local
}

// maxLocals is the number of Ps that have memory of their own. Further Ps use the queue and the shared
// index.
const maxLocals = 512

// local is the part of the table that belongs to one P. Only a goroutine pinned to the P stores to
// it.
type local struct {
	index [localEntries]uint64
	free  [localFree]uint32
	n     uint32
	_     [60]byte
	roots rootRing
}

const (
	localBits    = 11
	localEntries = 1 << localBits
	localFree    = 64
)

// Options connect a table to the code that publishes its spans.
type Options struct {
	// Spare reports whether the goroutine that started the span still publishes it. goid and g
	// identify the goroutine. The table evicts such a span only if it finds no other.
	Spare func(r Ref, goid uint64, g uintptr) bool
	// Evict ends a live span by [Table.End] to make room. It returns false if another goroutine
	// ended the span first. If readers use some data of the span without checking the cell, Evict
	// should withdraw it before it calls End. Otherwise a concurrent End could return while that
	// data is still visible.
	//
	// Neither Spare nor Evict may be nil. Both must be safe to call from a pinned goroutine.
	Evict func(Ref) bool
	// Memory says where the cells are. Other processes find them only in [vma.Published] memory.
	Memory vma.Kind
}

// New returns an empty table. It returns both a table and an error if other processes do not find
// the table, although it works: published memory cannot be mapped, or the mapping cannot be named. It
// returns no table if no memory can be mapped.
func New(o Options) (t *Table, err error) {
	t = &Table{isPublished: o.Spare, evict: o.Evict, base: generations.Load(), limit: Capacity}
	var memory *private
	if memory, t.private, err = vma.NewOf[private](o.Memory); err != nil {
		return nil, fmt.Errorf("span table: %w", err)
	}
	t.sharedBits.Store(minSharedBits)
	t.locals, t.shared, t.free.entries = memory.locals[:], &memory.shared, memory.queued[:]
	t.region, err = vma.NewTable(wire.SpansName, wire.SpansHeaderSize+Capacity*wire.CellSize, o.Memory)
	if t.region == nil {
		return nil, fmt.Errorf("span table: %w", errors.Join(err, t.private.Close()))
	}
	t.header, t.cells = wire.SpansIn(t.region.Bytes())
	t.header.Layout = wire.SpansLayout1
	t.header.Capacity = Capacity
	t.header.EntrySize = wire.CellSize
	t.header.HeaderSize = wire.SpansHeaderSize
	if err = errors.Join(err, t.region.Publish(wire.SpansMagic)); err != nil {
		err = fmt.Errorf("span table: %w", err)
	}
	return t, err
}

// Address returns the address of the table's header.
func (t *Table) Address() uint64 { return uint64(uintptr(unsafe.Pointer(t.header))) }

// Close hides the table from other processes and gives its memory back. End all live spans first:
// otherwise spans of a table on the heap stay live. Spans that start during or after Close are not
// visible to other processes.
func (t *Table) Close() error {
	highest := t.base
	for i := range t.cells[:t.Used()] {
		highest = max(highest, atomic.LoadUint64(&t.cells[i].Version))
	}
	highest = (highest + lateGenerations) &^ (wire.RefGeneration - 1)
	for last := generations.Load(); last < highest && !generations.CompareAndSwap(last, highest); last = generations.Load() {
	}
	t.free.closed.Store(true)
	if err := errors.Join(t.region.Withdraw(), t.private.Retire()); err != nil {
		return fmt.Errorf("span table: close: %w", err)
	}
	return nil
}

// Used returns the number of cells that have ever been used. Every Ref's index is less than that.
func (t *Table) Used() uint32 { return atomic.LoadUint32(&t.header.Used) }

func (t *Table) cell(r Ref) *wire.Cell { return &t.cells[r.Index()%Capacity] }

// Live reports whether the span has not ended.
func (t *Table) Live(r Ref) bool {
	return r != 0 && atomic.LoadUint64(&t.cell(r).Version) == uint64(r)
}

// End ends a span, and reports whether this call ended it. If so, the caller must free the cell.
func (t *Table) End(r Ref) bool {
	return r != 0 && atomic.CompareAndSwapUint64(&t.cell(r).Version, uint64(r), uint64(r)|wire.CellOver)
}

// Is reports whether r refers to a live span with key k.
func (t *Table) Is(r Ref, k sdkspan.Key) bool {
	if r == 0 || k.SpanID == 0 {
		return false
	}
	c := t.cell(r)
	return atomic.LoadUint64(&c.SpanID) == k.SpanID && atomic.LoadUint64(&c.TraceIDHigh) == k.TraceIDHigh &&
		atomic.LoadUint64(&c.TraceIDLow) == k.TraceIDLow && atomic.LoadUint64(&c.Version) == uint64(r)
}

// Load fills s, except s.TID, with the content of a span's cell, and reports whether the span is
// live. If it is not live, s may describe another span.
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
	s.TraceFlags, s.Dispatched, s.StartUnixNS = uint8(flags), flags&wire.CellDispatched != 0, atomic.LoadUint64(&c.Start)
	s.Previous = ActiveSpan(atomic.LoadUint64(&c.Previous))
	s.G = uintptr(atomic.LoadUint64(&c.G))
	names := atomic.LoadUint64(&c.Names)
	s.Name, s.Endpoint = uint16(names), uint16(names>>wire.CellEndpointShift)
	return atomic.LoadUint64(&c.Version) == uint64(r)
}

// IDs returns the key and the trace flags of a span. All are 0 if the span has ended.
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

// Provider returns the number of the provider of a live span, see [Span].
func (t *Table) Provider(r Ref) uint16 {
	return uint16(atomic.LoadUint64(&t.cell(r).Flags) >> wire.CellProviderShift)
}

// Names returns the numbers of a span's name and of its local root's name. They are meaningless if
// the span has ended.
func (t *Table) Names(r Ref) (name, endpoint uint16) {
	names := atomic.LoadUint64(&t.cell(r).Names)
	return uint16(names), uint16(names >> wire.CellEndpointShift)
}

// LocalRoot returns the span id and the number of the name of a span's local root. Both are 0 if
// the span has ended.
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

// Rename sets the name of a live span. If the span is a local root, Rename also sets its endpoint,
// but not the endpoint of descendants that exist already.
func (t *Table) Rename(r Ref, name uint16) {
	var s Span
	if !t.Load(r, &s) || s.Name == name {
		return
	}
	endpoint := s.Endpoint
	if s.LocalRootSpanID == s.SpanID {
		endpoint = name
	}
	// The word includes the generation, so the swap fails if the cell now describes another span.
	// It also fails if another goroutine has renamed the span in the meantime. The name from that
	// goroutine then stays.
	atomic.CompareAndSwapUint64(&t.cell(r).Names, packNames(r, s.Name, s.Endpoint), packNames(r, name, endpoint))
}

// Reserve returns a Ref for a span that is about to start, or 0 if no cell is available. The cell
// belongs to the caller until [Table.Commit]. Until then, the caller must be pinned to P number p.
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
	// Generations start above the base, so that no Ref is 0.
	next := max(atomic.LoadUint64(&c.Version), t.base)&^(wire.RefGeneration-1) + wire.RefGeneration + uint64(i)<<wire.RefIndexShift
	// Readers must see the new version before the cell changes.
	ordered.StoreBarrier(&c.Version, next|wire.CellOver)
	return Ref(next)
}

// Commit stores s in the cell of a reserved Ref and makes the span live.
func (t *Table) Commit(p int, r Ref, s *Span) {
	c := t.cell(r)
	if invariants.Enabled {
		v := atomic.LoadUint64(&c.Version)
		invariants.Check(v == uint64(r)|wire.CellOver || t.closed(), "a reserved cell is committed only once, by its owner")
		for _, ancestor := range s.Ancestors {
			invariants.Check(ancestor != r, "no span is its own ancestor")
		}
	}
	ordered.Store(&c.TraceIDHigh, s.TraceIDHigh)
	ordered.Store(&c.TraceIDLow, s.TraceIDLow)
	ordered.Store(&c.SpanID, s.SpanID)
	ordered.Store(&c.LocalRootSpanID, s.LocalRootSpanID)
	ordered.Store(&c.Goid, s.Goid)
	ordered.Store(&c.Ancestors[0], uint64(s.Ancestors[0]))
	ordered.Store(&c.Ancestors[1], uint64(s.Ancestors[1]))
	ordered.Store(&c.Ancestors[2], uint64(s.Ancestors[2]))
	flags := uint64(s.TraceFlags)
	if s.Dispatched {
		flags |= wire.CellDispatched
	}
	flags |= uint64(s.Provider) << wire.CellProviderShift
	ordered.Store(&c.Flags, flags)
	ordered.Store(&c.Previous, uint64(s.Previous))
	ordered.Store(&c.Start, s.StartUnixNS)
	ordered.Store(&c.G, uint64(s.G))
	ordered.Store32(&c.TID, s.TID)
	ordered.Store32(&c.Shared, 0)
	ordered.Store(&c.Names, packNames(r, s.Name, s.Endpoint))
	ordered.StoreRelease(&c.Version, uint64(r))
	if p >= len(t.locals) {
		t.share(r, s.SpanID)
		return
	}
	t.use(uint32(p))
	// From here on, Find returns the span.
	entry := t.locals[p].entry(s.SpanID)
	if old := Ref(atomic.LoadUint64(entry)); t.Live(old) {
		t.share(old, atomic.LoadUint64(&t.cell(old).SpanID))
	}
	ordered.Store(entry, uint64(r))
}

// Barrier orders a Commit before the caller's next loads. Any other atomic read-modify-write
// operation between the two has the same effect.
func (t *Table) Barrier(r Ref) { atomic.AddUint64(&t.cell(r).Version, 0) }

// Free adds the cell of a span that the caller has ended to the shared queue. The cell keeps its
// contents until it is reused.
func (t *Table) Free(r Ref) {
	t.checkEnded(r)
	// Pin, because a goroutine that is preempted during a push makes all others wait.
	if p := goruntime.Pin(); p < len(t.locals) {
		t.forget(&t.locals[p], r)
	}
	t.free.push(r.Index())
	goruntime.Unpin()
}

// closed reports whether Close has been called. Close replaces the memory, so the state of the
// cells may then be lost.
func (t *Table) closed() bool { return atomic.LoadUint32(&t.header.Magic) == 0 }

// checkEnded checks that a cell is freed only once, after its span has ended.
func (t *Table) checkEnded(r Ref) {
	if invariants.Enabled {
		v := atomic.LoadUint64(&t.cell(r).Version)
		invariants.Check(v == uint64(r)|wire.CellOver || t.closed(), "a cell is freed once, after its span has ended")
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

// SetThread stores tid in the cell of a span. tid is the id of the thread whose slot publishes the
// span for the calling goroutine, or 0 once that slot publishes another span. goid is the id of the
// calling goroutine. If the slot of any other thread still names the span, that slot is outdated.
// SetThread does nothing if another goroutine started the span, or if the cell describes another
// span. The span may have ended.
func (t *Table) SetThread(r Ref, goid uint64, tid uint32) {
	if r == 0 {
		return
	}
	c := t.cell(r)
	if atomic.LoadUint64(&c.Goid) == goid && t.describes(c, r) {
		ordered.Store32(&c.TID, tid)
	}
}

// SetShared records that a goroutine that did not start the span has published it. It does nothing if r
// is 0. If the cell describes another span, it affects that one.
func (t *Table) SetShared(r Ref) {
	if c := t.cell(r); r != 0 && atomic.LoadUint32(&c.Shared) == 0 {
		ordered.Store32(&c.Shared, 1)
	}
}

// Shared reports whether [Table.SetShared] was called for a span, whose cell must not be free.
func (t *Table) Shared(r Ref) bool { return atomic.LoadUint32(&t.cell(r).Shared) != 0 }

// StarterOf returns the goroutine that started a span, and the span's id. The cell must not be free.
func (t *Table) StarterOf(r Ref) (goid, spanID uint64) {
	c := t.cell(r)
	return atomic.LoadUint64(&c.Goid), atomic.LoadUint64(&c.SpanID)
}

// IsOf reports whether r refers to a live span that the goroutine with this id started.
func (t *Table) IsOf(r Ref, goid uint64) bool {
	return r != 0 && atomic.LoadUint64(&t.cell(r).Goid) == goid && t.Live(r)
}
