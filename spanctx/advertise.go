// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"runtime"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/ringbuf"
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
	for i, prefix := range [numRings]attribute.Key{wire.KeyThreadSlots, wire.KeyGoroutineSlots} {
		if r := p.rings[i]; r != nil {
			kvs = append(kvs, ringAttributes(prefix, r.Info())...)
		}
	}
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

func ringAttributes(prefix attribute.Key, info ringbuf.Info) []attribute.KeyValue {
	index := wire.IndexThread
	if info.Index == ringbuf.ByGoroutine {
		index = wire.IndexGoroutine
	}
	var fields []attribute.KeyValue
	for _, f := range wire.SlotFields(info.Layout) {
		if int(f.Offset) == info.SlotSize {
			continue // attributes in slots that have no space for them
		}
		fields = append(fields, attribute.Int64(f.Name, int64(f.Offset)))
	}
	return []attribute.KeyValue{
		attribute.String(string(prefix)+wire.RingKeyMapping, info.Mapping),
		attribute.Int64(string(prefix)+wire.RingKeyAddress, int64(info.Address)),
		attribute.Int(string(prefix)+wire.RingKeyLayout, info.Layout),
		attribute.Int(string(prefix)+wire.RingKeyCapacity, info.Capacity),
		attribute.Int(string(prefix)+wire.RingKeyHeaderSize, info.HeaderSize),
		attribute.Int(string(prefix)+wire.RingKeySlotSize, info.SlotSize),
		attribute.String(string(prefix)+wire.RingKeyIndex, index),
		{Key: prefix + wire.RingKeyFields, Value: attribute.MapValue(fields...)},
	}
}

// goAttributes describe the Go runtime, as far as it is known.
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
		kvs = append(kvs, attribute.Int64(wire.KeyGo+wire.GoKeyRecordOffset, int64(gorecord.Offset)))
	}
	return kvs
}
