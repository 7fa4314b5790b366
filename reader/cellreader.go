// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// cellReader reads the cells of wanted spans, many at a time. A span is looked up first, which makes
// its cell wanted, and again after the next call of read.
type cellReader struct {
	*cellScratch

	table  *spanTable
	memory remotemem.Reader
	used   int
	// first is the generation of the first read.
	first uint64
}

// foundCell is the result of reading a cell.
type foundCell struct {
	// generation is the number of the read. Older results are of other readers.
	generation uint64
	// ref is the span in the cell, or 0 if the cell has never been used or was changing.
	ref  SpanRef
	live bool
	lineage
}

// newCellReader returns a reader of the table's cells. Release it after use. The error wraps
// [errNoSpanTable] or comes from memory.
func (t *spanTable) newCellReader(memory remotemem.Reader) (*cellReader, error) {
	used, err := t.used(memory)
	if err != nil {
		return nil, err
	}
	scratch, _ := cellScratches.Get().(*cellScratch)
	scratch.found, scratch.wanted = sized(scratch.found, used), sized(scratch.wanted, used)
	clear(scratch.wanted)
	return &cellReader{scratch, t, memory, used, scratch.generation + 1}, nil
}

func (r *cellReader) release() { cellScratches.Put(r.cellScratch) }

// index returns the index of a span's cell, or false if there is no such cell.
func (r *cellReader) index(ref SpanRef) (int, bool) {
	i := int(wire.RefIndex(uint64(ref)))
	return i, ref != 0 && ref&wire.CellOver == 0 && i < r.used
}

// want makes the cell of a span wanted.
func (r *cellReader) want(ref SpanRef) {
	if i, ok := r.index(ref); ok {
		r.wanted[i] = true
	}
}

// lookup returns the result for a span, if its cell was read by the read since or a later one.
func (r *cellReader) lookup(ref SpanRef, since uint64) (*foundCell, liveness) {
	i, ok := r.index(ref)
	if !ok {
		return nil, replaced
	}
	switch f := &r.found[i]; {
	case f.generation < since:
		r.wanted[i] = true
		return nil, unread
	case f.ref != ref:
		return nil, replaced
	case f.live:
		return f, live
	default:
		return f, ended
	}
}

// published implements [spanLookup].
func (r *cellReader) published(ref SpanRef) (lineage, liveness) {
	f, state := r.lookup(ref, r.first)
	if f == nil {
		return lineage{}, state
	}
	return f.lineage, state
}

// ancestor implements [spanLookup]. Published spans are read first, and ancestors after them.
func (r *cellReader) ancestor(ref SpanRef) liveness {
	_, state := r.lookup(ref, r.first+1)
	return state
}

// read reads the wanted cells.
func (r *cellReader) read() error {
	r.generation++
	return r.eachWanted(func(index int, cell []byte) {
		f := foundCell{generation: r.generation}
		if cell != nil {
			version := r.table.u64(cell, cellVersion)
			f.ref, f.live, f.lineage = SpanRef(version&^wire.CellOver), version&wire.CellOver == 0, r.table.lineage(cell)
		}
		r.found[index] = f
	})
}

// eachWanted reads the wanted cells, and a few cells that lie between them. It calls do for each
// wanted cell, with nil if the cell has never been used or was changing.
func (r *cellReader) eachWanted(do func(index int, cell []byte)) error {
	const maxGap = 8 // reading a few unwanted cells is cheaper than another system call
	for first := 0; first < r.used; first++ {
		if !r.wanted[first] {
			continue
		}
		last := first
		for i := first + 1; i < min(r.used, first+cellBatch) && i-last <= maxGap; i++ {
			if r.wanted[i] {
				last = i
			}
		}
		cells, err := r.table.read(r.memory, r.cellScratch, first, last+1-first)
		if err != nil {
			return err
		}
		for i, cell := range cells {
			if r.wanted[first+i] {
				r.wanted[first+i] = false
				do(first+i, cell)
			}
		}
		first = last
	}
	return nil
}

// goroutineSpan is the span that a goroutine published last. [spanTable.resolve] replaces it with the
// goroutine's active span.
type goroutineSpan struct {
	goid uint64
	// span is the published span at first, and the active span after resolve. 0 means that the
	// goroutine is in no span.
	span SpanRef
	// ended is the lineage of the published span if it is known that the span has ended. Otherwise it
	// is nil, and the span's cell decides.
	ended *lineage
	// known is set by resolve. It is false if the active span is unknown, because the cell of the
	// published span has been reused or was changing.
	known bool
	// starter is set by resolve. It is the id of the goroutine that started the active span.
	starter uint64
}

// resolve replaces each published span with the goroutine's active span. The error wraps
// [errNoSpanTable] or comes from memory.
func (t *spanTable) resolve(memory remotemem.Reader, goroutineSpans []goroutineSpan) error {
	cells, err := t.newCellReader(memory)
	if err != nil {
		return err
	}
	defer cells.release()
	for reads := 0; ; reads++ { // published spans are read first, then ancestors of those that have ended
		allSettled := true
		for i := range goroutineSpans {
			_, _, settled := goroutineSpans[i].active(cells)
			allSettled = allSettled && settled
		}
		if allSettled {
			break
		}
		if err := cells.read(); err != nil {
			return err
		}
	}
	for i := range goroutineSpans {
		p := &goroutineSpans[i]
		p.span, p.known, _ = p.active(cells)
		if f, _ := cells.lookup(p.span, cells.first); f != nil {
			p.starter = f.starter
		}
	}
	return nil
}

// active returns the goroutine's active span: see [activeSpan].
func (p *goroutineSpan) active(cells *cellReader) (active SpanRef, known, settled bool) {
	if p.ended == nil {
		return activeSpan(cells, p.span, p.goid)
	}
	active, settled = p.ended.next(cells, p.goid)
	return active, true, settled
}
