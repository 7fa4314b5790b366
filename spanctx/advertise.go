// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"runtime"
	"slices"
	"unsafe"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/keymap"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/wire"
)

func (c *carriers) withdrawAdvertisement() error {
	var keys []attribute.Key
	for _, kv := range c.advertisement(c.path.Features().Keys) {
		keys = append(keys, kv.Key)
	}
	return advertise.Change(nil, keys)
}

// advertisement returns the attributes that tell readers where spans are published and in which
// layout.
func (c *carriers) advertisement(keys *keymap.Map) []attribute.KeyValue {
	schema := wire.SchemaSlots
	if c.records {
		schema = wire.SchemaGoLabels
	}
	kvs := []attribute.KeyValue{
		attribute.String(wire.KeySchemaVersion, schema),
		keyMapAttribute(keys),
	}
	if c.slots != nil {
		kvs = append(kvs, ringAttributes(wire.KeyThreadSlots, c.slots.Description())...)
	}
	if c.tablePublished {
		table, _ := c.path.Goroutines()
		kvs = append(kvs, memoryAttributes(wire.KeyGoroutines, wire.GoroutinesName, table.Address(), wire.GoroutinesLayout1, wire.GoroutinesCapacity, wire.GoroutinesHeaderSize)...)
		kvs = append(kvs, attribute.Int(wire.KeyGoroutines+wire.TableKeyEntrySize, wire.GoroutineEntrySize))
	}
	kvs = append(kvs, c.tableAttributes()...)
	return append(kvs, c.goAttributes()...)
}

// keyMapAttribute returns the attribute that lists the published attribute keys. Encoded attributes
// refer to a key by its index in this list.
func keyMapAttribute(m *keymap.Map) attribute.KeyValue {
	keys := make([]string, len(m.Keys()))
	for i, key := range m.Keys() {
		keys[i] = string(key)
	}
	return attribute.StringSlice(wire.KeyAttributeKeyMap, keys)
}

func ringAttributes(prefix string, d ring.Description) []attribute.KeyValue {
	fields := slices.DeleteFunc(wire.SlotFields(d.Layout), func(f wire.Field) bool {
		return int(f.Offset) >= d.SlotSize // without room for attributes, a slot ends before this field
	})
	return append(memoryAttributes(prefix, d.Name, d.Address, d.Layout, d.Capacity, d.HeaderSize),
		attribute.Int(prefix+wire.RingKeySlotSize, d.SlotSize),
		attribute.String(prefix+wire.RingKeyIndex, wire.IndexThread),
		offsets(prefix+wire.RingKeyFields, fields))
}

// memoryAttributes returns the attributes that describe a mapping: its name, address, layout,
// capacity and header size.
func memoryAttributes(prefix, mapping string, address uint64, layout, capacity, headerSize int) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String(prefix+wire.RingKeyMapping, mapping),
		attribute.Int64(prefix+wire.RingKeyAddress, int64(address)),
		attribute.Int(prefix+wire.RingKeyLayout, layout),
		attribute.Int(prefix+wire.RingKeyCapacity, capacity),
		attribute.Int(prefix+wire.RingKeyHeaderSize, headerSize),
	}
}

// tableAttributes returns the attributes that describe the span table, the name table and the request table,
// if other processes can find them.
func (c *carriers) tableAttributes() (kvs []attribute.KeyValue) {
	if c.spansPublished {
		table, _ := c.path.Spans()
		kvs = append(memoryAttributes(wire.KeySpans, wire.SpansName, table.Address(), wire.SpansLayout1, spantable.Capacity, wire.SpansHeaderSize),
			attribute.Int(wire.KeySpans+wire.SpansKeyCellSize, wire.CellSize),
			offsets(wire.KeySpans+wire.RingKeyFields, wire.CellFields()))
	}
	if c.namesPublished {
		kvs = append(kvs, memoryAttributes(wire.KeyNames, wire.NamesName, c.names.Address(), wire.NamesLayout1, names.Capacity, wire.NamesHeaderSize)...)
		kvs = append(kvs, attribute.Int(wire.KeyNames+wire.TableKeyEntrySize, wire.NameEntrySize))
		kvs = append(kvs, memoryAttributes(wire.KeyRequests, wire.NamesName, c.names.RequestsAddress(), wire.RequestsLayout1, names.RequestRows, wire.RequestsHeaderSize)...)
		kvs = append(kvs, attribute.Int(wire.KeyRequests+wire.TableKeyEntrySize, names.RequestRowSize))
		if c.records {
			kvs = append(kvs, attribute.Int64(wire.KeyGo+wire.GoKeyNamesOffset, int64(gorecord.NamesOffset)))
		}
	}
	return kvs
}

// offsets returns an attribute that maps the name of each field to its offset.
func offsets(key string, fields []wire.Field) attribute.KeyValue {
	var kvs []attribute.KeyValue
	for _, f := range fields {
		kvs = append(kvs, attribute.Int64(f.Name, int64(f.Offset)))
	}
	return attribute.KeyValue{Key: attribute.Key(key), Value: attribute.MapValue(kvs...)}
}

// goAttributes returns the attributes that describe the Go runtime: its version, where it keeps the
// rate at which it samples allocations, and the offsets found by calibration.
func (c *carriers) goAttributes() []attribute.KeyValue {
	kvs := []attribute.KeyValue{
		attribute.String(wire.KeyGo+wire.GoKeyVersion, runtime.Version()),
		attribute.Int64(wire.KeyGo+wire.GoKeyMemProfileRate, int64(uintptr(unsafe.Pointer(&runtime.MemProfileRate)))),
	}
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
		if offset, err := c.runtime.Offset(f.fact); err == nil {
			kvs = append(kvs, attribute.Int64(wire.KeyGo+f.key, offset))
		}
	}
	if c.records {
		kvs = append(kvs,
			attribute.Int64(wire.KeyGo+wire.GoKeyRecordOffset, int64(gorecord.Offset)),
			attribute.Int64(wire.KeyGo+wire.GoKeyRefOffset, int64(gorecord.RefOffset)),
			attribute.Int64(wire.KeyGo+wire.GoKeyAncestorsOffset, int64(gorecord.AncestorsOffset)))
	}
	return kvs
}
