// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"iter"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// These are the field numbers of pprof's messages, as in profile.proto of github.com/google/pprof.
const (
	profileSampleType        = 1
	profileSample            = 2
	profileMapping           = 3
	profileLocation          = 4
	profileFunction          = 5
	profileStringTable       = 6
	profileTimeNanos         = 9
	profileDurationNanos     = 10
	profilePeriodType        = 11
	profilePeriod            = 12
	profileDefaultSampleType = 14

	valueTypeType = 1
	valueTypeUnit = 2

	sampleLocationID = 1
	sampleValue      = 2
	sampleLabel      = 3

	labelKey = 1
	labelStr = 2
	labelNum = 3

	mappingID              = 1
	mappingMemoryStart     = 2
	mappingMemoryLimit     = 3
	mappingFileOffset      = 4
	mappingFilename        = 5
	mappingBuildID         = 6
	mappingHasFunctions    = 7
	mappingHasFilenames    = 8
	mappingHasLineNumbers  = 9
	mappingHasInlineFrames = 10

	locationID        = 1
	locationMappingID = 2
	locationAddress   = 3
	locationLine      = 4

	lineFunctionID = 1
	lineLine       = 2

	functionID         = 1
	functionName       = 2
	functionSystemName = 3
	functionFilename   = 4
	functionStartLine  = 5
)

// objectsOf lists the types of numbers of objects, by those of their bytes.
var objectsOf = map[string]string{
	profile.TypeAllocSpace: profile.TypeAllocObjects,
	profile.TypeInuseSpace: profile.TypeInuseObjects,
}

// pprofEncoder writes one pprof profile part by part, and does not retain written data. pprof's own package can
// write a profile only as a whole. Since the fields of a protobuf message may be in any order, each part can have
// its own mappings, functions and locations; their ids continue from the previous part. Strings are deduplicated
// only within a part, because most of them are span ids, and remembering all span ids of a long recording would
// take too much memory.
//
// Each sample has values for every kind in the file: a count and nanoseconds for CPU time, nanoseconds for wall-clock
// time, and objects and bytes for allocations and memory in use. All but those of its own kind are 0. The format cannot represent timestamps of samples.
//
// `go tool pprof -tagfocus='span_id=^ID$'` selects one span. Without ^ and $, the tool would parse about one in 700
// ids as a number with a unit, and find no samples.
type pprofEncoder struct {
	to         *gzip.Writer
	kinds      []string                       // what the samples in the file measure
	dictionary *profilespb.ProfilesDictionary // of the current part
	strings    map[string]int64
	// numStrings counts the strings written so far, including the empty string. The others count the entries of
	// previous parts. In the file, the id of an entry is its index in the part's dictionary, from 1, plus that
	// count.
	numStrings, numMappings, numLocations, numFunctions int64

	start, limit int64
	periods      map[string]int64 // by kind
	err          error
	b            []byte // scratch space
}

func newPprofEncoder(to io.Writer, kinds []string) *pprofEncoder {
	compressed, err := gzip.NewWriterLevel(to, gzip.BestSpeed) // as runtime/pprof does
	if err != nil {
		panic("export: a level that gzip has: " + err.Error())
	}
	e := &pprofEncoder{to: compressed, kinds: kinds, strings: map[string]int64{}, periods: map[string]int64{}}
	e.begin()
	return e
}

func (e *pprofEncoder) add(data *profilespb.ProfilesData) error {
	for _, p := range profile.Each(data) {
		kind := profile.KindOf(data.GetDictionary(), p)
		if period, ok := e.periods[kind]; ok && period != p.GetPeriod() {
			return fmt.Errorf("profiles with periods of %d and %d ns cannot be one", period, p.GetPeriod())
		}
		e.periods[kind] = p.GetPeriod()
		if start := int64(p.GetTimeUnixNano()); e.start == 0 || start < e.start {
			e.start = start
		}
		e.limit = max(e.limit, int64(p.GetTimeUnixNano()+p.GetDurationNano()))
	}
	e.strings = map[string]int64{"": 0}
	e.dictionary = data.GetDictionary()
	e.writeMappings()
	for i, f := range entries(e.dictionary.GetFunctionTable()) {
		e.message(profileFunction, e.function(i, f))
	}
	for i, l := range entries(e.dictionary.GetLocationTable()) {
		e.message(profileLocation, e.location(i, l))
	}
	for s := range eachSample(data) {
		e.message(profileSample, e.sample(&s))
	}
	e.numMappings += int64(len(e.dictionary.GetMappingTable()) - 1)
	e.numFunctions += int64(len(e.dictionary.GetFunctionTable()) - 1)
	e.numLocations += int64(len(e.dictionary.GetLocationTable()) - 1)
	return e.err
}

// entries yields the entries of a table with their indices, except the zero value at index 0.
func entries[T any](table []T) iter.Seq2[int64, T] {
	return func(yield func(int64, T) bool) {
		for i := 1; i < len(table) && yield(int64(i), table[i]); i++ {
		}
	}
}

// begin writes the fields common to all parts.
func (e *pprofEncoder) begin() {
	e.string("")
	unit := func(kind string) string {
		if objectsOf[kind] != "" {
			return profile.UnitBytes
		}
		return profile.UnitNanoseconds
	}
	for _, kind := range e.kinds {
		if kind == profile.TypeCPU {
			e.message(profileSampleType, e.valueType(profile.TypeSamples, profile.UnitCount))
		}
		if objects := objectsOf[kind]; objects != "" {
			e.message(profileSampleType, e.valueType(objects, profile.UnitCount))
		}
		e.message(profileSampleType, e.valueType(kind, unit(kind)))
	}
	period := e.kinds[0]
	if objectsOf[period] != "" {
		period = profile.TypeSpace
	}
	e.message(profilePeriodType, e.valueType(period, unit(e.kinds[0])))
	e.number(profileDefaultSampleType, e.string(e.kinds[0]))
}

func (e *pprofEncoder) close() error {
	e.number(profileTimeNanos, e.start)
	e.number(profileDurationNanos, e.limit-e.start)
	e.number(profilePeriod, e.periods[e.kinds[0]])
	if e.err != nil {
		return e.err
	}
	return e.to.Close()
}

// string returns the index of s in the file's string table. It writes s if the current part has not used it yet.
func (e *pprofEncoder) string(s string) int64 {
	if n, ok := e.strings[s]; ok {
		return n
	}
	return e.newString(s)
}

func (e *pprofEncoder) newString(s string) int64 {
	n := e.numStrings
	e.numStrings++
	e.strings[s] = n
	e.b = protowire.AppendTag(e.b[:0], profileStringTable, protowire.BytesType)
	e.b = protowire.AppendString(e.b, s)
	e.write()
	return n
}

func (e *pprofEncoder) message(field protowire.Number, content []byte) {
	e.b = protowire.AppendTag(e.b[:0], field, protowire.BytesType)
	e.b = protowire.AppendBytes(e.b, content)
	e.write()
}

func (e *pprofEncoder) number(field protowire.Number, n int64) {
	e.b = appendNumber(e.b[:0], field, n)
	e.write()
}

func (e *pprofEncoder) write() {
	if e.err == nil {
		_, e.err = e.to.Write(e.b)
	}
}

func (e *pprofEncoder) valueType(name, unit string) []byte {
	return appendNumber(appendNumber(nil, valueTypeType, e.string(name)), valueTypeUnit, e.string(unit))
}

// content says which information a mapping's locations have. It is written to the file so that pprof does not try
// to symbolize the mapping again.
type content struct{ functions, files, lines, inlined bool }

// writeMappings writes the mappings of files before all other mappings. pprof assumes that the first mapping is the
// program's, but the dictionary may begin with the kernel's.
func (e *pprofEncoder) writeMappings() {
	contents := make([]content, len(e.dictionary.GetMappingTable()))
	for _, l := range entries(e.dictionary.GetLocationTable()) {
		if len(l.GetLines()) == 0 {
			continue
		}
		c := &contents[l.GetMappingIndex()]
		c.functions = true
		c.inlined = c.inlined || len(l.GetLines()) > 1
		for _, line := range l.GetLines() {
			c.files = c.files || e.dictionary.GetFunctionTable()[line.GetFunctionIndex()].GetFilenameStrindex() != 0
			c.lines = c.lines || line.GetLine() != 0
		}
	}
	for _, files := range []bool{true, false} {
		for i, m := range entries(e.dictionary.GetMappingTable()) {
			name := e.text(m.GetFilenameStrindex())
			if files == (name != "" && !strings.HasPrefix(name, "[")) { // This excludes [vdso] and the kernel.
				e.message(profileMapping, e.mapping(i, m, contents[i]))
			}
		}
	}
}

func (e *pprofEncoder) mapping(i int64, m *profilespb.Mapping, c content) []byte {
	b := appendNumber(nil, mappingID, i+e.numMappings)
	b = appendNumber(b, mappingMemoryStart, int64(m.GetMemoryStart()))
	b = appendNumber(b, mappingMemoryLimit, int64(m.GetMemoryLimit()))
	b = appendNumber(b, mappingFileOffset, int64(m.GetFileOffset()))
	b = appendNumber(b, mappingFilename, e.string(e.text(m.GetFilenameStrindex())))
	b = appendNumber(b, mappingBuildID, e.string(e.buildID(m, c.functions)))
	b = appendBool(b, mappingHasFunctions, c.functions)
	b = appendBool(b, mappingHasFilenames, c.files)
	b = appendBool(b, mappingHasLineNumbers, c.lines)
	return appendBool(b, mappingHasInlineFrames, c.inlined)
}

// buildID returns the GNU build id of m or, if there is none and named is true, the Go build id. named says
// whether the mapping has function names. Without names it must not get the Go build id: pprof would compare that
// id with the GNU build id of the file, find a difference, and not symbolize the mapping.
func (e *pprofEncoder) buildID(m *profilespb.Mapping, named bool) string {
	ids := map[string]string{}
	for _, i := range m.GetAttributeIndices() {
		a := e.dictionary.GetAttributeTable()[i]
		ids[e.text(a.GetKeyStrindex())] = a.GetValue().GetStringValue()
	}
	id := ids[string(semconv.ProcessExecutableBuildIDGNUKey)]
	if id == "" && named {
		id = ids[string(semconv.ProcessExecutableBuildIDGoKey)]
	}
	return id
}

func (e *pprofEncoder) function(i int64, f *profilespb.Function) []byte {
	name := e.text(f.GetNameStrindex())
	b := appendNumber(nil, functionID, i+e.numFunctions)
	b = appendNumber(b, functionName, e.string(name))
	b = appendNumber(b, functionSystemName, e.string(cmp.Or(e.text(f.GetSystemNameStrindex()), name)))
	b = appendNumber(b, functionFilename, e.string(e.text(f.GetFilenameStrindex())))
	return appendNumber(b, functionStartLine, f.GetStartLine())
}

func (e *pprofEncoder) location(i int64, l *profilespb.Location) []byte {
	b := appendNumber(nil, locationID, i+e.numLocations)
	if m := l.GetMappingIndex(); m != 0 {
		b = appendNumber(b, locationMappingID, int64(m)+e.numMappings)
	}
	b = appendNumber(b, locationAddress, int64(l.GetAddress()))
	for _, line := range l.GetLines() {
		content := appendNumber(nil, lineFunctionID, int64(line.GetFunctionIndex())+e.numFunctions)
		b = appendMessage(b, locationLine, appendNumber(content, lineLine, line.GetLine()))
	}
	return b
}

func (e *pprofEncoder) sample(s *sample) []byte {
	var ids []byte
	for _, l := range s.locations {
		ids = protowire.AppendVarint(ids, uint64(int64(l)+e.numLocations))
	}
	var values []byte
	for _, kind := range e.kinds {
		value := s.value
		if kind != s.kind {
			value = 0
		}
		switch {
		case kind == profile.TypeCPU:
			values = protowire.AppendVarint(values, uint64(value))
		case objectsOf[kind] != "" && kind == s.kind:
			values = protowire.AppendVarint(values, uint64(s.objects))
		case objectsOf[kind] != "":
			values = protowire.AppendVarint(values, 0)
		}
		values = protowire.AppendVarint(values, uint64(value*s.unit))
	}
	b := appendMessage(nil, sampleLocationID, ids)
	b = appendMessage(b, sampleValue, values)
	for _, l := range s.labels {
		content := appendNumber(nil, labelKey, e.string(l.key))
		if l.isNumber {
			content = appendNumber(content, labelNum, l.number)
		} else {
			content = appendNumber(content, labelStr, e.string(l.text))
		}
		b = appendMessage(b, sampleLabel, content)
	}
	return b
}

func (e *pprofEncoder) text(index int32) string { return e.dictionary.GetStringTable()[index] }

// appendNumber appends a field, unless it is 0, the default.
func appendNumber(b []byte, field protowire.Number, n int64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
}

func appendBool(b []byte, field protowire.Number, v bool) []byte {
	return appendNumber(b, field, int64(protowire.EncodeBool(v)))
}

func appendMessage(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}
