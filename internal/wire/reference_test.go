// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/golden"
)

// reference is the path of the documentation of the formats.
const reference = "../../docs/wire-format.md"

// documented returns the rows of a table in docs/wire-format.md, each cut to this number of cells,
// which are joined by spaces.
func documented(t *testing.T, table string, cells int) (rows []string) {
	t.Helper()
	for _, row := range golden.Rows(t, reference, table) {
		require.Greater(t, len(row), cells-1, row)
		rows = append(rows, strings.Join(row[:cells], " "))
	}
	return rows
}

// row formats a field like a row of the reference. A size of 0 stands for an empty cell.
func row(offset, size uintptr, name string) string {
	if size == 0 {
		return fmt.Sprintf("0x%02X  %s", offset, name)
	}
	return fmt.Sprintf("0x%02X %d %s", offset, size, name)
}

// layoutOf returns the rows that the reference must have for the fields of a struct.
func layoutOf(structure any) (rows []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(structure)) {
		if f.Name == "_" {
			continue
		}
		var name strings.Builder
		for i, c := range f.Name {
			upper := c >= 'A' && c <= 'Z'
			// A word begins at a capital letter that is next to a lower-case letter: SpanID becomes
			// span_id.
			if i > 0 && upper && (f.Name[i-1] >= 'a' || i+1 < len(f.Name) && f.Name[i+1] >= 'a') {
				name.WriteByte('_')
			}
			name.WriteString(strings.ToLower(string(c)))
		}
		rows = append(rows, row(f.Offset, f.Type.Size(), name.String()))
	}
	return rows
}

func fieldRows(fields []Field) (rows []string) {
	for _, f := range fields {
		rows = append(rows, row(f.Offset, f.Size, f.Name))
	}
	return rows
}

func TestReferenceLayouts(t *testing.T) {
	for table, want := range map[string][]string{
		"process context header": layoutOf(ProcessContextHeader{}),
		"ring header":            layoutOf(RingHeader{}),
		"slot of layout 1":       fieldRows(SlotFields(RingLayout1)),
		"slot of layout 2":       fieldRows(SlotFields(RingLayout2)),
		"span table header":      layoutOf(TableHeader{}),
		"cell":                   fieldRows(CellFields()),
		"goroutine table header": layoutOf(TableHeader{}),
		"goroutine entry":        layoutOf(GoroutineEntry{}),
		"name table header":      layoutOf(TableHeader{}),
		"name":                   layoutOf(NameEntry{}),
		"request table header":   layoutOf(TableHeader{}),
		"record":                 append(layoutOf(ThreadContextRecord{}), row(ThreadContextRecordSize, 0, "attrs_data")),
	} {
		assert.Equal(t, want, documented(t, table, 3), table)
	}
}

func TestReferenceConstants(t *testing.T) {
	assert.Equal(t, processContextMappings[:], documented(t, "mapping names", 1))
	assert.Equal(t, threadLocalMappings[:], documented(t, "separate mapping names", 1))
	var values []string
	for _, r := range golden.Rows(t, reference, "ring constants") {
		values = append(values, r[1])
	}
	assert.Equal(t, []string{
		fmt.Sprintf("0x%X", RingMagic), RingName1, ThreadRingName, GoroutineRingName,
		strconv.Itoa(RingHeaderSize1), strconv.Itoa(RingHeaderSize2), strconv.Itoa(SlotSize1), strconv.Itoa(SlotSize2),
	}, values)
	values = nil
	for _, r := range golden.Rows(t, reference, "span table constants") {
		values = append(values, r[1])
	}
	assert.Equal(t, []string{
		fmt.Sprintf("0x%X", SpansMagic), SpansName, strconv.Itoa(SpansHeaderSize), strconv.Itoa(CellSize),
	}, values)
	values = nil
	for _, r := range golden.Rows(t, reference, "goroutine table constants") {
		values = append(values, r[1])
	}
	assert.Equal(t, []string{
		fmt.Sprintf("0x%X", GoroutinesMagic), GoroutinesName, strconv.Itoa(GoroutinesHeaderSize), strconv.Itoa(GoroutineEntrySize), strconv.Itoa(GoroutinesCapacity),
	}, values)
	values = nil
	for _, r := range golden.Rows(t, reference, "name table constants") {
		values = append(values, r[1])
	}
	assert.Equal(t, []string{
		fmt.Sprintf("0x%X", NamesMagic), NamesName, strconv.Itoa(NamesHeaderSize), strconv.Itoa(NameEntrySize),
	}, values)
	values = nil
	for _, r := range golden.Rows(t, reference, "request table constants") {
		values = append(values, r[1])
	}
	assert.Equal(t, []string{fmt.Sprintf("0x%X", RequestsMagic), strconv.Itoa(RequestsHeaderSize), strconv.Itoa(RequestCounterSize)}, values)
	header := golden.Rows(t, reference, "process context header")
	assert.Contains(t, header[0][3], ProcessContextSignature)
	assert.Equal(t, strconv.Itoa(ProcessContextVersion), header[1][3])
}

func TestReferenceKeys(t *testing.T) {
	want := []string{KeySchemaVersion, KeyAttributeKeyMap}
	for _, key := range []string{
		RingKeyMapping, RingKeyAddress, RingKeyLayout, RingKeyCapacity, RingKeyHeaderSize, RingKeySlotSize, RingKeyIndex, RingKeyFields,
	} {
		want = append(want, KeyThreadSlots+key)
	}
	for _, key := range []string{
		RingKeyMapping, RingKeyAddress, RingKeyLayout, RingKeyCapacity, RingKeyHeaderSize, TableKeyEntrySize,
	} {
		want = append(want, KeyGoroutines+key)
	}
	for _, key := range []string{
		RingKeyMapping, RingKeyAddress, RingKeyLayout, RingKeyCapacity, RingKeyHeaderSize, SpansKeyCellSize, RingKeyFields,
	} {
		want = append(want, KeySpans+key)
	}
	for _, key := range []string{
		RingKeyMapping, RingKeyAddress, RingKeyLayout, RingKeyCapacity, RingKeyHeaderSize, TableKeyEntrySize,
	} {
		want = append(want, KeyNames+key)
	}
	for _, key := range []string{
		RingKeyMapping, RingKeyAddress, RingKeyLayout, RingKeyCapacity, RingKeyHeaderSize, TableKeyEntrySize,
	} {
		want = append(want, KeyRequests+key)
	}
	for _, key := range []string{
		GoKeyVersion, GoKeyTLSGOffset, GoKeyGMOffset, GoKeyMCurgOffset, GoKeyMProcidOffset, GoKeyGGoidOffset, GoKeyGLabelsOffset, GoKeyRecordOffset,
		GoKeyRefOffset, GoKeyAncestorsOffset, GoKeyNamesOffset, GoKeyMemProfileRate,
	} {
		want = append(want, KeyGo+key)
	}
	assert.Equal(t, want, documented(t, "advertised keys", 1))
	for _, r := range golden.Rows(t, reference, "advertised keys") {
		switch r[0] {
		case KeySchemaVersion:
			assert.Contains(t, r[2], "`"+SchemaGoLabels+"`: goroutines")
			assert.Contains(t, r[2], "`"+SchemaSlots+"`: there are slots only")
		case KeyThreadSlots + RingKeyIndex:
			assert.Equal(t, IndexThread, r[2])
		}
	}
}

func TestReferenceProtobuf(t *testing.T) {
	messages := map[string]protoreflect.MessageDescriptor{}
	for _, m := range []interface{ ProtoReflect() protoreflect.Message }{
		&processcontextpb.ProcessContext{}, &resourcepb.Resource{},
		&commonpb.KeyValue{}, &commonpb.AnyValue{}, &commonpb.ArrayValue{}, &commonpb.KeyValueList{},
	} {
		d := m.ProtoReflect().Descriptor()
		messages[string(d.Name())] = d
	}
	for _, r := range golden.Rows(t, reference, "protobuf fields") {
		require.Contains(t, messages, r[0])
		f := messages[r[0]].Fields().ByName(protoreflect.Name(r[1]))
		require.NotNil(t, f, r)
		assert.Equal(t, fmt.Sprint(f.Number()), r[2], r)
		kind := f.Kind().String()
		if f.Kind() == protoreflect.MessageKind {
			kind = fmt.Sprintf("message `%s`", f.Message().Name())
		}
		if f.IsList() {
			kind = "repeated " + kind
		}
		assert.Equal(t, kind, r[3], r)
	}
}

func TestReferenceLabels(t *testing.T) {
	const word = unsafe.Sizeof(uintptr(0))
	if word != 8 {
		t.Skip("needs a 64-bit machine")
	}
	key, value := unsafe.Offsetof(goruntime.Label{}.Key), unsafe.Offsetof(goruntime.Label{}.Value)
	assert.Equal(t, []string{
		"labels " + row(0, word, "address of the first label"),
		"labels " + row(word, word, "how many there are"),
		"labels " + row(2*word, word, "for how many there is room"),
		"label " + row(key, word, "address of the key"),
		"label " + row(key+word, word, "its length"),
		"label " + row(value, word, "address of the value"),
		"label " + row(value+word, word, "its length"),
	}, documented(t, "labels", 4))
	assert.Equal(t, 2*unsafe.Sizeof(""), unsafe.Sizeof(goruntime.Label{}))
	assert.Equal(t, unsafe.Sizeof([]goruntime.Label{}), unsafe.Sizeof(goruntime.LabelMap{}))
}
