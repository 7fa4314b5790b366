// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// spanTable is the table of a process's live spans. Each live span has a cell, which is an entry of the
// table. Slots, goroutine records and the entries of the goroutine table refer to these cells.
type spanTable struct {
	*Table

	// offsets holds the offsets of the fields that this package reads.
	offsets [numCellFields]int
}

type cellField int

const (
	cellVersion cellField = iota
	cellTraceIDHigh
	cellTraceIDLow
	cellSpanID
	cellLocalRoot
	cellGoid
	cellAncestors
	cellTraceFlags
	cellDispatched
	cellStart
	cellG
	cellTID
	cellName
	cellEndpoint
	cellPrevious
	numCellFields
)

// Limits for the layout of an advertised span table.
const (
	maxCellSize     = 1024
	maxCellCapacity = 1 << wire.RefIndexBits
)

// spanTable returns the advertised span table. The error is the reason why there is none.
func (a advertisement) spanTable(memory remotemem.Reader) (*spanTable, error) {
	if !a.announces(wire.KeySpans) {
		return nil, errNotAdvertised
	}
	layout, err := a.table(wire.KeySpans, tableBounds{wire.SpansLayout1, wire.SpansKeyCellSize, 8, maxCellSize, maxCellCapacity})
	if err != nil {
		return nil, err
	}
	t := &spanTable{Table: layout}
	if t.Fields, err = a.fields(wire.KeySpans + wire.RingKeyFields); err != nil {
		return nil, err
	}
	for i, f := range wire.CellFields() {
		offset, ok := t.Fields[f.Name]
		if !ok || offset < 0 || offset > t.EntrySize-int(f.Size) {
			return nil, fmt.Errorf("no field %s in cells of %d bytes", f.Name, t.EntrySize)
		}
		t.offsets[i] = offset
	}
	if _, err := t.used(memory); err != nil {
		return nil, err
	}
	return t, nil
}

// errNoSpanTable means that there is no span table at the advertised address, for example because
// it has been closed.
var errNoSpanTable = errors.New("not a span table")

// used returns the number of cells that have ever been used. The error wraps [errNoSpanTable] if
// the table's header is not at the advertised address. Any other error comes from memory.
func (t *spanTable) used(memory remotemem.Reader) (int, error) {
	used, err := t.Table.used(memory, wire.SpansMagic, errNoSpanTable)
	if err != nil {
		return 0, fmt.Errorf("span table: %w", err)
	}
	return used, nil
}

// cell returns the address of the cell that ref refers to.
func (t *spanTable) cell(ref uint64) uint64 {
	return t.Address + uint64(t.HeaderSize) + uint64(wire.RefIndex(ref)%uint32(t.Capacity))*uint64(t.EntrySize)
}

func (t *spanTable) u64(data []byte, f cellField) uint64 {
	return binary.NativeEndian.Uint64(data[t.offsets[f]:])
}

// SpanRef identifies a span among all spans that its process ever starts. The zero SpanRef means
// that there is no span.
type SpanRef uint64

// LiveSpan is a span that has started and not yet ended.
type LiveSpan struct {
	// Ref identifies the span. [Goroutine.Span] and [LiveSpan.Ancestors] refer to spans by this
	// value.
	Ref SpanRef
	// Ancestors are the span's parent, grandparent and great-grandparent, according to the context
	// that it was started with, the nearest first. There are fewer if the span has fewer, and more
	// may be published in the future. They may have ended. A reference is 0 if the process does not
	// know that ancestor.
	Ancestors []SpanRef
	// Previous is the span that the goroutine was in when it started this one, or 0 if there was none.
	// The goroutine returns there when it ends this span. Previous may have ended.
	Previous SpanRef
	// TraceID, SpanID and LocalRootSpanID are in the byte order of W3C Trace Context. The local
	// root is the outermost span of the trace in the process. TraceFlags are the W3C trace flags,
	// in which 1 means sampled.
	TraceID         [16]byte
	SpanID          [8]byte
	LocalRootSpanID [8]byte
	TraceFlags      byte
	// Start is the span's start time according to the span itself.
	Start time.Time
	// Starter is the goroutine that started the span. Its ID and G are 0 if they are unknown.
	Starter GoroutineRef
	// Name is the span's name, and Endpoint is the name of its local root. Each has at most 255
	// bytes, which should be UTF-8. They are empty if the process publishes no names.
	Name, Endpoint string

	names spanNames
}

// decode decodes a cell. It sets the numbers of the names, but not the names themselves.
func (t *spanTable) decode(data []byte) (s LiveSpan) {
	s.Ref = SpanRef(t.u64(data, cellVersion) &^ wire.CellOver)
	s.Ancestors = knownAncestors(decodeAncestors(data[t.offsets[cellAncestors]:]))
	s.Previous = SpanRef(wire.ActiveSpan(t.u64(data, cellPrevious)).Ref())
	binary.BigEndian.PutUint64(s.TraceID[:8], t.u64(data, cellTraceIDHigh))
	binary.BigEndian.PutUint64(s.TraceID[8:], t.u64(data, cellTraceIDLow))
	binary.BigEndian.PutUint64(s.SpanID[:], t.u64(data, cellSpanID))
	binary.BigEndian.PutUint64(s.LocalRootSpanID[:], t.u64(data, cellLocalRoot))
	s.TraceFlags = data[t.offsets[cellTraceFlags]]
	s.Start = time.Unix(0, int64(t.u64(data, cellStart)))
	s.Starter = GoroutineRef{ID: t.u64(data, cellGoid), G: t.u64(data, cellG)}
	s.names.name = binary.NativeEndian.Uint16(data[t.offsets[cellName]:])
	s.names.endpoint = binary.NativeEndian.Uint16(data[t.offsets[cellEndpoint]:])
	return s
}

// Spans returns the live spans of the process, the oldest first. It includes the spans of
// goroutines that are waiting, and works even if the process is stopped. Spans that start or end
// during the call may or may not be included. [Process.SpanBatches] is cheaper.
//
// The error wraps [ErrNoThreadContext] if the process has no readable carrier or does not advertise
// its live spans. Any other error wraps [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or
// [ErrBusy], or comes from ctx.
func (p *Process) Spans(ctx context.Context) ([]LiveSpan, error) {
	var spans []LiveSpan
	for batch, err := range p.SpanBatches(ctx) {
		if err != nil {
			return nil, err
		}
		spans = append(spans, batch...)
	}
	slices.SortStableFunc(spans, func(a, b LiveSpan) int { return a.Start.Compare(b.Start) })
	return spans, nil
}

// SpanBatches yields the live spans of the process in no particular order, a few hundred at a time.
// It yields each batch as soon as it has been read, so that callers can examine the goroutines of
// its spans before they move on. It yields each span at most once. A batch is valid only until the
// next iteration. The sequence ends after an error. The errors are those of [Process.Spans].
func (p *Process) SpanBatches(ctx context.Context) iter.Seq2[[]LiveSpan, error] {
	return func(yield func([]LiveSpan, error) bool) {
		v, err := p.spansView(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		name := p.nameSpans(v)
		for spans, err := range v.spans.batches(p.until(ctx)) {
			if err != nil {
				yield(nil, p.spansError(err))
				return
			}
			for i := range spans {
				s := &spans[i]
				s.Name, s.Endpoint = name(s.names)
			}
			if err := p.confirm(v); err != nil {
				yield(nil, err)
				return
			}
			if !yield(spans, nil) {
				return
			}
			if err := ctx.Err(); err != nil {
				yield(nil, p.error(err))
				return
			}
		}
	}
}

// SpansByRef returns those of the given spans that are live, in no particular order and each once. It
// reads hardly more than their cells. Its errors are those of [Process.Spans].
func (p *Process) SpansByRef(ctx context.Context, refs []SpanRef) ([]LiveSpan, error) {
	v, err := p.spansView(ctx)
	if err != nil {
		return nil, err
	}
	cells, err := v.spans.newCellReader(p.until(ctx))
	if err != nil {
		return nil, p.spansError(err)
	}
	defer cells.release()
	wanted := make(map[SpanRef]bool, len(refs))
	for _, ref := range refs {
		wanted[ref] = true
		cells.want(ref)
	}
	var spans []LiveSpan
	name := p.nameSpans(v)
	if err := cells.eachWanted(func(_ int, cell []byte) {
		if cell == nil || v.spans.u64(cell, cellVersion)&wire.CellOver != 0 {
			return
		}
		if s := v.spans.decode(cell); wanted[s.Ref] {
			s.Name, s.Endpoint = name(s.names)
			spans = append(spans, s)
		}
	}); err != nil {
		return nil, p.spansError(err)
	}
	return spans, p.confirm(v)
}

// spansView returns a view with a span table.
func (p *Process) spansView(ctx context.Context) (*threadView, error) {
	v, err := p.threadView(ctx)
	if err == nil && v.spans == nil {
		return nil, p.error(fmt.Errorf("%w: live spans are not advertised", ErrNoThreadContext))
	}
	return v, err
}

// spansError classifies an error of reading the span table.
func (p *Process) spansError(err error) error {
	if errors.Is(err, errNoSpanTable) {
		err = fmt.Errorf("%w: %w", ErrNoThreadContext, err) // the table was closed during the read
	}
	return p.classify(err)
}

// lineage decodes the lineage in a cell.
func (t *spanTable) lineage(cell []byte) lineage {
	return lineage{t.u64(cell, cellGoid), cell[t.offsets[cellDispatched]] != 0, decodeAncestors(cell[t.offsets[cellAncestors]:])}
}

func decodeAncestors(b []byte) (refs [wire.Ancestors]SpanRef) {
	for i := range refs {
		refs[i] = SpanRef(binary.NativeEndian.Uint64(b[8*i:]))
	}
	return refs
}

// knownAncestors returns the ancestors up to the last known one.
func knownAncestors(refs [wire.Ancestors]SpanRef) []SpanRef {
	for n := len(refs); n > 0; n-- {
		if refs[n-1] != 0 {
			return append([]SpanRef(nil), refs[:n]...)
		}
	}
	return nil
}

// batches yields the live spans without their names, one batch for every [cellBatch] cells. It
// yields at least one batch. Batches may be empty. The error wraps [errNoSpanTable] or comes from
// memory.
func (t *spanTable) batches(memory remotemem.Reader) iter.Seq2[[]LiveSpan, error] {
	return func(yield func([]LiveSpan, error) bool) {
		used, err := t.used(memory)
		if err != nil {
			yield(nil, err)
			return
		}
		scratch, _ := cellScratches.Get().(*cellScratch)
		defer cellScratches.Put(scratch)
		for first := 0; first < max(used, 1); first += cellBatch {
			cells, err := t.read(memory, scratch, first, min(cellBatch, used-first))
			if err != nil {
				yield(nil, err)
				return
			}
			scratch.spans = scratch.spans[:0]
			for _, cell := range cells {
				if cell != nil && t.u64(cell, cellVersion)&wire.CellOver == 0 {
					scratch.spans = append(scratch.spans, t.decode(cell))
				}
			}
			if !yield(scratch.spans, nil) {
				return
			}
		}
	}
}

// cellScratch is memory reused by successive reads of cells.
type cellScratch struct {
	bytes []byte
	cells [][]byte
	spans []LiveSpan
	// found and wanted are used by [cellReader]. generation is the number of the last read.
	found      []foundCell
	wanted     []bool
	generation uint64
}

// cellBatch is the number of cells that are read at once.
const cellBatch = 512

var cellScratches = sync.Pool{New: func() any { return &cellScratch{cells: make([][]byte, cellBatch)} }}

// read returns the contents of count cells, at most [cellBatch], starting with cell number first.
// It returns nil for a cell that has never been used or was changing. The result is valid until
// scratch is used again. The error comes from memory.
func (t *spanTable) read(memory remotemem.Reader, scratch *cellScratch, first, count int) ([][]byte, error) {
	address := t.Address + uint64(t.HeaderSize) + uint64(first*t.EntrySize)
	size := count * t.EntrySize
	scratch.bytes = sized(scratch.bytes, 3*size)
	before, data, after := scratch.bytes[:size], scratch.bytes[size:2*size], scratch.bytes[2*size:]
	// The bytes of a part may be read in any order, so reading the cells once would not be enough.
	// If a cell has the same version before and after data was read, the cell did not change in
	// between, because versions never repeat.
	if _, err := memory.ReadParts([]remotemem.Part{
		{Address: address, Data: before}, {Address: address, Data: data}, {Address: address, Data: after},
	}); err != nil {
		return nil, err
	}
	cells := scratch.cells[:count]
	for i := range cells {
		offset := i * t.EntrySize
		cells[i] = data[offset:][:t.EntrySize]
		version := t.u64(before[offset:], cellVersion)
		if version == 0 || t.u64(cells[i], cellVersion) != version || t.u64(after[offset:], cellVersion) != version {
			cells[i] = nil
		}
	}
	return cells, nil
}

// live returns the live spans without their names. Its errors are those of batches.
func (t *spanTable) live(memory remotemem.Reader) (spans []LiveSpan, err error) {
	for batch, err := range t.batches(memory) {
		if err != nil {
			return nil, err
		}
		spans = append(spans, batch...)
	}
	return spans, nil
}
