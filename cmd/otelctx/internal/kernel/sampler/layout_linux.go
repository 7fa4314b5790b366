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
			l.Threads = newRing(&c)
		case reader.GoroutineTable:
			if layout.Goroutines.EntrySize != wire.GoroutineEntrySize {
				continue
			}
			l.add(programFeatureHAS_GOROUTINE_TABLE)
			l.Entries = layout.Goroutines.Address + uint64(layout.Goroutines.HeaderSize)
		case reader.GoroutineRecord:
			l.add(programFeatureHAS_RECORD)
			l.G_labels, l.RecordOffset = uint32(layout.Runtime.GLabels), uint32(c.RecordOffset)
			if layout.NamesOffset > 0 {
				l.add(programFeatureHAS_NAMES)
				l.NamesOffset = uint32(layout.NamesOffset)
			}
		}
	}
	l.setSpans(layout)
	return l
}

// cellSize is the number of bytes that the BPF program reads from a cell.
const cellSize = 128

// setSpans describes the table of live spans. If the BPF program cannot read a table with this layout,
// setSpans does not add programFeatureHAS_SPANS.
func (l *programLayout) setSpans(layout *reader.ThreadLayout) {
	t := layout.Spans
	if t == nil || t.CellSize < cellSize {
		return
	}
	within := true
	field := func(name string, size int) uint16 {
		offset := t.Fields[name]
		within = within && offset%size == 0 && offset <= cellSize-size
		return uint16(offset)
	}
	l.Spans = programSpans{
		Cells: t.Address + uint64(t.HeaderSize), Capacity: uint32(t.Capacity), CellSize: uint32(t.CellSize),
		Version: field("version", 8), TraceIdHigh: field("trace_id_high", 8), TraceIdLow: field("trace_id_low", 8),
		SpanId: field("span_id", 8), LocalRootSpanId: field("local_root_span_id", 8), Goid: field("goid", 8),
		Ancestors: field("ancestors", 8), TraceFlags: field("trace_flags", 1), Outside: field("outside", 1), Tid: field("tid", 4),
		Name: field("name", 2), Endpoint: field("endpoint", 2),
	}
	if !within || int(l.Spans.Ancestors) > cellSize-8*wire.Ancestors {
		return
	}
	l.add(programFeatureHAS_SPANS)
	if layout.RefOffset >= 0 {
		l.add(programFeatureHAS_REF)
		l.RefOffset = uint32(layout.RefOffset)
	}
	if layout.AncestorsOffset >= 0 {
		l.add(programFeatureHAS_ANCESTORS)
		l.AncestorsOffset = uint32(layout.AncestorsOffset)
	}
}

func (l *programLayout) add(f programFeature) { l.Has |= uint32(f) }

// setRuntime stores the offsets for finding the running goroutine.
func (l *programLayout) setRuntime(o *reader.RuntimeOffsets) {
	l.add(programFeatureHAS_GOROUTINE)
	l.M_curg, l.G_goid = uint32(o.MCurg), uint32(o.GGoid)
	if o.TLSGKnown {
		l.add(programFeatureHAS_TLS_G)
		l.TlsG = o.TLSG
	}
	if o.GM >= 0 {
		l.add(programFeatureHAS_G_M)
		l.G_m = uint32(o.GM)
	}
	if o.MProcid >= 0 {
		l.add(programFeatureHAS_M_PROCID)
		l.M_procid = uint32(o.MProcid)
	}
}

func newRing(c *reader.Carrier) programRing {
	end := 0
	for _, f := range wire.SlotFields(wire.RingLayout2) {
		if offset, ok := c.Fields[f.Name]; ok && f.Size > 0 {
			end = max(end, offset+int(f.Size))
		}
	}
	field := func(name string) uint16 {
		if offset, ok := c.Fields[name]; ok {
			return uint16(offset)
		}
		return noField
	}
	return programRing{
		Slots:       c.Ring.Address + uint64(c.Ring.HeaderSize),
		Capacity:    uint32(c.Ring.Capacity),
		SlotSize:    uint32(c.Ring.SlotSize),
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
