// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

// Keys of the process context attributes that tell readers where to find the active spans. OTEP
// 4947 defines [KeySchemaVersion] and [KeyAttributeKeyMap]. otelctx defines the others, under the
// same prefix because readers look for layouts there. They do not conflict with the keys of other
// schemas: readers choose the schema by [KeySchemaVersion], and the keys of otelctx have a second
// segment (slots, goroutines, spans, names, requests or go). Other schemas have flat keys, for example
// threadlocal.js_map_table_offset in nodejs_v1_dev.
const (
	// ThreadLocalPrefix is the prefix of all keys below.
	ThreadLocalPrefix = "threadlocal."

	// KeySchemaVersion is the key of the schema. Its value is SchemaGoLabels if the labels of
	// goroutines carry records, and SchemaSlots otherwise.
	KeySchemaVersion = "threadlocal.schema_version"
	SchemaGoLabels   = "go_pprof_labels_v1"
	SchemaSlots      = "otelctx_slots_v1"
	// SchemaTLSDevelopment and SchemaTLS are the schemas of other publishers: each thread's record
	// is the target of the thread-local variable of OTEP 4947.
	SchemaTLSDevelopment = "tlsdesc_v1_dev"
	SchemaTLS            = "tls_v1"
	// SchemaNodeDevelopment and SchemaNode are the schemas of Node.js: the records of OTEP 4947 are
	// the targets of objects in V8's heap.
	SchemaNodeDevelopment = "nodejs_v1_dev"
	SchemaNode            = "nodejs_v1"

	// KeyAttributeKeyMap is the key of an array of strings: the names of the span attributes,
	// indexed by the key bytes in records and slots.
	KeyAttributeKeyMap = "threadlocal.attribute_key_map"

	// KeyThreadSlots is the prefix of the keys that describe the ring of thread slots.
	KeyThreadSlots = "threadlocal.slots."

	// KeyGoroutines is the prefix of the keys that describe the goroutine table.
	KeyGoroutines = "threadlocal.goroutines."

	// KeySpans is the prefix of the keys that describe the span table.
	KeySpans = "threadlocal.spans."

	// KeyNames is the prefix of the keys that describe the name table.
	KeyNames = "threadlocal.names."

	// KeyRequests is the prefix of the keys that describe the request table.
	KeyRequests = "threadlocal.requests."

	// KeyGo is the prefix of the keys that describe the Go runtime.
	KeyGo = "threadlocal.go."
)

// Suffixes of the keys that describe a ring or table. The values are integers, with three
// exceptions: mapping is a string, index is IndexThread or IndexGoroutine, and fields is a map from
// the names in [SlotFields] or [CellFields] to offsets.
const (
	RingKeyMapping    = "mapping"
	RingKeyAddress    = "address"
	RingKeyLayout     = "layout"
	RingKeyCapacity   = "capacity"
	RingKeyHeaderSize = "header_size"
	RingKeySlotSize   = "slot_size"
	RingKeyIndex      = "index"
	RingKeyFields     = "fields"

	// SpansKeyCellSize replaces slot_size in the keys of the span table.
	SpansKeyCellSize = "cell_size"
	// TableKeyEntrySize replaces slot_size in the keys of the name table, the request table and the goroutine
	// table.
	TableKeyEntrySize = "entry_size"

	IndexThread    = "thread"
	IndexGoroutine = "goroutine"
)

// Suffixes of the keys that describe the Go runtime. The values are integers, except that version
// is the version string of the Go toolchain. Keys whose value is unknown are left out.
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
	// GoKeyRefOffset is the distance from the label pointer to the [Ref] of the span's cell.
	GoKeyRefOffset = "record_ref_offset"
	// GoKeyAncestorsOffset is the distance from the label pointer to the references to the span's
	// ancestors. The id of one goroutine follows, or 0: after the end of the span, that goroutine
	// is in no span instead of in a live ancestor (see [CellDispatched]).
	GoKeyAncestorsOffset = "record_ancestors_offset"
	// GoKeyNamesOffset is the distance from the label pointer to the numbers of the span's name and
	// its local root's name.
	GoKeyNamesOffset = "record_names_offset"
	// GoKeyMemProfileRate is the address of runtime.MemProfileRate, an int. It is 0 while the runtime samples no
	// allocations.
	GoKeyMemProfileRate = "mem_profile_rate_address"
)

// Field is an advertised field of a slot or cell.
type Field struct {
	Name   string
	Offset uintptr
	// Size is the size of the field in bytes. It is 0 for the attributes, because each slot holds
	// the size of its own.
	Size uintptr
}

// SlotFields returns the advertised fields of a slot of this layout. Each call returns a new slice.
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
