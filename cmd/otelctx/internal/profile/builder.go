// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// ScopeName is the instrumentation scope of the profiles.
const ScopeName = "github.com/otelctx/otelctx/cmd/otelctx"

// A sample counts the times it was taken; between two of them there is a period of CPU
// time. The OpenTelemetry eBPF profiler shapes its profiles in the same way, and so backends
// know it.
const (
	typeCPU         = "cpu"
	unitNanoseconds = "nanoseconds"
	typeSamples     = "samples"
	unitCount       = "count"
	// Profiles of wall-clock time have no times of single samples, but how long each lasted.
	typeWall = "wall"
)

// profileIDSize is in bytes.
const profileIDSize = 16

// Options are about a whole recording.
type Options struct {
	// Start is when the recording began.
	Start time.Time
	// Frequency is how many samples are taken in a second of CPU time.
	Frequency int
	// Version is that of the scope, and may be empty.
	Version string
	// Wall makes profiles of wall-clock time: samples are added by [Builder.AddTime] alone.
	Wall bool
}

// Resource is what a profile is about. Those with the same attributes and schema URL, of which as many attributes were
// left out, are equal (==), in whatever order the attributes were.
type Resource struct{ encoded, schemaURL string }

// NewResource returns the resource with these attributes, which may be a foreign process's,
// and how many of them had to be left out, which the resource says too. Of several with one key the last counts.
func NewResource(attributes []*commonpb.KeyValue, schemaURL string) (_ Resource, dropped int) {
	valid, dropped := validAttributes(attributes, 0)
	encoded, err := marshal.Marshal(&resourcepb.Resource{Attributes: valid, DroppedAttributesCount: uint32(dropped)})
	if err != nil {
		panic("profile: valid attributes do not encode: " + err.Error())
	}
	return Resource{encoded: string(encoded), schemaURL: validText(schemaURL)}, dropped
}

// marshal gives equal messages equal bytes.
var marshal = proto.MarshalOptions{Deterministic: true}

// unique returns attributes by key, the last of each.
func unique(attributes []*commonpb.KeyValue) []*commonpb.KeyValue {
	if len(attributes) < 2 {
		return attributes
	}
	sorted := slices.Clone(attributes)
	slices.Reverse(sorted)
	slices.SortStableFunc(sorted, func(a, b *commonpb.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return slices.CompactFunc(sorted, func(a, b *commonpb.KeyValue) bool { return a.GetKey() == b.GetKey() })
}

// Link is the span that a sample belongs to.
type Link struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// Sample is a kind of sample: what a CPU was running, at whatever times.
type Sample struct {
	// Stack is the leaf first. It is not kept.
	Stack []*symbols.Location
	// Link is nil if the sample belongs to no known span. It is not kept.
	Link *Link
	// Attributes say more, and may be a foreign process's: those that profiles cannot have
	// are left out. Of several with one key the last counts. They are not kept.
	Attributes []*commonpb.KeyValue
}

// Builder makes profiles of samples. What it holds grows by the different stacks,
// links and attributes, and by 16 bytes a sample. It is not safe for concurrent use.
type Builder struct {
	options     Options
	period      int64 // nanoseconds of CPU time that a sample stands for
	first, last int64 // times of samples in Unix nanoseconds; 0 without samples
	dictionary  *dictionary
	byResource  map[Resource]*resourceSamples
	resources   []*resourceSamples
	dropped     uint64
}

// resourceSamples are the samples of one resource.
type resourceSamples struct {
	resource Resource
	id       []byte
	byKey    map[sampleKey]*combined
	samples  []*combined
	weight   int64 // of all samples: how many, or their time
	dropped  uint32
}

// sampleKey is the identity of a sample in the format.
type sampleKey struct{ stack, attributes, link int32 }

// combined is all samples with one identity.
type combined struct {
	sampleKey
	times []uint64
	value int64 // nanoseconds of wall-clock time
}

// New returns a builder without samples. A frequency below 1 counts as 1.
func New(options Options) *Builder {
	return &Builder{
		options:    options,
		period:     int64(time.Second) / int64(max(options.Frequency, 1)),
		dictionary: newDictionary(),
		byResource: map[Resource]*resourceSamples{},
	}
}

// Add adds the samples of one kind that were taken at these times. It may be called again
// for the kind.
func (b *Builder) Add(resource Resource, s Sample, times ...time.Time) {
	c := b.combined(resource, s, int64(len(times)))
	for _, one := range times {
		at := max(one.UnixNano(), 1)
		c.times = append(c.times, uint64(at))
		if b.first == 0 || at < b.first {
			b.first = at
		}
		b.last = max(b.last, at)
	}
}

// AddTime adds wall-clock time that went by in samples of one kind, for a builder with
// [Options.Wall].
func (b *Builder) AddTime(resource Resource, s Sample, d time.Duration) {
	b.combined(resource, s, int64(d)).value += int64(d)
}

// combined returns what samples of one kind are added to, which add weight to their resource.
func (b *Builder) combined(resource Resource, s Sample, weight int64) *combined {
	r, ok := b.byResource[resource]
	if !ok {
		r = &resourceSamples{resource: resource, id: newProfileID(), byKey: map[sampleKey]*combined{}}
		b.byResource[resource] = r
		b.resources = append(b.resources, r)
	}
	attributes, dropped := validAttributes(s.Attributes, 0)
	b.dropped += uint64(dropped)
	r.dropped += uint32(dropped)
	r.weight += weight
	key := sampleKey{
		stack:      b.dictionary.stack(s.Stack),
		attributes: b.dictionary.attributeSet(attributes),
		link:       b.dictionary.link(s.Link),
	}
	c, ok := r.byKey[key]
	if !ok {
		c = &combined{sampleKey: key}
		r.byKey[key] = c
		r.samples = append(r.samples, c)
	}
	return c
}

// Dropped returns how many attributes were left out, since profiles cannot have them: those
// of each call of Add once.
func (b *Builder) Dropped() uint64 { return b.dropped }

func newProfileID() []byte {
	id := make([]byte, profileIDSize)
	_, _ = rand.Read(id) // never fails
	return id
}

// Data returns a profile of all samples so far for each resource, the resource with the most samples first, and
// the samples in the order in which they came. end is when the recording ended; samples from before its
// start or after its end, by a clock's difference, widen its range. More samples may be
// added afterwards, and what was returned does not change. The messages of the
// dictionary are shared between calls, and nobody may change them.
func (b *Builder) Data(end time.Time) *profilespb.ProfilesData {
	start, limit := b.options.Start.UnixNano(), end.UnixNano()
	if b.first != 0 {
		start, limit = min(start, b.first), max(limit, b.last+1)
	}
	limit = max(limit, start)
	data := &profilespb.ProfilesData{}
	var sampleType, periodType *profilespb.ValueType
	if len(b.resources) > 0 { // a dictionary has no strings that nothing uses
		sampleType = b.dictionary.valueType(typeSamples, unitCount)
		periodType = b.dictionary.valueType(typeCPU, unitNanoseconds)
		if b.options.Wall {
			sampleType = b.dictionary.valueType(typeWall, unitNanoseconds)
			periodType = sampleType
		}
	}
	resources := slices.SortedStableFunc(slices.Values(b.resources), func(a, b *resourceSamples) int { return cmp.Compare(b.weight, a.weight) })
	for _, r := range resources {
		data.ResourceProfiles = append(data.ResourceProfiles, &profilespb.ResourceProfiles{
			Resource:  r.resource.message(),
			SchemaUrl: r.resource.schemaURL,
			ScopeProfiles: []*profilespb.ScopeProfiles{{
				Scope:     &commonpb.InstrumentationScope{Name: ScopeName, Version: b.options.Version},
				SchemaUrl: semconv.SchemaURL,
				Profiles: []*profilespb.Profile{{
					SampleType:   sampleType,
					PeriodType:   periodType,
					Period:       b.period,
					Samples:      r.messages(b.dictionary),
					TimeUnixNano: uint64(start),
					DurationNano: uint64(limit - start),
					ProfileId:    r.id,

					DroppedAttributesCount: r.dropped,
				}},
			}},
		})
	}
	data.Dictionary = b.dictionary.message()
	return data
}

func (r Resource) message() *resourcepb.Resource {
	m := &resourcepb.Resource{}
	if err := proto.Unmarshal([]byte(r.encoded), m); err != nil {
		panic("profile: a resource that was encoded does not decode: " + err.Error())
	}
	return m
}

// messages returns the samples with their times, each of which counts as 1, or their values.
func (r *resourceSamples) messages(d *dictionary) []*profilespb.Sample {
	samples := make([]*profilespb.Sample, len(r.samples))
	for i, c := range r.samples {
		times := slices.Clone(c.times)
		slices.Sort(times)
		samples[i] = &profilespb.Sample{
			StackIndex:         c.stack,
			AttributeIndices:   d.attributeSets[c.attributes],
			LinkIndex:          c.link,
			TimestampsUnixNano: times,
		}
		if c.value != 0 {
			samples[i].Values = []int64{c.value}
		}
	}
	return samples
}

// appendIndex appends an index to a key.
func appendIndex(key []byte, index int32) []byte {
	return binary.LittleEndian.AppendUint32(key, uint32(index))
}
