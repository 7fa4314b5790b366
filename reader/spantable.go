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
	"time"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// SpanTable says where a process keeps its live spans: a cell for each. Slots, records and entries
// of the goroutine table name cells by references, see docs/wire-format.md.
type SpanTable struct {
	// Address is where the table's header is, and HeaderSize how far behind it the first
	// cell is. CellSize is the distance between cells, and Capacity their number.
	Address                        uint64
	HeaderSize, CellSize, Capacity int
	// Fields has the offset of each field of a cell by its name, such as span_id.
	Fields map[string]int

	// offsets are those of the fields that are read here.
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
	cellOutside
	cellStart
	cellG
	cellTID
	cellName
	cellEndpoint
	numCellFields
)

// Bounds of what a process may advertise as the layout of its span table.
const (
	maxCellSize     = 1024
	maxCellCapacity = 1 << wire.RefIndexBits
)

// spanTable returns the span table that is advertised. The error says why there is none.
func (a advertisement) spanTable(memory ringbuf.Memory) (*SpanTable, error) {
	if !a.announces(wire.KeySpans) {
		return nil, errNotAdvertised
	}
	t := new(SpanTable)
	known, err := a.table(wire.KeySpans, tableBounds{wire.SpansLayout1, wire.SpansKeyCellSize, 8, maxCellSize, maxCellCapacity})
	if err != nil {
		return nil, err
	}
	t.Address, t.HeaderSize, t.CellSize, t.Capacity = known.address, known.headerSize, known.entrySize, known.capacity
	if t.Fields, err = a.fields(wire.KeySpans + wire.RingKeyFields); err != nil {
		return nil, err
	}
	for i, f := range wire.CellFields() {
		offset, ok := t.Fields[f.Name]
		if !ok || offset < 0 || offset > t.CellSize-int(f.Size) {
			return nil, fmt.Errorf("no field %s in cells of %d bytes", f.Name, t.CellSize)
		}
		t.offsets[i] = offset
	}
	if _, err := t.used(memory); err != nil {
		return nil, err
	}
	return t, nil
}

// errNoSpanTable says that there is no span table at the advertised address, or no
// longer.
var errNoSpanTable = errors.New("not a span table")

// used returns how many cells have ever been used. The error is the memory's, or wraps
// [errNoSpanTable] if the header is not that of this table.
func (t *SpanTable) used(memory ringbuf.Memory) (int, error) {
	used, err := table{t.Address, t.HeaderSize, t.CellSize, t.Capacity}.used(memory, wire.SpansMagic, wire.SpansLayout1, errNoSpanTable)
	if err != nil {
		return 0, fmt.Errorf("span table: %w", err)
	}
	return used, nil
}

// cell returns the address of the cell that a reference names.
func (t *SpanTable) cell(ref uint64) uint64 {
	return t.Address + uint64(t.HeaderSize) + uint64(wire.RefIndex(ref)%uint32(t.Capacity))*uint64(t.CellSize)
}

func (t *SpanTable) u64(data []byte, f cellField) uint64 {
	return binary.NativeEndian.Uint64(data[t.offsets[f]:])
}

// LiveSpan is a span of a process that has started and not ended.
type LiveSpan struct {
	// TraceID, SpanID and LocalRootSpanID are in the order of their bytes in W3C trace
	// contexts. The local root is the outermost span of the trace in the process.
	// TraceFlags is 1 for sampled.
	TraceID         [16]byte
	SpanID          [8]byte
	LocalRootSpanID [8]byte
	TraceFlags      byte
	// Start is when the span says that it was started.
	Start time.Time
	// Goroutine is the id of the goroutine that has started the span, and G the address
	// of that goroutine's g. Each is 0 where it is not known.
	Goroutine, G uint64
	// Name is the span's name, and Endpoint that of its local root, if the process publishes
	// names; at most 255 bytes, which should be UTF-8.
	Name, Endpoint string

	names spanNames
}

// decode returns what a cell says.
func (t *SpanTable) decode(data []byte) (s LiveSpan) {
	binary.BigEndian.PutUint64(s.TraceID[:8], t.u64(data, cellTraceIDHigh))
	binary.BigEndian.PutUint64(s.TraceID[8:], t.u64(data, cellTraceIDLow))
	binary.BigEndian.PutUint64(s.SpanID[:], t.u64(data, cellSpanID))
	binary.BigEndian.PutUint64(s.LocalRootSpanID[:], t.u64(data, cellLocalRoot))
	s.TraceFlags = data[t.offsets[cellTraceFlags]]
	s.Start = time.Unix(0, int64(t.u64(data, cellStart)))
	s.Goroutine, s.G = t.u64(data, cellGoid), t.u64(data, cellG)
	s.names.name = binary.NativeEndian.Uint16(data[t.offsets[cellName]:])
	s.names.endpoint = binary.NativeEndian.Uint16(data[t.offsets[cellEndpoint]:])
	return s
}

// Spans returns the live spans of the process, the oldest first: also those of goroutines
// that wait, and of a process that is stopped. Each is as it was at one moment; spans that
// start or end meanwhile may be there or not. [Process.SpanBatches] is cheaper.
//
// The error wraps [ErrNoThreadContext] if the process does not advertise its live spans, or
// [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy], or is ctx's.
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

// SpanBatches yields the live spans of the process in no particular order, some hundreds at a time,
// each batch right after it has been read: for callers that look at the goroutines of spans before
// those have moved on. Each span is yielded at most once. A batch is valid until the next one. The
// sequence ends after an error, which is one of those of [Process.Spans].
func (p *Process) SpanBatches(ctx context.Context) iter.Seq2[[]LiveSpan, error] {
	return func(yield func([]LiveSpan, error) bool) {
		v, err := p.threadView(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		if v.spans == nil {
			yield(nil, p.error(fmt.Errorf("%w: live spans are not advertised", ErrNoThreadContext)))
			return
		}
		name := p.nameSpans(v)
		for spans, err := range v.spans.batches(p.threads.source) {
			if errors.Is(err, errNoSpanTable) {
				err = fmt.Errorf("%w: %w", ErrNoThreadContext, err) // it was closed meanwhile
			}
			if err != nil {
				yield(nil, p.classify(err))
				return
			}
			for i := range spans {
				s := &spans[i]
				s.Name, s.Endpoint = name(s.names)
			}
			// Memory is read by the id: as long as the process lives it was this one's.
			if err := p.checkAlive(); err != nil {
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

// batches yields the live spans of 512 cells at a time, without their names, and at least one batch. The
// error is the memory's, or wraps [errNoSpanTable].
func (t *SpanTable) batches(memory ringbuf.Memory) iter.Seq2[[]LiveSpan, error] {
	return func(yield func([]LiveSpan, error) bool) {
		used, err := t.used(memory)
		if err != nil {
			yield(nil, err)
			return
		}
		const batch = 512
		before, cells, after := make([]byte, batch*t.CellSize), make([]byte, batch*t.CellSize), make([]byte, batch*t.CellSize)
		spans := make([]LiveSpan, 0, batch)
		for first := 0; first < max(used, 1); first += batch {
			address := t.Address + uint64(t.HeaderSize) + uint64(first*t.CellSize)
			size := min(batch, used-first) * t.CellSize
			// Nothing says in which order the bytes of a part are read. So the cells are read
			// three times. A version that is there before and after was there all the while,
			// because versions do not come back.
			if _, err := memory.ReadParts([]ringbuf.Part{
				{Address: address, Data: before[:size]}, {Address: address, Data: cells[:size]}, {Address: address, Data: after[:size]},
			}); err != nil {
				yield(nil, err)
				return
			}
			spans = spans[:0]
			for at := 0; at < size; at += t.CellSize {
				version := t.u64(before[at:], cellVersion)
				if version != 0 && version&wire.CellOver == 0 && t.u64(after[at:], cellVersion) == version {
					spans = append(spans, t.decode(cells[at:]))
				}
			}
			if !yield(spans, nil) {
				return
			}
		}
	}
}

// live returns the live spans, without their names. The error is that of batches.
func (t *SpanTable) live(memory ringbuf.Memory) (spans []LiveSpan, err error) {
	for batch, err := range t.batches(memory) {
		if err != nil {
			return nil, err
		}
		spans = append(spans, batch...)
	}
	return spans, nil
}
