// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"math"
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

// These are the types and units of values. There are several kinds of profile, which [KindOf] distinguishes. In a
// profile of CPU time, a sample has timestamps, each of which stands for one period of CPU time. The sample
// has no explicit value, which means that its value is the number of timestamps. The OpenTelemetry eBPF profiler does the
// same, so backends understand it. In a profile of wall-clock time, the value of a sample is a duration, and in
// profiles of allocations, or of memory in use, it is a number of objects or of bytes. These have no timestamps. They come in
// pairs with the same samples: first the profile of the objects, then that of the bytes. They are named as in Go's heap
// profiles.
const (
	TypeCPU          = "cpu"
	TypeSamples      = "samples"
	TypeWall         = "wall"
	TypeAllocObjects = "alloc_objects"
	TypeAllocSpace   = "alloc_space"
	TypeInuseObjects = "inuse_objects"
	TypeInuseSpace   = "inuse_space"
	TypeSpace        = "space"
	UnitCount        = "count"
	UnitNanoseconds  = "nanoseconds"
	UnitBytes        = "bytes"
)

// KindOf returns what a profile measures: TypeCPU, TypeWall, or one of the types of allocations and of memory in use.
func KindOf(d *profilespb.ProfilesDictionary, p *profilespb.Profile) string {
	switch kind := d.GetStringTable()[p.GetSampleType().GetTypeStrindex()]; kind {
	case TypeWall, TypeAllocObjects, TypeAllocSpace, TypeInuseObjects, TypeInuseSpace:
		return kind
	default:
		return TypeCPU
	}
}

// maxKinds is the maximum number of profiles of a resource.
const maxKinds = 2

const profileIDSize = 16

// Options apply to a whole recording.
type Options struct {
	// Start is the start of the recording.
	Start time.Time
	// Frequency is the number of samples per second of CPU time.
	Frequency int
	// Version is the version of the instrumentation scope; it may be empty.
	Version string
	// Wall selects profiles of wall-clock time. Samples must then be added with [Builder.AddTime] only.
	Wall bool
	// Allocations selects profiles of allocations, and Live profiles of memory in use. Samples must then be added with
	// [Builder.AddAllocated] only.
	Allocations, Live bool
}

// Resource is the resource of a profile. Resources with the same attributes, schema URL and number of
// dropped attributes are equal (==). The order of the attributes does not matter.
type Resource struct{ encoded, schemaURL string }

// NewResource returns the resource with the given attributes, which may be untrusted. If several attributes
// have the same key, the last one counts. NewResource drops attributes that profiles cannot represent. Their
// number is part of the resource, and is also returned.
func NewResource(attributes []*commonpb.KeyValue, schemaURL string) (_ Resource, dropped int) {
	valid, dropped := validAttributes(attributes, 0)
	encoded, err := marshal.Marshal(&resourcepb.Resource{Attributes: valid, DroppedAttributesCount: uint32(dropped)})
	if err != nil {
		panic("profile: valid attributes do not encode: " + err.Error())
	}
	return Resource{encoded: string(encoded), schemaURL: validText(schemaURL)}, dropped
}

// marshal encodes equal messages to equal bytes.
var marshal = proto.MarshalOptions{Deterministic: true}

// unique returns attributes sorted by key, with only the last attribute of each key.
func unique(attributes []*commonpb.KeyValue) []*commonpb.KeyValue {
	if len(attributes) < 2 {
		return attributes
	}
	sorted := slices.Clone(attributes)
	slices.Reverse(sorted)
	slices.SortStableFunc(sorted, func(a, b *commonpb.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return slices.CompactFunc(sorted, func(a, b *commonpb.KeyValue) bool { return a.GetKey() == b.GetKey() })
}

// Builder builds profiles from samples. Its memory grows with the number of different stacks, links and
// attributes, and by up to 16 bytes per sample of CPU time. When the total size of names and attributes reaches 64
// MiB, new ones are left out. A Builder is not safe for concurrent use.
type Builder struct {
	options     Options
	period      int64 // nanoseconds of CPU time that a sample stands for
	first, last int64 // times of the earliest and latest samples in Unix nanoseconds, or 0
	dictionary  *dictionary
	byResource  map[Resource]*resourceSamples
	resources   []*resourceSamples
	dropped     uint64
}

type resourceSamples struct {
	resource Resource
	ids      [maxKinds][]byte // of the profiles
	byKey    map[sampleKey]*combined
	samples  []*combined
	weight   int64 // number of samples, total wall-clock time in nanoseconds, or bytes
	dropped  uint32
}

// sampleKey identifies a sample in the format.
type sampleKey struct{ stack, attributes, link int32 }

// combined holds all samples with one identity.
type combined struct {
	sampleKey
	times          []uint64
	value          int64   // nanoseconds of wall-clock time
	objects, bytes float64 // allocated, or in use
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

// Add adds one sample for each of the given times. The samples share the other arguments, and later calls may
// repeat these arguments.
//
// The stack has the innermost frame first. traceID and spanID identify the active span; they are zero if there
// is none. The attributes may be untrusted: Add drops attributes that profiles cannot represent, and if several
// have the same key, the last one counts. Add does not retain the arguments.
func (b *Builder) Add(resource Resource, stack []*symbols.Location, traceID [16]byte, spanID [8]byte,
	attributes []*commonpb.KeyValue, times ...time.Time,
) {
	c := b.combined(resource, stack, traceID, spanID, attributes, int64(len(times)))
	for _, one := range times {
		nanos := max(one.UnixNano(), 1)
		c.times = append(c.times, uint64(nanos))
		if b.first == 0 || nanos < b.first {
			b.first = nanos
		}
		b.last = max(b.last, nanos)
	}
}

// AddTime is like [Builder.Add], but adds the wall-clock time d. The builder must have [Options.Wall] set.
func (b *Builder) AddTime(resource Resource, stack []*symbols.Location, traceID [16]byte, spanID [8]byte,
	attributes []*commonpb.KeyValue, d time.Duration,
) {
	b.combined(resource, stack, traceID, spanID, attributes, int64(d)).value += int64(d)
}

// AddAllocated is like [Builder.Add], but adds objects and their bytes, which must not be negative. The builder must have
// [Options.Allocations] or [Options.Live] set.
func (b *Builder) AddAllocated(resource Resource, stack []*symbols.Location, traceID [16]byte, spanID [8]byte,
	attributes []*commonpb.KeyValue, objects, bytes float64,
) {
	c := b.combined(resource, stack, traceID, spanID, attributes, int64(bytes))
	c.objects += objects
	c.bytes += bytes
}

// combined returns the entry for a sample and adds weight to its resource.
func (b *Builder) combined(resource Resource, stack []*symbols.Location, traceID [16]byte, spanID [8]byte,
	attributes []*commonpb.KeyValue, weight int64,
) *combined {
	r, ok := b.byResource[resource]
	if !ok {
		r = &resourceSamples{resource: resource, ids: [maxKinds][]byte{newProfileID(), newProfileID()}, byKey: map[sampleKey]*combined{}}
		b.byResource[resource] = r
		b.resources = append(b.resources, r)
	}
	attributes, dropped := validAttributes(attributes, 0)
	b.dropped += uint64(dropped)
	r.dropped += uint32(dropped)
	r.weight += weight
	key := sampleKey{
		stack:      b.dictionary.stack(stack),
		attributes: b.dictionary.attributeSet(attributes),
		link:       b.dictionary.link(linkKey{traceID, spanID}),
	}
	c, ok := r.byKey[key]
	if !ok {
		c = &combined{sampleKey: key}
		r.byKey[key] = c
		r.samples = append(r.samples, c)
	}
	return c
}

// Empty reports whether no samples have been added.
func (b *Builder) Empty() bool { return len(b.resources) == 0 }

// Dropped returns how many sample attributes were dropped because profiles cannot represent them. It does not count
// attributes that were left out for lack of room. Each call of Add or AddTime counts its attributes once, even if it
// adds several samples.
func (b *Builder) Dropped() uint64 { return b.dropped }

func newProfileID() []byte {
	id := make([]byte, profileIDSize)
	_, _ = rand.Read(id) // never fails
	return id
}

// Data returns a profile for each resource, or two of allocations or memory in use, with all samples added so far. The
// resource with the most samples, wall-clock time or bytes comes first, and samples are in the order of their first
// occurrence. end is the end of the recording. If clocks differ, a sample may precede the start or follow the end; the range
// of the profile then includes its time as well. Samples added later do not change the returned data. The messages in the dictionary are shared
// between calls and must not be changed.
func (b *Builder) Data(end time.Time) *profilespb.ProfilesData {
	start, limit := b.options.Start.UnixNano(), end.UnixNano()
	if b.first != 0 {
		start, limit = min(start, b.first), max(limit, b.last+1)
	}
	limit = max(limit, start)
	data := &profilespb.ProfilesData{}
	if len(b.resources) == 0 { // the dictionary must not have unused strings
		data.Dictionary = b.dictionary.message()
		return data
	}
	kinds := b.kinds()
	resources := slices.SortedStableFunc(slices.Values(b.resources), func(a, b *resourceSamples) int { return cmp.Compare(b.weight, a.weight) })
	for _, r := range resources {
		dropped := r.dropped
		for i, kind := range kinds {
			data.ResourceProfiles = append(data.ResourceProfiles, &profilespb.ResourceProfiles{
				Resource:  r.resource.message(),
				SchemaUrl: r.resource.schemaURL,
				ScopeProfiles: []*profilespb.ScopeProfiles{{
					Scope:     &commonpb.InstrumentationScope{Name: ScopeName, Version: b.options.Version},
					SchemaUrl: semconv.SchemaURL,
					Profiles: []*profilespb.Profile{{
						SampleType:   kind.sampleType,
						PeriodType:   kind.periodType,
						Period:       kind.period,
						Samples:      r.messages(b.dictionary, kind.value),
						TimeUnixNano: uint64(start),
						DurationNano: uint64(limit - start),
						ProfileId:    r.ids[i],

						DroppedAttributesCount: dropped,
					}},
				}},
			})
			dropped = 0 // They are counted in the first profile.
		}
	}
	data.Dictionary = b.dictionary.message()
	return data
}

// kind is what a profile measures.
type kind struct {
	sampleType, periodType *profilespb.ValueType
	period                 int64
	// value returns the value of a sample, or is nil if samples have timestamps.
	value func(*combined) float64
}

// kinds returns what the profiles of each resource measure.
func (b *Builder) kinds() []kind {
	d := b.dictionary
	memory := func(objects, bytes string) []kind {
		space := d.valueType(TypeSpace, UnitBytes)
		return []kind{
			{d.valueType(objects, UnitCount), space, 1, func(c *combined) float64 { return c.objects }},
			{d.valueType(bytes, UnitBytes), space, 1, func(c *combined) float64 { return c.bytes }},
		}
	}
	switch {
	case b.options.Allocations:
		return memory(TypeAllocObjects, TypeAllocSpace)
	case b.options.Live:
		return memory(TypeInuseObjects, TypeInuseSpace)
	case b.options.Wall:
		wall := d.valueType(TypeWall, UnitNanoseconds)
		return []kind{{wall, wall, b.period, func(c *combined) float64 { return float64(c.value) }}}
	default:
		return []kind{{d.valueType(TypeSamples, UnitCount), d.valueType(TypeCPU, UnitNanoseconds), b.period, nil}}
	}
}

func (r Resource) message() *resourcepb.Resource {
	m := &resourcepb.Resource{}
	if err := proto.Unmarshal([]byte(r.encoded), m); err != nil {
		panic("profile: a resource that was encoded does not decode: " + err.Error())
	}
	return m
}

// messages returns the samples as messages, with timestamps if value is nil, and otherwise with values. Values are rounded
// so that those of each stack add up: an estimate of 1.4 objects in each of ten spans must not become 10 objects.
func (r *resourceSamples) messages(d *dictionary, value func(*combined) float64) []*profilespb.Sample {
	samples := make([]*profilespb.Sample, len(r.samples))
	carried := map[int32]float64{} // what rounding has left of the previous samples of a stack
	for i, c := range r.samples {
		samples[i] = &profilespb.Sample{
			StackIndex:       c.stack,
			AttributeIndices: d.attributeSets[c.attributes],
			LinkIndex:        c.link,
		}
		if value != nil {
			exact := value(c) + carried[c.stack]
			rounded := math.Floor(exact + 0.5) // never negative
			carried[c.stack] = exact - rounded
			samples[i].Values = []int64{int64(rounded)}
			continue
		}
		samples[i].TimestampsUnixNano = slices.Sorted(slices.Values(c.times))
	}
	return samples
}

func appendIndex(key []byte, index int32) []byte {
	return binary.LittleEndian.AppendUint32(key, uint32(index))
}
