// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
)

// liveSpanData has what belongs to a live span and is on the heap, so that it cannot be in the
// span's cell. It is found by the number of the cell. With records it is the record. Without them it
// is the attributes that the span was started with.
type liveSpanData struct {
	records    []gorecord.Pointer
	attributes []atomic.Pointer[gorecord.Attributes]
}

func newLiveSpanData(records bool) liveSpanData {
	if records {
		return liveSpanData{records: make([]gorecord.Pointer, cells.Capacity)}
	}
	return liveSpanData{attributes: make([]atomic.Pointer[gorecord.Attributes], cells.Capacity)}
}

// place returns where in both is what belongs to a span. Cells that follow one another are
// not beside each other here, or processors that use them would pass a cache line back and forth.
func place(r cells.Ref) uint32 { return r.Index() * 0x9E3779B1 % cells.Capacity }

// set stores what belongs to a span that is about to be live. It may be called while pinned.
func (d *liveSpanData) set(r cells.Ref, record *gorecord.Record, a *gorecord.Attributes) {
	if record != nil {
		d.records[place(r)].Store(record)
	} else {
		d.attributes[place(r)].Store(a)
	}
}

// record returns the record of a span, or nil.
func (d *liveSpanData) record(r cells.Ref) *gorecord.Record {
	if d.records != nil {
		if record := d.records[place(r)].Load(); record.Ref() == r && r != 0 {
			return record
		}
	}
	return nil
}

// attributesOf returns the attributes that a span was started with, encoded as in OTEP 4947.
func (d *liveSpanData) attributesOf(r cells.Ref) []byte {
	if d.attributes != nil {
		return d.attributes[place(r)].Load().Encoded()
	}
	return d.record(r).Attributes()
}

// drop forgets what belongs to a span that has ended, so that it can be collected.
func (d *liveSpanData) drop(r cells.Ref) {
	if d.attributes == nil {
		d.records[place(r)].Store(nil)
	} else if a := &d.attributes[place(r)]; a.Load() != nil {
		a.Store(nil)
	}
}
