// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// resolveSpans replaces the span that each goroutine published last with its active span. If the
// published span has ended, this is its nearest live ancestor, or 0 if there is none.
func (c *goroutineCall) resolveSpans(v *threadView) error {
	if c.entries == nil {
		return nil
	}
	goroutines := c.result.Goroutines
	goroutineSpans := make([]goroutineSpan, 0, len(goroutines))
	for i := range goroutines {
		if goroutines[i].SpanKnown {
			goroutineSpans = append(goroutineSpans, goroutineSpan{goid: goroutines[i].ID, span: goroutines[i].Span})
		}
	}
	err := v.spans.resolve(c.memory, goroutineSpans)
	if err != nil && !errors.Is(err, errNoSpanTable) {
		return err
	}
	for i := range goroutines {
		if g := &goroutines[i]; g.SpanKnown {
			g.Span, g.SpanKnown = goroutineSpans[0].span, goroutineSpans[0].known && err == nil
			goroutineSpans = goroutineSpans[1:]
		}
	}
	return nil
}

// readAttributes reads the attributes of active spans from goroutine records. It uses a record only
// if the record refers to the goroutine's active span and the goroutine's label pointer still leads
// to the record.
func (c *goroutineCall) readAttributes(v *threadView) error {
	if !c.labels || !c.options.Attributes {
		return nil
	}
	type reading struct {
		g                  *Goroutine
		head, record, twin []byte
		labels             [8]byte
	}
	var readings []reading
	var parts []remotemem.Part
	for i := range c.result.Goroutines {
		if g := &c.result.Goroutines[i]; g.SpanKnown && g.Span != 0 && validPointer(g.labels) {
			head := make([]byte, v.record.Offset+wire.ThreadContextRecordSize)
			readings = append(readings, reading{g: g, head: head})
			parts = append(parts, remotemem.Part{Address: g.labels, Data: head})
		}
	}
	if err := readEach(c.memory, parts); err != nil {
		return err
	}
	parts = parts[:0]
	valid := readings[:0]
	for _, r := range readings {
		const flag, count = 24, 26 // offsets of Valid and AttrsDataSize
		record := r.head[v.record.Offset:]
		size := int(binary.NativeEndian.Uint16(record[count:]))
		if record[flag] == 1 && size > 0 && size <= wire.MaxThreadContextRecord-wire.ThreadContextRecordSize &&
			SpanRef(binary.NativeEndian.Uint64(r.head[v.record.Ref:])) == r.g.Span {
			r.record, r.twin = make([]byte, len(r.head)+size), make([]byte, len(r.head)+size)
			valid = append(valid, r)
		}
	}
	for i := range valid {
		r := &valid[i]
		parts = append(parts, remotemem.Part{Address: r.g.labels, Data: r.record},
			remotemem.Part{Address: r.g.G + uint64(v.runtime.GLabels), Data: r.labels[:]}, remotemem.Part{Address: r.g.labels, Data: r.twin})
	}
	if err := readEach(c.memory, parts); err != nil {
		return err
	}
	decode := c.process.attributeDecoder(c.ctx, v)
	for _, r := range valid {
		if native64(r.labels) == r.g.labels && bytes.Equal(r.record, r.twin) && bytes.HasPrefix(r.record, r.head) {
			r.g.Attributes = decode(r.record[len(r.head):])
		}
	}
	return nil
}
