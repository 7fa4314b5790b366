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
	times := 0
	for _, p := range Each(data) {
		for _, s := range p.GetSamples() {
			times += occurrences(s)
		}
	}
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

// Samples returns the number of samples in data, which a [Builder] must have made. Those of allocations and of memory in
// use are counted once, although two profiles have them.
func Samples(data *profilespb.ProfilesData) (n uint64) {
	for _, p := range Each(data) {
		if kind := KindOf(data.GetDictionary(), p); kind == TypeAllocObjects || kind == TypeInuseObjects {
			continue
		}
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
// dictionary entries that they need. Samples are numbered from 0 in the order of the profiles, one for each timestamp.
func extract(data *profilespb.ProfilesData, first, limit int) *profilespb.ProfilesData {
	selected := &profilespb.ProfilesData{Dictionary: data.GetDictionary()}
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
			n, times := occurrences(s), s.GetTimestampsUnixNano()
			begin, end := min(max(first-position, 0), n), min(max(limit-position, 0), n)
			if position += n; begin < end {
				samples = append(samples, &profilespb.Sample{
					StackIndex: s.GetStackIndex(), AttributeIndices: s.GetAttributeIndices(), LinkIndex: s.GetLinkIndex(), Values: s.GetValues(),
					TimestampsUnixNano: times[min(begin, len(times)):min(end, len(times))],
				})
			}
		}
		if samples == nil {
			continue
		}
		selected.ResourceProfiles = append(selected.ResourceProfiles, &profilespb.ResourceProfiles{
			Resource:  r.GetResource(),
			SchemaUrl: r.GetSchemaUrl(),
			ScopeProfiles: []*profilespb.ScopeProfiles{{
				Scope:     scope.GetScope(),
				SchemaUrl: scope.GetSchemaUrl(),
				Profiles: []*profilespb.Profile{{
					SampleType:             p.GetSampleType(),
					PeriodType:             p.GetPeriodType(),
					Period:                 p.GetPeriod(),
					Samples:                samples,
					TimeUnixNano:           p.GetTimeUnixNano(),
					DurationNano:           p.GetDurationNano(),
					ProfileId:              newProfileID(),
					DroppedAttributesCount: dropped,
					AttributeIndices:       p.GetAttributeIndices(),
				}},
			}},
		})
	}
	return new(Tables).Append(selected)
}
