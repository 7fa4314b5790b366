// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// hasRecords reports whether the process publishes goroutine records with references to spans.
func (v *threadView) hasRecords() bool {
	return v.record.Offset > 0 && v.record.Ref > 0 && v.runtime.GLabels != 0
}

// record is what the memory behind a goroutine's labels says about the goroutine's span.
type record struct {
	labels uint64
	// ref is the span, or 0 if there is no record.
	ref SpanRef
	// ended is the lineage of the span if the record says that the span has ended. Otherwise it is
	// nil.
	ended *lineage
}

// recorded returns the active spans of goroutines according to the records behind their label
// pointers, by the same rules as [threadReader]. A span is unknown if there is no record. The error
// comes from memory.
func (v *threadView) recorded(memory remotemem.Reader, refs []GoroutineRef, labels []uint64) ([]goroutineSpan, error) {
	records, err := v.readRecords(memory, labels)
	if err != nil {
		return nil, err
	}
	spans := make([]goroutineSpan, 0, len(refs))
	for i, label := range labels {
		if r := records[label]; r.ref != 0 {
			spans = append(spans, goroutineSpan{goid: refs[i].ID, span: r.ref, ended: r.ended})
		}
	}
	if err := v.spans.resolve(memory, spans); err != nil {
		if !errors.Is(err, errNoSpanTable) {
			return nil, err
		}
		spans = spans[:0]
	}
	all := make([]goroutineSpan, len(refs))
	for i, label := range labels {
		if records[label].ref != 0 && len(spans) > 0 {
			all[i], spans = spans[0], spans[1:]
		}
	}
	return all, nil
}

// readRecords reads the records behind label pointers. The result contains those that are genuine:
// the labels in front of a record have the ids of its span, and the record does not change while
// they are read.
func (v *threadView) readRecords(memory remotemem.Reader, labels []uint64) (map[uint64]record, error) {
	type reading struct {
		record

		before, after []byte
		ids           recordIDs
	}
	size := v.record.Offset + wire.ThreadContextRecordSize
	if v.record.Ancestors > 0 {
		size = max(size, v.record.Ancestors+8*wire.Ancestors+8)
	}
	seen := make(map[uint64]bool, len(labels))
	var readings []reading
	var parts []remotemem.Part
	for _, label := range labels {
		if !seen[label] && validPointer(label) {
			seen[label] = true
			readings = append(readings, reading{record: record{labels: label}, before: make([]byte, max(size, v.record.Ref+8))})
			parts = append(parts, remotemem.Part{Address: label, Data: readings[len(readings)-1].before})
		}
	}
	if err := readEach(memory, parts); err != nil {
		return nil, err
	}
	valid := readings[:0]
	parts = parts[:0]
	for _, r := range readings {
		if !v.decodeRecord(&r.record, r.before) || !r.ids.wantList(r.before) {
			continue
		}
		copy(r.ids.trace[:], r.before[v.record.Offset:])
		copy(r.ids.span[:], r.before[v.record.Offset+len(r.ids.trace):])
		parts = append(parts, r.ids.list)
		valid = append(valid, r)
	}
	if err := readEach(memory, parts); err != nil {
		return nil, err
	}
	parts = parts[:0]
	for i := range valid {
		parts = append(parts, valid[i].ids.wantValues()...)
	}
	for i := range valid {
		r := &valid[i]
		r.after = make([]byte, len(r.before))
		parts = append(parts, remotemem.Part{Address: r.labels, Data: r.after})
	}
	if err := readEach(memory, parts); err != nil {
		return nil, err
	}
	found := make(map[uint64]record, len(valid))
	for i := range valid {
		if r := &valid[i]; r.ids.match() && bytes.Equal(r.before, r.after) {
			found[r.labels] = r.record
		}
	}
	return found, nil
}

// decodeRecord decodes the memory behind a label pointer. It returns false if there is no record.
func (v *threadView) decodeRecord(r *record, data []byte) bool {
	const flag, count = 24, 26 // offsets of Valid and AttrsDataSize
	b := data[v.record.Offset:]
	if binary.NativeEndian.Uint16(b[count:]) > wire.MaxThreadContextRecord-wire.ThreadContextRecordSize {
		return false
	}
	switch {
	case b[flag] == 0 && v.record.Ancestors > 0:
		dispatcher := binary.NativeEndian.Uint64(data[v.record.Ancestors+8*wire.Ancestors:])
		r.ended = &lineage{starter: dispatcher, dispatched: dispatcher != 0, ancestors: decodeAncestors(data[v.record.Ancestors:])}
	case b[flag] != 1:
		return false
	}
	r.ref = SpanRef(binary.NativeEndian.Uint64(data[v.record.Ref:]))
	return r.ref != 0
}

// recordIDs compares the labels in front of a record with the ids of the record's span: see
// [threadReader.labelsHaveIDs].
type recordIDs struct {
	trace  [16]byte
	span   [8]byte
	list   remotemem.Part // the labels
	values []remotemem.Part
}

// wantList sets list. head is the memory behind the label pointer. wantList returns false if there
// are no labels.
func (r *recordIDs) wantList(head []byte) bool {
	list, n := binary.NativeEndian.Uint64(head), binary.NativeEndian.Uint64(head[16:])
	if !validPointer(list) || n == 0 || n > maxLabels {
		return false
	}
	r.list = remotemem.Part{Address: list, Data: make([]byte, n*labelSize)}
	return true
}

// wantValues returns the parts with the values that may be ids.
func (r *recordIDs) wantValues() []remotemem.Part {
	for labels := r.list.Data; len(labels) > 0; labels = labels[labelSize:] {
		value, size := binary.NativeEndian.Uint64(labels[16:]), binary.NativeEndian.Uint64(labels[24:])
		if (size == traceDigits || size == spanDigits) && value != 0 && value < addressEnd {
			r.values = append(r.values, remotemem.Part{Address: value, Data: make([]byte, size)})
		}
	}
	return r.values
}

// match reports whether the values contain the ids.
func (r *recordIDs) match() bool {
	if r.trace == [16]byte{} || r.span == [8]byte{} {
		return false
	}
	var hasTrace, hasSpan bool
	for _, v := range r.values {
		hasTrace = hasTrace || string(v.Data) == hex.EncodeToString(r.trace[:])
		hasSpan = hasSpan || string(v.Data) == hex.EncodeToString(r.span[:])
	}
	return hasTrace && hasSpan
}

// readInherited sets the spans of goroutines that have no entry in the goroutine table, but labels
// with a record. They have inherited these from the goroutine that started them, or their entry now
// belongs to another goroutine. Goroutines that do have an entry are left out, even if its span has ended
// and the cell was reused: by now, their record may be that of their next span, to which the state and the
// stack that were read do not belong.
func (c *goroutineCall) readInherited(v *threadView) error {
	if !c.labels || v.spans == nil {
		return nil
	}
	var found []*Goroutine
	var refs []GoroutineRef
	var labels []uint64
	for i := range c.result.Goroutines {
		if g := &c.result.Goroutines[i]; !g.SpanKnown && g.LastPublished == 0 && validPointer(g.labels) {
			found, refs, labels = append(found, g), append(refs, g.GoroutineRef), append(labels, g.labels)
		}
	}
	if len(found) == 0 {
		return nil
	}
	spans, err := v.recorded(c.memory, refs, labels)
	if err != nil {
		return err
	}
	// The labels must still be those of the goroutine, so that the record was not freed meanwhile.
	parts := make([]remotemem.Part, 0, 2*len(found))
	for _, g := range found {
		parts = append(parts,
			remotemem.Part{Address: g.G + uint64(v.runtime.GLabels), Data: make([]byte, 8)},
			remotemem.Part{Address: g.G + uint64(v.runtime.GGoid), Data: make([]byte, 8)})
	}
	if err := readEach(c.memory, parts); err != nil {
		return err
	}
	for i, g := range found {
		same := binary.NativeEndian.Uint64(parts[2*i].Data) == g.labels && binary.NativeEndian.Uint64(parts[2*i+1].Data) == g.ID
		if spans[i].known && same {
			g.Span, g.SpanKnown = spans[i].span, true
		}
	}
	return nil
}
