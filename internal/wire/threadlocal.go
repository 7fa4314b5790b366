// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

// Keys of the attributes beside the resource by which a process says where its
// active spans are. The first two are OTEP 4947's.
const (
	// ThreadLocalPrefix is what all of them begin with.
	ThreadLocalPrefix = "threadlocal."

	// KeySchemaVersion has the value SchemaGoLabels if the goroutines' labels carry
	// records, else SchemaSlots.
	KeySchemaVersion = "threadlocal.schema_version"
	SchemaGoLabels   = "go_pprof_labels_v1"
	SchemaSlots      = "otelctx_slots_v1"
	// SchemaTLSDevelopment and SchemaTLS say that the thread-local variable of OTEP 4947 names records.
	SchemaTLSDevelopment = "tlsdesc_v1_dev"
	SchemaTLS            = "tls_v1"

	// KeyAttributeKeyMap is an array of strings: what the key bytes of encoded
	// attributes stand for.
	KeyAttributeKeyMap = "threadlocal.attribute_key_map"

	// KeyThreadSlots is what the keys of the ring by thread begin with.
	KeyThreadSlots = "threadlocal.slots."

	// KeyGoroutines is what the keys of the goroutine table begin with.
	KeyGoroutines = "threadlocal.goroutines."

	// KeySpans is what the keys of the span table begin with.
	KeySpans = "threadlocal.spans."

	// KeyNames is what the keys of the name table begin with.
	KeyNames = "threadlocal.names."

	// KeyGo is what the keys that describe the Go runtime begin with.
	KeyGo = "threadlocal.go."
)

// How the keys of a ring end. All values are integers but these: mapping is a string,
// and index is IndexThread or IndexGoroutine. fields is a map of the names below to
// their offsets in a slot.
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

// How the keys that describe the Go runtime end. All values are integers but the
// version, which is that of the toolchain. What could not be found out is left out.
const (
	GoKeyVersion       = "version"
	GoKeyTLSGOffset    = "tls_g_offset"
	GoKeyGMOffset      = "g_m_offset"
	GoKeyMCurgOffset   = "m_curg_offset"
	GoKeyMProcidOffset = "m_procid_offset"
	GoKeyGGoidOffset   = "g_goid_offset"
	GoKeyGLabelsOffset = "g_labels_offset"
	// GoKeyRecordOffset is where behind the label pointer the record is.
	GoKeyRecordOffset = "record_offset"
	// GoKeyRefOffset is where behind the label pointer the reference to the span's cell is.
	GoKeyRefOffset = "record_ref_offset"
	// GoKeyAncestorsOffset is where behind the label pointer the references to the span's
	// ancestors are. The id of the goroutine that does not go to them follows: see
	// [Cell.Flags].
	GoKeyAncestorsOffset = "record_ancestors_offset"
	// GoKeyNamesOffset is where behind the label pointer the numbers of the names are.
	GoKeyNamesOffset = "record_names_offset"
)

// Field is a field of a slot, as it is advertised.
type Field struct {
	Name   string
	Offset uintptr
	// Size is its size in bytes; 0 for the attributes, which say theirs.
	Size uintptr
}

// SlotFields returns the fields of a slot of a layout.
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
