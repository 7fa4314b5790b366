// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanpath

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/spantable"
)

// liveRecords holds the records of live spans by cell, because cells are outside the heap and cannot
// hold pointers.
//
// The pointers are in chunks, which are allocated when their first cell is used, so that the
// garbage collector scans only as many pointers as there have been live spans at the same time.
type liveRecords [spantable.Capacity / chunkSize]atomic.Pointer[chunk]

const (
	chunkBits = 8
	chunkSize = 1 << chunkBits
)

type chunk [chunkSize]gorecord.Pointer

// pointer returns the pointer to the record of a span. It scatters neighboring cells to avoid false
// sharing between CPUs.
func (c *chunk) pointer(r spantable.Ref) *gorecord.Pointer {
	const lineBits = 3 // a cache line has eight pointers
	i := r.Index()
	return &c[(i<<lineBits|i>>(chunkBits-lineBits)%(1<<lineBits))%chunkSize]
}

func (l *liveRecords) chunk(r spantable.Ref) *atomic.Pointer[chunk] {
	return &l[r.Index()>>chunkBits%uint32(len(l))]
}

// hasRoom reports whether put may be called for a span.
func (l *liveRecords) hasRoom(r spantable.Ref) bool { return l.chunk(r).Load() != nil }

// makeRoom makes hasRoom true. It allocates, so the caller must not be pinned.
func (l *liveRecords) makeRoom(r spantable.Ref) { l.chunk(r).CompareAndSwap(nil, new(chunk)) }

// put stores the record of a span that is about to become live, for which there must be room. It may be
// called while pinned.
func (l *liveRecords) put(r spantable.Ref, record *gorecord.Record) {
	l.chunk(r).Load().pointer(r).Store(record)
}

// get returns the record of a span, or nil.
func (l *liveRecords) get(r spantable.Ref) *gorecord.Record {
	if r != 0 {
		if c := l.chunk(r).Load(); c != nil {
			if record := c.pointer(r).Load(); record.Ref() == r {
				return record
			}
		}
	}
	return nil
}

// drop removes the record of an ended span, so that it can be garbage collected.
func (l *liveRecords) drop(r spantable.Ref) {
	if c := l.chunk(r).Load(); c != nil {
		if pointer := c.pointer(r); pointer.Load() != nil {
			pointer.Store(nil)
		}
	}
}

// endAll ends and removes all records. withdraw is as for [gorecord.Record.End].
func (l *liveRecords) endAll(withdraw bool) {
	for i := range l {
		if c := l[i].Load(); c != nil {
			for j := range c {
				c[j].Load().End(withdraw)
				c[j].Store(nil)
			}
		}
	}
}
