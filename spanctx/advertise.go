// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"runtime"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// advertise tells readers by the process context what is shown where.
func (p *SpanProcessor) advertise() error {
	return resourcepublisher.SetAttributes(p.advertisement()...)
}

func (p *SpanProcessor) withdrawAdvertisement() error {
	var keys []attribute.Key
	for _, kv := range p.advertisement() {
		keys = append(keys, kv.Key)
	}
	return resourcepublisher.RemoveAttributes(keys...)
}

// advertisement returns the attributes that say what is shown where.
func (p *SpanProcessor) advertisement() []attribute.KeyValue {
	schema := wire.SchemaSlots
	if p.records {
		schema = wire.SchemaGoLabels
	}
	kvs := []attribute.KeyValue{
		attribute.String(wire.KeySchemaVersion, schema),
		keyMapAttribute(p.keys.Load()),
	}
	if p.threads != nil {
		kvs = append(kvs, ringAttributes(wire.KeyThreadSlots, wire.IndexThread, p.threads.Layout())...)
	}
	if p.goroutines != nil {
		kvs = append(kvs, ringAttributes(wire.KeyGoroutineSlots, wire.IndexGoroutine, p.goroutines.Layout())...)
	}
	kvs = append(kvs, p.cellAttributes()...)
	kvs = append(kvs, p.nameAttributes()...)
	return append(kvs, p.goAttributes()...)
}

// keyMapAttribute says which keys the key bytes of attributes stand for.
func keyMapAttribute(m *scope.KeyMap) attribute.KeyValue {
	keys := make([]string, len(m.Keys()))
	for i, key := range m.Keys() {
		keys[i] = string(key)
	}
	return attribute.StringSlice(wire.KeyAttributeKeyMap, keys)
}

func ringAttributes(prefix attribute.Key, index string, l ring.Layout) []attribute.KeyValue {
	var there []wire.Field
	for _, f := range wire.SlotFields(l.Layout) {
		if int(f.Offset) < l.SlotSize { // else attributes in slots that have no space for them
			there = append(there, f)
		}
	}
	return []attribute.KeyValue{
		attribute.String(string(prefix)+wire.RingKeyMapping, l.Name),
		attribute.Int64(string(prefix)+wire.RingKeyAddress, int64(l.Address)),
		attribute.Int(string(prefix)+wire.RingKeyLayout, l.Layout),
		attribute.Int(string(prefix)+wire.RingKeyCapacity, l.Capacity),
		attribute.Int(string(prefix)+wire.RingKeyHeaderSize, l.HeaderSize),
		attribute.Int(string(prefix)+wire.RingKeySlotSize, l.SlotSize),
		attribute.String(string(prefix)+wire.RingKeyIndex, index),
		offsets(prefix+wire.RingKeyFields, there),
	}
}

// cellAttributes describe the span table, if other processes can find it.
func (p *SpanProcessor) cellAttributes() []attribute.KeyValue {
	if !p.listed {
		return nil
	}
	address := p.cells.Address()
	const prefix = wire.KeySpans
	return []attribute.KeyValue{
		attribute.String(prefix+wire.RingKeyMapping, wire.SpansName),
		attribute.Int64(prefix+wire.RingKeyAddress, int64(address)),
		attribute.Int(prefix+wire.RingKeyLayout, wire.SpansLayout1),
		attribute.Int(prefix+wire.RingKeyCapacity, cells.Capacity),
		attribute.Int(prefix+wire.RingKeyHeaderSize, wire.SpansHeaderSize),
		attribute.Int(prefix+wire.SpansKeyCellSize, wire.CellSize),
		offsets(prefix+wire.RingKeyFields, wire.CellFields()),
	}
}

// nameAttributes describe the name table, if other processes can find it.
func (p *SpanProcessor) nameAttributes() []attribute.KeyValue {
	if !p.namesListed {
		return nil
	}
	const prefix = wire.KeyNames
	kvs := []attribute.KeyValue{
		attribute.String(prefix+wire.RingKeyMapping, wire.NamesName),
		attribute.Int64(prefix+wire.RingKeyAddress, int64(p.names.Address())),
		attribute.Int(prefix+wire.RingKeyLayout, wire.NamesLayout1),
		attribute.Int(prefix+wire.RingKeyCapacity, names.Capacity),
		attribute.Int(prefix+wire.RingKeyHeaderSize, wire.NamesHeaderSize),
		attribute.Int(prefix+wire.NamesKeyEntrySize, wire.NameEntrySize),
	}
	if p.records {
		kvs = append(kvs, attribute.Int64(wire.KeyGo+wire.GoKeyNamesOffset, int64(gorecord.NamesOffset)))
	}
	return kvs
}

// offsets returns an attribute that has the offsets of fields.
func offsets(key attribute.Key, fields []wire.Field) attribute.KeyValue {
	var kvs []attribute.KeyValue
	for _, f := range fields {
		kvs = append(kvs, attribute.Int64(f.Name, int64(f.Offset)))
	}
	return attribute.KeyValue{Key: key, Value: attribute.MapValue(kvs...)}
}

// goAttributes describe what is known of the Go runtime.
func (p *SpanProcessor) goAttributes() []attribute.KeyValue {
	kvs := []attribute.KeyValue{attribute.String(wire.KeyGo+wire.GoKeyVersion, runtime.Version())}
	for _, f := range []struct {
		fact goruntime.Fact
		key  string
	}{
		{goruntime.TLSG, wire.GoKeyTLSGOffset},
		{goruntime.GM, wire.GoKeyGMOffset},
		{goruntime.MCurg, wire.GoKeyMCurgOffset},
		{goruntime.MProcid, wire.GoKeyMProcidOffset},
		{goruntime.GGoid, wire.GoKeyGGoidOffset},
		{goruntime.GLabels, wire.GoKeyGLabelsOffset},
	} {
		if offset, err := p.runtime.Offset(f.fact); err == nil {
			kvs = append(kvs, attribute.Int64(wire.KeyGo+f.key, offset))
		}
	}
	if p.records {
		kvs = append(kvs,
			attribute.Int64(wire.KeyGo+wire.GoKeyRecordOffset, int64(gorecord.Offset)),
			attribute.Int64(wire.KeyGo+wire.GoKeyRefOffset, int64(gorecord.RefOffset)),
			attribute.Int64(wire.KeyGo+wire.GoKeyEnclosingOffset, int64(gorecord.EnclosingOffset)))
	}
	return kvs
}
