// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"compress/gzip"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/pprof/profile"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protowire"

	otlp "github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// The fields of pprof's messages, profile.proto of github.com/google/pprof.
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

// pprofEncoder writes one pprof profile incrementally, without retaining what has been written. The fields
// of a message may be in any order, so each part has its own tables, whose ids continue those of the
// previous part. Strings are written once per part: most are span ids, and those of a long recording would
// fill the memory. The package that reads the format can only write profiles that are in memory as a whole.
type pprofEncoder struct {
	to      *gzip.Writer
	strings map[string]int64
	// Numbers of entries so far. Strings include the empty one, the first.
	numStrings, numMappings, numLocations, numFunctions int64

	begun         bool
	start, period int64
	limit         int64
	err           error
	b             []byte // scratch space
}

func newPprofEncoder(to io.Writer) *pprofEncoder {
	compressed, err := gzip.NewWriterLevel(to, gzip.BestSpeed) // as package runtime/pprof
	if err != nil {
		panic("export: a level that gzip has: " + err.Error())
	}
	return &pprofEncoder{to: compressed, strings: map[string]int64{}}
}

func (e *pprofEncoder) add(data *profilespb.ProfilesData) error {
	p, err := otlp.Pprof(data)
	if err != nil {
		return err
	}
	e.strings = map[string]int64{"": 0}
	if !e.begun {
		e.begin(p)
	}
	if len(p.Sample) > 0 {
		if e.start == 0 || p.TimeNanos < e.start {
			e.start = p.TimeNanos
		}
		e.period, e.limit = p.Period, max(e.limit, p.TimeNanos+p.DurationNanos)
	}
	for _, m := range p.Mapping {
		e.message(profileMapping, e.mapping(m))
	}
	for _, f := range p.Function {
		e.message(profileFunction, e.function(f))
	}
	for _, l := range p.Location {
		e.message(profileLocation, e.location(l))
	}
	for _, s := range p.Sample {
		e.message(profileSample, e.sample(s))
	}
	e.numMappings += int64(len(p.Mapping))
	e.numFunctions += int64(len(p.Function))
	e.numLocations += int64(len(p.Location))
	return e.err
}

// begin writes the fields common to all parts.
func (e *pprofEncoder) begin(p *profile.Profile) {
	e.begun = true
	e.newString("")
	for _, t := range p.SampleType {
		e.message(profileSampleType, e.valueType(t))
	}
	e.message(profilePeriodType, e.valueType(p.PeriodType))
	e.number(profileDefaultSampleType, e.string(p.DefaultSampleType))
}

func (e *pprofEncoder) close() error {
	if !e.begun {
		p, err := otlp.Pprof(otlp.New(otlp.Options{}).Data(time.Time{}))
		if err != nil {
			return err
		}
		e.begin(p)
	}
	e.number(profileTimeNanos, e.start)
	e.number(profileDurationNanos, e.limit-e.start)
	e.number(profilePeriod, e.period)
	if e.err != nil {
		return e.err
	}
	return e.to.Close()
}

// string returns the number of s, which it writes if it is new.
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

func (e *pprofEncoder) valueType(t *profile.ValueType) []byte {
	return appendNumber(appendNumber(nil, valueTypeType, e.string(t.Type)), valueTypeUnit, e.string(t.Unit))
}

func (e *pprofEncoder) mapping(m *profile.Mapping) []byte {
	b := appendNumber(nil, mappingID, int64(m.ID)+e.numMappings)
	b = appendNumber(b, mappingMemoryStart, int64(m.Start))
	b = appendNumber(b, mappingMemoryLimit, int64(m.Limit))
	b = appendNumber(b, mappingFileOffset, int64(m.Offset))
	b = appendNumber(b, mappingFilename, e.string(m.File))
	b = appendNumber(b, mappingBuildID, e.string(m.BuildID))
	b = appendBool(b, mappingHasFunctions, m.HasFunctions)
	b = appendBool(b, mappingHasFilenames, m.HasFilenames)
	b = appendBool(b, mappingHasLineNumbers, m.HasLineNumbers)
	return appendBool(b, mappingHasInlineFrames, m.HasInlineFrames)
}

func (e *pprofEncoder) function(f *profile.Function) []byte {
	b := appendNumber(nil, functionID, int64(f.ID)+e.numFunctions)
	b = appendNumber(b, functionName, e.string(f.Name))
	b = appendNumber(b, functionSystemName, e.string(f.SystemName))
	b = appendNumber(b, functionFilename, e.string(f.Filename))
	return appendNumber(b, functionStartLine, f.StartLine)
}

func (e *pprofEncoder) location(l *profile.Location) []byte {
	b := appendNumber(nil, locationID, int64(l.ID)+e.numLocations)
	if l.Mapping != nil {
		b = appendNumber(b, locationMappingID, int64(l.Mapping.ID)+e.numMappings)
	}
	b = appendNumber(b, locationAddress, int64(l.Address))
	for _, line := range l.Line {
		content := appendNumber(nil, lineFunctionID, int64(line.Function.ID)+e.numFunctions)
		b = appendMessage(b, locationLine, appendNumber(content, lineLine, line.Line))
	}
	return b
}

func (e *pprofEncoder) sample(s *profile.Sample) []byte {
	var ids, values []byte
	for _, l := range s.Location {
		ids = protowire.AppendVarint(ids, l.ID+uint64(e.numLocations))
	}
	for _, v := range s.Value {
		values = protowire.AppendVarint(values, uint64(v))
	}
	b := appendMessage(nil, sampleLocationID, ids)
	b = appendMessage(b, sampleValue, values)
	for _, key := range slices.Sorted(maps.Keys(s.Label)) {
		for _, value := range s.Label[key] {
			label := appendNumber(nil, labelKey, e.string(key))
			b = appendMessage(b, sampleLabel, appendNumber(label, labelStr, e.string(value)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.NumLabel)) {
		for _, value := range s.NumLabel[key] {
			label := appendNumber(nil, labelKey, e.string(key))
			b = appendMessage(b, sampleLabel, appendNumber(label, labelNum, value))
		}
	}
	return b
}

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
