// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
)

// liveSpanData holds heap pointers for live spans, because cells are outside the heap and cannot
// hold pointers. Both slices are indexed by dataIndex. With goroutine records, liveSpanData holds
// each span's record, otherwise the attributes that the span was started with.
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

// dataIndex returns the index of a span in records or attributes. It scatters neighboring cells to
// avoid false sharing between CPUs.
func dataIndex(r cells.Ref) uint32 { return r.Index() * 0x9E3779B1 % cells.Capacity }

// set stores the record or attributes of a span that is about to become live. It may be called while
// pinned.
func (d *liveSpanData) set(r cells.Ref, record *gorecord.Record, a *gorecord.Attributes) {
	if record != nil {
		d.records[dataIndex(r)].Store(record)
	} else {
		d.attributes[dataIndex(r)].Store(a)
	}
}

// record returns the record of a span, or nil.
func (d *liveSpanData) record(r cells.Ref) *gorecord.Record {
	if d.records != nil {
		if record := d.records[dataIndex(r)].Load(); record.Ref() == r && r != 0 {
			return record
		}
	}
	return nil
}

// attributesOf returns the attributes that a span was started with, encoded as in OTEP 4947.
func (d *liveSpanData) attributesOf(r cells.Ref) []byte {
	if d.attributes != nil {
		return d.attributes[dataIndex(r)].Load().Encoded()
	}
	return d.record(r).Attributes()
}

// drop removes the data of an ended span, so that it can be garbage collected.
func (d *liveSpanData) drop(r cells.Ref) {
	if d.attributes == nil {
		d.records[dataIndex(r)].Store(nil)
	} else if a := &d.attributes[dataIndex(r)]; a.Load() != nil {
		a.Store(nil)
	}
}
