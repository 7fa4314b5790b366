// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"fmt"
	"iter"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// Split divides data, which a [Builder] must have made, into parts that take at most limit bytes as protobuf.
// Each part is complete: its dictionary has the entries that its samples use, and its profiles have new ids. If
// data is small enough, Split yields only data itself. A sample that is too large for one part is divided by its
// timestamps. If it is too large even with a single timestamp, Split yields an error in its place and continues
// with the other samples. Parts are made on demand and not retained, because together they may take more memory
// than data.
func Split(data *profilespb.ProfilesData, limit int) iter.Seq2[*profilespb.ProfilesData, error] {
	return func(yield func(*profilespb.ProfilesData, error) bool) { split(data, limit, yield) }
}

func split(data *profilespb.ProfilesData, limit int, yield func(*profilespb.ProfilesData, error) bool) bool {
	size := proto.Size(data)
	if size <= limit {
		return yield(data, nil)
	}
	times := int(Samples(data))
	if times < 2 {
		return yield(nil, fmt.Errorf("one sample takes %d bytes, more than %d", size, limit))
	}
	parts := min(times, 1+size/limit)
	for i := range parts {
		if !split(extract(data, times*i/parts, times*(i+1)/parts), limit, yield) {
			return false
		}
	}
	return true
}

// Samples returns the number of samples in data, which a [Builder] must have made.
func Samples(data *profilespb.ProfilesData) (n uint64) {
	for _, p := range Each(data) {
		for _, s := range p.GetSamples() {
			n += uint64(occurrences(s))
		}
	}
	return n
}

// occurrences returns the number of samples that s stands for: one per timestamp, or 1 if it has no timestamps.
func occurrences(s *profilespb.Sample) int { return max(len(s.GetTimestampsUnixNano()), 1) }

// Each yields all profiles of data with their resources.
func Each(data *profilespb.ProfilesData) iter.Seq2[*resourcepb.Resource, *profilespb.Profile] {
	return func(yield func(*resourcepb.Resource, *profilespb.Profile) bool) {
		for _, r := range data.GetResourceProfiles() {
			for _, s := range r.GetScopeProfiles() {
				for _, p := range s.GetProfiles() {
					if !yield(r.GetResource(), p) {
						return
					}
				}
			}
		}
	}
}

// extract returns the samples of data from number first up to, but not including, number limit, with the
// dictionary entries that they need. Samples are numbered from 0 in the way [Samples] counts them.
func extract(data *profilespb.ProfilesData, first, limit int) *profilespb.ProfilesData {
	e := extractor{from: data.GetDictionary(), to: newDictionary()}
	result := &profilespb.ProfilesData{}
	position := 0 // number of the next sample
	for _, r := range data.GetResourceProfiles() {
		// Data that passes Check has one scope per resource and one profile per scope.
		scope := r.GetScopeProfiles()[0]
		p := scope.GetProfiles()[0]
		var samples []*profilespb.Sample
		// Dropped attributes are counted in the part that contains the profile's first sample.
		dropped := p.GetDroppedAttributesCount()
		if position < first {
			dropped = 0
		}
		for _, s := range p.GetSamples() {
			n := occurrences(s)
			begin, end := min(max(first-position, 0), n), min(max(limit-position, 0), n)
			if position += n; begin < end {
				samples = append(samples, e.sample(s, begin, end))
			}
		}
		if samples == nil {
			continue
		}
		result.ResourceProfiles = append(result.ResourceProfiles, &profilespb.ResourceProfiles{
			Resource:  r.GetResource(),
			SchemaUrl: r.GetSchemaUrl(),
			ScopeProfiles: []*profilespb.ScopeProfiles{{
				Scope:     scope.GetScope(),
				SchemaUrl: scope.GetSchemaUrl(),
				Profiles: []*profilespb.Profile{{
					SampleType:             e.valueType(p.GetSampleType()),
					PeriodType:             e.valueType(p.GetPeriodType()),
					Period:                 p.GetPeriod(),
					Samples:                samples,
					TimeUnixNano:           p.GetTimeUnixNano(),
					DurationNano:           p.GetDurationNano(),
					ProfileId:              newProfileID(),
					DroppedAttributesCount: dropped,
					AttributeIndices:       e.attributes(p.GetAttributeIndices()),
				}},
			}},
		})
	}
	result.Dictionary = &e.to.tables
	return result
}

// extractor copies entries on demand from one dictionary to another. The first dictionary must not have
// duplicates.
type extractor struct {
	from *profilespb.ProfilesDictionary
	to   *dictionary
	// These map indices in from to indices in to.
	mappings, locations, functions, links, stacks, attributeTable map[int32]int32
}

// copyEntry returns the new index of the entry that had index i. On the first call for i, it calls copyOf to
// make the new entry and adds it to table.
func copyEntry[T any](indices *map[int32]int32, i int32, table *[]T, copyOf func() T) int32 {
	if i == 0 {
		return 0
	}
	if j, ok := (*indices)[i]; ok {
		return j
	}
	if *indices == nil {
		*indices = map[int32]int32{}
	}
	j := add(table, copyOf())
	(*indices)[i] = j
	return j
}

func (e *extractor) string(i int32) int32 { return e.to.string(e.from.GetStringTable()[i]) }

func (e *extractor) valueType(t *profilespb.ValueType) *profilespb.ValueType {
	return &profilespb.ValueType{TypeStrindex: e.string(t.GetTypeStrindex()), UnitStrindex: e.string(t.GetUnitStrindex())}
}

// sample returns a copy of s. If s has timestamps, the copy has those from number first up to, but not
// including, number limit.
func (e *extractor) sample(s *profilespb.Sample, first, limit int) *profilespb.Sample {
	times := s.GetTimestampsUnixNano()
	return &profilespb.Sample{
		StackIndex:         e.stack(s.GetStackIndex()),
		AttributeIndices:   e.attributes(s.GetAttributeIndices()),
		LinkIndex:          e.link(s.GetLinkIndex()),
		Values:             s.GetValues(),
		TimestampsUnixNano: times[min(first, len(times)):min(limit, len(times))],
	}
}

func (e *extractor) stack(i int32) int32 {
	return copyEntry(&e.stacks, i, &e.to.tables.StackTable, func() *profilespb.Stack {
		return &profilespb.Stack{LocationIndices: mapIndices(e.from.GetStackTable()[i].GetLocationIndices(), e.location)}
	})
}

func (e *extractor) location(i int32) int32 {
	return copyEntry(&e.locations, i, &e.to.tables.LocationTable, func() *profilespb.Location {
		l := e.from.GetLocationTable()[i]
		c := &profilespb.Location{
			MappingIndex:     e.mapping(l.GetMappingIndex()),
			Address:          l.GetAddress(),
			AttributeIndices: e.attributes(l.GetAttributeIndices()),
		}
		for _, line := range l.GetLines() {
			c.Lines = append(c.Lines, &profilespb.Line{FunctionIndex: e.function(line.GetFunctionIndex()), Line: line.GetLine(), Column: line.GetColumn()})
		}
		return c
	})
}

func (e *extractor) function(i int32) int32 {
	return copyEntry(&e.functions, i, &e.to.tables.FunctionTable, func() *profilespb.Function {
		f := e.from.GetFunctionTable()[i]
		return &profilespb.Function{
			NameStrindex:       e.string(f.GetNameStrindex()),
			SystemNameStrindex: e.string(f.GetSystemNameStrindex()),
			FilenameStrindex:   e.string(f.GetFilenameStrindex()),
			StartLine:          f.GetStartLine(),
		}
	})
}

func (e *extractor) mapping(i int32) int32 {
	return copyEntry(&e.mappings, i, &e.to.tables.MappingTable, func() *profilespb.Mapping {
		m := e.from.GetMappingTable()[i]
		return &profilespb.Mapping{
			MemoryStart: m.GetMemoryStart(), MemoryLimit: m.GetMemoryLimit(), FileOffset: m.GetFileOffset(),
			FilenameStrindex: e.string(m.GetFilenameStrindex()),
			AttributeIndices: e.attributes(m.GetAttributeIndices()),
		}
	})
}

func (e *extractor) link(i int32) int32 {
	return copyEntry(&e.links, i, &e.to.tables.LinkTable, func() *profilespb.Link { return e.from.GetLinkTable()[i] })
}

func (e *extractor) attributes(indices []int32) []int32 {
	return mapIndices(indices, func(i int32) int32 {
		return copyEntry(&e.attributeTable, i, &e.to.tables.AttributeTable, func() *profilespb.KeyValueAndUnit {
			a := e.from.GetAttributeTable()[i]
			return &profilespb.KeyValueAndUnit{KeyStrindex: e.string(a.GetKeyStrindex()), Value: a.GetValue(), UnitStrindex: e.string(a.GetUnitStrindex())}
		})
	})
}

func mapIndices(indices []int32, newIndex func(int32) int32) []int32 {
	if len(indices) == 0 {
		return nil
	}
	mapped := make([]int32, len(indices))
	for n, i := range indices {
		mapped[n] = newIndex(i)
	}
	return mapped
}
