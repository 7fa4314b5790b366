// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// noField is the offset of fields that a slot does not have.
const noField = 1024

// newLayout returns the BPF program's description of a process. layout may be nil.
//
// If spans can be proven, only provable carriers are read: a thread slot that cannot be checked could only
// add wrong spans. Package reader has checked the carriers against the bounds that the BPF program assumes.
// If chosen is not 0, only carriers of that kind are read.
func newLayout(image Image, layout *reader.ThreadLayout, chosen Carrier) programLayout {
	l := programLayout{Image: programImage{Start: image.start, Execs: image.execs, Pid: uint32(image.PID)}}
	if layout == nil {
		return l
	}
	if chosen == Labels {
		if labelsError(layout) == nil {
			l.setRuntime(&layout.Runtime)
			l.add(programFeatureHAS_LABELS)
			l.G_labels = uint32(layout.Runtime.GLabels)
		}
		return l
	}
	provable := false
	for _, c := range layout.Carriers {
		provable = provable || chosen.includes(c.Kind) && c.Err == nil && c.Provable
	}
	if provable {
		l.setRuntime(&layout.Runtime)
	}
	l.setSpans(layout.Spans)
	for _, c := range layout.Carriers {
		if !chosen.includes(c.Kind) || c.Err != nil || c.Provable != provable {
			continue
		}
		switch c.Kind {
		case reader.ThreadSlots:
			l.add(programFeatureHAS_THREAD_SLOTS)
			if provable {
				l.add(programFeatureHAS_OWNERS)
			}
			l.Threads = newRing(&c.Table)
		case reader.GoroutineTable:
			if c.Table.EntrySize != wire.GoroutineEntrySize {
				continue
			}
			l.add(programFeatureHAS_GOROUTINE_TABLE)
			l.Entries = c.Table.Address + uint64(c.Table.HeaderSize)
		case reader.GoroutineRecord:
			l.G_labels = uint32(layout.Runtime.GLabels)
			l.setRecord(&c.Record)
		}
	}
	return l
}

func (l *programLayout) setRecord(r *reader.RecordLayout) {
	for _, f := range []struct {
		feature programFeature
		offset  int
		to      *uint32
	}{
		{programFeatureHAS_RECORD, r.Offset, &l.RecordOffset},
		{programFeatureHAS_NAMES, r.Names, &l.NamesOffset},
		{programFeatureHAS_REF, r.Ref, &l.RefOffset},
		{programFeatureHAS_ANCESTORS, r.Ancestors, &l.AncestorsOffset},
	} {
		if f.offset > 0 {
			l.add(f.feature)
			*f.to = uint32(f.offset)
		}
	}
}

// cellSize is the number of bytes that the BPF program reads from a cell.
const cellSize = 128

// setSpans describes the table of live spans, which may be nil. If the BPF program cannot read a table with
// this layout, setSpans does not add programFeatureHAS_SPANS.
func (l *programLayout) setSpans(t *reader.Table) {
	if t == nil || t.EntrySize < cellSize {
		return
	}
	within := true
	field := func(name string, size int) uint16 {
		offset := t.Fields[name]
		within = within && offset%size == 0 && offset <= cellSize-size
		return uint16(offset)
	}
	l.Spans = programSpans{
		Cells: t.Address + uint64(t.HeaderSize), Capacity: uint32(t.Capacity), CellSize: uint32(t.EntrySize),
		Version: field("version", 8), TraceIdHigh: field("trace_id_high", 8), TraceIdLow: field("trace_id_low", 8),
		SpanId: field("span_id", 8), LocalRootSpanId: field("local_root_span_id", 8), Goid: field("goid", 8),
		Ancestors: field("ancestors", 8), TraceFlags: field("trace_flags", 1), Outside: field("dispatched", 1), Tid: field("tid", 4),
		Name: field("name", 2), Endpoint: field("endpoint", 2),
	}
	if !within || int(l.Spans.Ancestors) > cellSize-8*wire.Ancestors {
		return
	}
	l.add(programFeatureHAS_SPANS)
}

func (l *programLayout) add(f programFeature) { l.Has |= uint32(f) }

// setRuntime stores the offsets for finding the running goroutine.
func (l *programLayout) setRuntime(o *reader.RuntimeOffsets) {
	l.add(programFeatureHAS_GOROUTINE)
	l.M_curg, l.G_goid = uint32(o.MCurg), uint32(o.GGoid)
	if o.TLSG != 0 {
		l.add(programFeatureHAS_TLS_G)
		l.TlsG = o.TLSG
	}
	if o.GM != 0 {
		l.add(programFeatureHAS_G_M)
		l.G_m = uint32(o.GM)
	}
	if o.MProcid != 0 {
		l.add(programFeatureHAS_M_PROCID)
		l.M_procid = uint32(o.MProcid)
	}
}

func newRing(t *reader.Table) programRing {
	end := 0
	for _, f := range wire.SlotFields(wire.RingLayout2) {
		if offset, ok := t.Fields[f.Name]; ok && f.Size > 0 {
			end = max(end, offset+int(f.Size))
		}
	}
	field := func(name string) uint16 {
		if offset, ok := t.Fields[name]; ok {
			return uint16(offset)
		}
		return noField
	}
	return programRing{
		Slots:       t.Address + uint64(t.HeaderSize),
		Capacity:    uint32(t.Capacity),
		SlotSize:    uint32(t.EntrySize),
		FieldsSize:  uint32(end),
		TraceIdHigh: field("trace_id_high"),
		TraceIdLow:  field("trace_id_low"),
		SpanId:      field("span_id"),
		InUse:       field("in_use"),
		TraceFlags:  field("trace_flags"),
		AttrsSize:   field("attrs_size"),
		Seq:         field("seq"),
		OwnerGoid:   field("owner_goid"),
		SpanRef:     field("span_ref"),
		M:           field("m"),
		Tid:         field("tid"),
		Attrs:       field("attrs"),
	}
}
