// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

// Keys of the process context attributes that locate a process's active spans. OTEP 4947 defines the
// first two. The others belong to otelctx, and have the same prefix because readers look for the
// layout there. They do not conflict with the keys of other schemas: readers select the schema by
// [KeySchemaVersion], and the keys of otelctx have a second segment (slots, goroutines, spans, names
// or go), whereas those of other schemas are flat, such as threadlocal.js_map_table_offset of
// nodejs_v1_dev.
const (
	// ThreadLocalPrefix is the prefix of all keys below.
	ThreadLocalPrefix = "threadlocal."

	// KeySchemaVersion has the value SchemaGoLabels if the goroutines' labels carry records,
	// otherwise SchemaSlots.
	KeySchemaVersion = "threadlocal.schema_version"
	SchemaGoLabels   = "go_pprof_labels_v1"
	SchemaSlots      = "otelctx_slots_v1"
	// SchemaTLSDevelopment and SchemaTLS say that the thread-local variable of OTEP 4947 points at
	// records.
	SchemaTLSDevelopment = "tlsdesc_v1_dev"
	SchemaTLS            = "tls_v1"

	// KeyAttributeKeyMap is an array of strings: the attribute names, indexed by the key byte of
	// encoded attributes.
	KeyAttributeKeyMap = "threadlocal.attribute_key_map"

	// KeyThreadSlots is the prefix of the keys of the ring by thread.
	KeyThreadSlots = "threadlocal.slots."

	// KeyGoroutines is the prefix of the keys of the goroutine table.
	KeyGoroutines = "threadlocal.goroutines."

	// KeySpans is the prefix of the keys of the span table.
	KeySpans = "threadlocal.spans."

	// KeyNames is the prefix of the keys of the name table.
	KeyNames = "threadlocal.names."

	// KeyGo is the prefix of the keys that describe the Go runtime.
	KeyGo = "threadlocal.go."
)

// Suffixes of the keys of a ring. All values are integers, except: mapping is a string, index is
// IndexThread or IndexGoroutine, and fields is a map of the names below to their offsets in a slot.
const (
	RingKeyMapping    = "mapping"
	RingKeyAddress    = "address"
	RingKeyLayout     = "layout"
	RingKeyCapacity   = "capacity"
	RingKeyHeaderSize = "header_size"
	RingKeySlotSize   = "slot_size"
	RingKeyIndex      = "index"
	RingKeyFields     = "fields"

	// The span table has cells instead of slots.
	SpansKeyCellSize = "cell_size"
	// The name table and the goroutine table have entries.
	TableKeyEntrySize = "entry_size"

	IndexThread    = "thread"
	IndexGoroutine = "goroutine"
)

// Suffixes of the keys that describe the Go runtime. All values are integers, except the version of
// the Go toolchain. Unknown values are left out.
const (
	GoKeyVersion       = "version"
	GoKeyTLSGOffset    = "tls_g_offset"
	GoKeyGMOffset      = "g_m_offset"
	GoKeyMCurgOffset   = "m_curg_offset"
	GoKeyMProcidOffset = "m_procid_offset"
	GoKeyGGoidOffset   = "g_goid_offset"
	GoKeyGLabelsOffset = "g_labels_offset"
	// GoKeyRecordOffset is the distance from the label pointer to the record.
	GoKeyRecordOffset = "record_offset"
	// GoKeyRefOffset is the distance from the label pointer to the reference to the span's cell.
	GoKeyRefOffset = "record_ref_offset"
	// GoKeyAncestorsOffset is the distance from the label pointer to the references to the span's
	// ancestors. They are followed by the id of the only goroutine that must not fall back to them: see
	// [Cell.Flags].
	GoKeyAncestorsOffset = "record_ancestors_offset"
	// GoKeyNamesOffset is the distance from the label pointer to the numbers of the names.
	GoKeyNamesOffset = "record_names_offset"
)

// Field is an advertised field of a slot or cell.
type Field struct {
	Name   string
	Offset uintptr
	// Size is the field's size in bytes; 0 for the attributes, whose size is in the slot.
	Size uintptr
}

// SlotFields returns the fields of a slot in a layout.
func SlotFields(layout int) []Field {
	fields := []Field{
		{"trace_id_high", OffsetTraceIDHigh, 8},
		{"trace_id_low", OffsetTraceIDLow, 8},
		{"span_id", OffsetSpanID, 8},
		{"in_use", OffsetInUse, 1},
	}
	if layout == RingLayout1 {
		return fields
	}
	return append(fields,
		Field{"trace_flags", OffsetTraceFlags, 1},
		Field{"attrs_size", OffsetAttrsSize, 2},
		Field{"seq", OffsetSeq, 4},
		Field{"owner_goid", OffsetOwner, 8},
		Field{"span_ref", OffsetRef, 8},
		Field{"m", OffsetM, 8},
		Field{"tid", OffsetTID, 4},
		Field{"attrs", SlotAttributes, 0},
	)
}
