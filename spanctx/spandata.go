// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/ordered"
)

// liveSpanData holds a heap pointer for each live span, because cells are outside the heap and cannot
// hold pointers: to the span's record or, if records are off, to the attributes that the span was
// started with.
//
// The pointers are in chunks, which are allocated when their first cell is used. So the garbage
// collector scans only as many pointers as there have been live spans at the same time.
type liveSpanData struct {
	records bool
	chunks  [cells.Capacity / chunkSize]atomic.Pointer[chunk]
}

const (
	chunkBits = 8
	chunkSize = 1 << chunkBits
)

type chunk [chunkSize]unsafe.Pointer

// entry returns the entry of a span. It scatters neighboring cells to avoid false sharing between
// CPUs.
func (c *chunk) entry(r cells.Ref) *unsafe.Pointer {
	const lineBits = 3 // a cache line has eight pointers
	i := r.Index()
	return &c[(i<<lineBits|i>>(chunkBits-lineBits)%(1<<lineBits))%chunkSize]
}

func (d *liveSpanData) chunk(r cells.Ref) *atomic.Pointer[chunk] {
	return &d.chunks[r.Index()>>chunkBits%uint32(len(d.chunks))]
}

// hasRoom reports whether put may be called for a span.
func (d *liveSpanData) hasRoom(r cells.Ref) bool { return d.chunk(r).Load() != nil }

// makeRoom makes hasRoom true. It allocates, so the caller must not be pinned.
func (d *liveSpanData) makeRoom(r cells.Ref) { d.chunk(r).CompareAndSwap(nil, new(chunk)) }

// put stores the record or the attributes of a span that is about to become live, for which there must
// be room. It may be called while pinned.
func (d *liveSpanData) put(r cells.Ref, record *gorecord.Record, a *gorecord.Attributes) {
	p := unsafe.Pointer(a)
	if d.records {
		p = unsafe.Pointer(record)
	}
	ordered.PutPointer(d.chunk(r).Load().entry(r), p)
}

func (d *liveSpanData) get(r cells.Ref) unsafe.Pointer {
	if c := d.chunk(r).Load(); c != nil {
		return atomic.LoadPointer(c.entry(r))
	}
	return nil
}

// record returns the record of a span, or nil.
func (d *liveSpanData) record(r cells.Ref) *gorecord.Record {
	if d.records && r != 0 {
		// Sound: if records are on, put stores only records.
		if record := (*gorecord.Record)(d.get(r)); record.Ref() == r {
			return record
		}
	}
	return nil
}

// attributesOf returns the attributes that a span was started with, encoded as in OTEP 4947.
func (d *liveSpanData) attributesOf(r cells.Ref) []byte {
	if d.records {
		return d.record(r).Attributes()
	}
	// Sound: if records are off, put stores only attributes.
	return (*gorecord.Attributes)(d.get(r)).Encoded()
}

// drop removes the data of an ended span, so that it can be garbage collected.
func (d *liveSpanData) drop(r cells.Ref) {
	if c := d.chunk(r).Load(); c != nil {
		if entry := c.entry(r); atomic.LoadPointer(entry) != nil {
			ordered.PutPointer(entry, nil)
		}
	}
}
