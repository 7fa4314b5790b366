// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

const (
	// maxCachedLocations is the maximum size of byPointer. Locations that are not in it are looked up by
	// content.
	maxCachedLocations = 1 << 17
	// maxText is the approximate maximum of the total size of strings and attribute values in bytes. The limit is
	// needed because they come from other processes and their files. When it is reached, new attributes are dropped,
	// and new locations and mappings are added without names.
	maxText = 64 << 20
)

// dictionary holds the tables that profiles refer to. The methods that return the index of an entry add the
// entry on first use, so the caller must put the index into the profile: the format allows no unused entries.
// Entry 0 of each table is the zero value.
type dictionary struct {
	tables profilespb.ProfilesDictionary

	strings    map[string]int32
	functions  map[functionKey]int32
	mappings   map[symbols.Mapping]int32
	byPointer  map[*symbols.Location]int32
	locations  map[string]int32 // by content
	stacks     map[string]int32 // by locations
	links      map[linkKey]int32
	attributes map[attributeKey]int32

	// attributeSets holds each set of attributes as a sorted list of indices. A set's number is its position;
	// set 0 is empty.
	attributeSets [][]int32
	setNumbers    map[string]int32

	text int // bytes counted towards maxText

	key     []byte // scratch space
	inner   []byte // scratch space for parts of a key
	indices []int32
}

type functionKey struct {
	name, file int32
	start      int64
}

type linkKey struct {
	traceID [16]byte
	spanID  [8]byte
}

// attributeKey identifies an attribute by its key and encoded value. With two separate strings, attributes that
// have the same key share the key's memory. This matters because a process may use long keys, each with many
// values.
type attributeKey struct{ key, value string }

func newDictionary() *dictionary {
	d := &dictionary{
		strings:    map[string]int32{"": 0},
		functions:  map[functionKey]int32{},
		mappings:   map[symbols.Mapping]int32{{}: 0},
		byPointer:  map[*symbols.Location]int32{},
		locations:  map[string]int32{"": 0},
		stacks:     map[string]int32{"": 0},
		links:      map[linkKey]int32{},
		attributes: map[attributeKey]int32{},

		attributeSets: [][]int32{nil},
		setNumbers:    map[string]int32{"": 0},
	}
	d.tables.StringTable = []string{""}
	d.tables.FunctionTable = []*profilespb.Function{{}}
	d.tables.MappingTable = []*profilespb.Mapping{{}}
	d.tables.LocationTable = []*profilespb.Location{{}}
	d.tables.StackTable = []*profilespb.Stack{{}}
	// For link 0 the format prefers ids that consist of zeros. However, Parca and profcheck accept only the
	// empty message, and the OpenTelemetry eBPF profiler writes the empty message, too.
	d.tables.LinkTable = []*profilespb.Link{{}}
	d.tables.AttributeTable = []*profilespb.KeyValueAndUnit{{}}
	return d
}

// message returns a copy of the tables.
func (d *dictionary) message() *profilespb.ProfilesDictionary {
	return &profilespb.ProfilesDictionary{
		StringTable:    slices.Clone(d.tables.GetStringTable()),
		FunctionTable:  slices.Clone(d.tables.GetFunctionTable()),
		MappingTable:   slices.Clone(d.tables.GetMappingTable()),
		LocationTable:  slices.Clone(d.tables.GetLocationTable()),
		StackTable:     slices.Clone(d.tables.GetStackTable()),
		LinkTable:      slices.Clone(d.tables.GetLinkTable()),
		AttributeTable: slices.Clone(d.tables.GetAttributeTable()),
	}
}

// add appends value to table, and returns its index.
func add[T any](table *[]T, value T) int32 {
	*table = append(*table, value)
	return int32(len(*table) - 1)
}

// intern returns the index of the entry with a key, which create makes on first use.
func intern[K comparable, T any](indices map[K]int32, table *[]T, key K, create func() T) int32 {
	i, ok := indices[key]
	if !ok {
		i = add(table, create())
		indices[key] = i
	}
	return i
}

// internBytes is like intern, but copies the key only on first use.
func internBytes[T any](indices map[string]int32, table *[]T, key []byte, create func() T) int32 {
	if i, ok := indices[string(key)]; ok {
		return i
	}
	return intern(indices, table, string(key), create)
}

// room reports whether size more bytes of text fit within maxText.
func (d *dictionary) room(size int) bool { return d.text+size <= maxText }

// string returns the index of s. It first sanitizes s with validText, because names come from untrusted files.
func (d *dictionary) string(s string) int32 {
	if i, ok := d.strings[s]; ok {
		return i
	}
	valid := validText(s)
	if i, ok := d.strings[valid]; ok {
		return i
	}
	d.text += len(valid)
	valid = strings.Clone(valid) // Do not retain the larger string that valid may be part of.
	i := add(&d.tables.StringTable, valid)
	d.strings[valid] = i
	return i
}

func (d *dictionary) valueType(name, unit string) *profilespb.ValueType {
	return &profilespb.ValueType{TypeStrindex: d.string(name), UnitStrindex: d.string(unit)}
}

// stack returns the index of a stack. It omits locations that have no content, not even an address.
func (d *dictionary) stack(stack []*symbols.Location) int32 {
	d.key = d.key[:0]
	for _, l := range stack {
		if i := d.location(l); i != 0 {
			d.key = appendIndex(d.key, i)
		}
	}
	return internBytes(d.stacks, &d.tables.StackTable, d.key, func() *profilespb.Stack {
		indices := make([]int32, len(d.key)/4)
		for n := range indices {
			indices[n] = int32(binary.LittleEndian.Uint32(d.key[n*4:]))
		}
		return &profilespb.Stack{LocationIndices: indices}
	})
}

// location returns the index of a location. It must not use d.key, because its caller, the method stack, does.
func (d *dictionary) location(l *symbols.Location) int32 {
	if i, ok := d.byPointer[l]; ok {
		return i
	}
	m := &profilespb.Location{MappingIndex: d.mapping(l.Mapping), Address: l.Address}
	if d.canName(l.Lines) {
		for _, line := range l.Lines {
			m.Lines = append(m.Lines, &profilespb.Line{FunctionIndex: d.function(line), Line: int64(line.Line)})
		}
	}
	if l.Type != "" {
		m.AttributeIndices = d.appendAttribute(nil, StringAttribute(string(semconv.ProfileFrameTypeKey), l.Type))
	}
	// A lookup by pointer does not suffice, because package symbols may evict a location and later create an equal one.
	content, _ := marshal.Marshal(m) // It has only numbers, which always encode.
	i := internBytes(d.locations, &d.tables.LocationTable, content, func() *profilespb.Location { return m })
	if len(d.byPointer) >= maxCachedLocations {
		clear(d.byPointer)
	}
	d.byPointer[l] = i
	return i
}

// canName reports whether all lines have function names, and there is room for all of these. A location gets
// either all of its names or none, because otherwise the chain of inlined calls would have gaps.
func (d *dictionary) canName(lines []symbols.Line) bool {
	size := 0
	for _, line := range lines {
		if line.Function == "" {
			return false
		}
		size += len(line.Function) + len(line.File)
	}
	return d.room(size)
}

func (d *dictionary) function(line symbols.Line) int32 {
	key := functionKey{name: d.string(line.Function), file: d.string(line.File), start: int64(line.Start)}
	return intern(d.functions, &d.tables.FunctionTable, key, func() *profilespb.Function {
		return &profilespb.Function{NameStrindex: key.name, FilenameStrindex: key.file, StartLine: key.start}
	})
}

func (d *dictionary) mapping(raw *symbols.Mapping) int32 {
	if raw == nil {
		return 0
	}
	valid := validMapping(*raw)
	m := &valid
	if i, ok := d.mappings[*m]; ok {
		return i
	}
	const attributes = 600 // maximum bytes of three attributes without their values
	bare := symbols.Mapping{Start: m.Start, Limit: m.Limit, FileOffset: m.FileOffset}
	if *m != bare && !d.room(len(m.Path)+attributes+3*(len(m.GNUBuildID)+len(m.GoBuildID)+len(m.HTLHash))) {
		return d.mapping(&bare)
	}
	message := &profilespb.Mapping{
		MemoryStart: m.Start, MemoryLimit: m.Limit, FileOffset: m.FileOffset,
		FilenameStrindex: d.string(m.Path),
	}
	for _, id := range []struct{ key, value string }{
		{string(semconv.ProcessExecutableBuildIDGNUKey), m.GNUBuildID},
		{string(semconv.ProcessExecutableBuildIDGoKey), m.GoBuildID},
		{string(semconv.ProcessExecutableBuildIDHtlhashKey), m.HTLHash},
	} {
		if id.value != "" {
			message.AttributeIndices = d.appendAttribute(message.GetAttributeIndices(), StringAttribute(id.key, id.value))
		}
	}
	i := add(&d.tables.MappingTable, message)
	d.mappings[*m] = i
	return i
}

// link returns the index of a link, or 0 if one of its ids is zero.
func (d *dictionary) link(key linkKey) int32 {
	if key.traceID == [16]byte{} || key.spanID == [8]byte{} {
		return 0
	}
	return intern(d.links, &d.tables.LinkTable, key, func() *profilespb.Link {
		return &profilespb.Link{TraceId: slices.Clone(key.traceID[:]), SpanId: slices.Clone(key.spanID[:])}
	})
}

// attributeSet returns the number of a set of attributes, which must be a result of validAttributes.
func (d *dictionary) attributeSet(attributes []*commonpb.KeyValue) int32 {
	if len(attributes) == 0 {
		return 0
	}
	d.indices = d.indices[:0]
	for _, a := range attributes {
		d.indices = d.appendAttribute(d.indices, a)
	}
	slices.Sort(d.indices)
	d.key = d.key[:0]
	for _, i := range d.indices {
		d.key = appendIndex(d.key, i)
	}
	return internBytes(d.setNumbers, &d.attributeSets, d.key, func() []int32 { return slices.Clone(d.indices) })
}

// appendAttribute appends the index of a, unless there is no room for it.
func (d *dictionary) appendAttribute(indices []int32, a *commonpb.KeyValue) []int32 {
	if i := d.attribute(a); i != 0 {
		return append(indices, i)
	}
	return indices
}

// attribute returns the index of a valid attribute, or 0 if there is no room for it.
func (d *dictionary) attribute(a *commonpb.KeyValue) int32 {
	var err error
	if d.inner, err = marshal.MarshalAppend(d.inner[:0], a.GetValue()); err != nil {
		return 0
	}
	if i, ok := d.attributes[attributeKey{a.GetKey(), string(d.inner)}]; ok {
		return i
	}
	if !d.room(2 * (len(a.GetKey()) + len(d.inner))) {
		return 0
	}
	d.text += len(d.inner)
	key := d.string(a.GetKey())
	i := add(&d.tables.AttributeTable, &profilespb.KeyValueAndUnit{KeyStrindex: key, Value: a.GetValue()})
	d.attributes[attributeKey{d.tables.GetStringTable()[key], string(d.inner)}] = i
	return i
}

// StringAttribute returns a string attribute. It replaces invalid UTF-8 and control characters in the value, and
// cuts a long value.
func StringAttribute(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{
		Value: &commonpb.AnyValue_StringValue{StringValue: validText(value)},
	}}
}

// BoolAttribute returns a Boolean attribute.
func BoolAttribute(key string, value bool) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{
		Value: &commonpb.AnyValue_BoolValue{BoolValue: value},
	}}
}

// IntAttribute returns an integer attribute.
func IntAttribute(key string, value int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{
		Value: &commonpb.AnyValue_IntValue{IntValue: value},
	}}
}

// Text returns a string, number or Boolean as text, and false for any other value.
func Text(value *commonpb.AnyValue) (string, bool) {
	switch v := value.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue, true
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10), true
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue), true
	case *commonpb.AnyValue_DoubleValue:
		return strconv.FormatFloat(v.DoubleValue, 'g', -1, 64), true
	default:
		return "", false
	}
}
