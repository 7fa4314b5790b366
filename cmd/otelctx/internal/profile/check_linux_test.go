// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// parts holds the messages that the mutations in TestCheck change.
type parts struct {
	data       *profilespb.ProfilesData
	dictionary *profilespb.ProfilesDictionary
	resource   *profilespb.ResourceProfiles
	scope      *profilespb.ScopeProfiles
	profile    *profilespb.Profile
	sample     *profilespb.Sample // with a link and attributes
}

// These methods return the table entries that the mutations change.
func (p parts) mapping() *profilespb.Mapping   { return p.dictionary.GetMappingTable()[1] }
func (p parts) location() *profilespb.Location { return p.dictionary.GetLocationTable()[1] }
func (p parts) function() *profilespb.Function { return p.dictionary.GetFunctionTable()[1] }
func (p parts) link() *profilespb.Link         { return p.dictionary.GetLinkTable()[1] }
func (p parts) stack() *profilespb.Stack       { return p.dictionary.GetStackTable()[1] }
func (p parts) attribute() *profilespb.KeyValueAndUnit {
	return p.dictionary.GetAttributeTable()[p.sample.GetAttributeIndices()[0]]
}

func partsOf(t *testing.T, data *profilespb.ProfilesData) parts {
	t.Helper()
	p := parts{data: data, dictionary: data.GetDictionary(), resource: data.GetResourceProfiles()[0]}
	p.scope = p.resource.GetScopeProfiles()[0]
	p.profile = p.scope.GetProfiles()[0]
	for _, s := range p.profile.GetSamples() {
		if s.GetLinkIndex() != 0 && len(s.GetAttributeIndices()) == 2 && len(s.GetTimestampsUnixNano()) > 1 {
			p.sample = s
		}
	}
	require.NotNil(t, p.sample)
	return p
}

// far is an index outside all tables.
const far = 1 << 20

// TestCheckIsReadOnly checks that Check does not modify data, even if it has to sort attributes to find
// duplicates.
func TestCheckIsReadOnly(t *testing.T) {
	data := record(t)
	data.GetDictionary().GetMappingTable()[1].AttributeIndices = []int32{2, 1}
	before := proto.CloneOf(data)
	_ = Check(data)
	assert.True(t, proto.Equal(before, data))
}

// promises lists the test cases that break only a guarantee of this package, not a rule of the format.
var promises = map[string]bool{
	"zero link": true, "trace id is valid": true, "span id is valid": true, "line of a function": true, "function's name is set": true,
	"attribute's value is not a string index": true, "resource's keys are not string indices": true, "frame type is known": true,
	"one profile for a resource": true, "one scope": true, "one profile": true, "no payload": true,
	"sample type is samples": true, "sample type is set": true, "period type is cpu": true, "values instead of times": true,
}

// TestCheck checks that Check reports each kind of problem. Each case introduces one problem into a valid
// recording.
func TestCheck(t *testing.T) {
	good := record(t)
	for _, m := range []struct {
		rule, want string
		mutate     func(p parts)
	}{
		{"dictionary", "no dictionary", func(p parts) { p.data.Dictionary = nil }},

		{"zero mapping", "mapping table: index 0", func(p parts) { p.dictionary.MappingTable[0].MemoryStart = 1 }},
		{"zero location", "location table: index 0", func(p parts) { p.dictionary.LocationTable[0].Address = 1 }},
		{"zero function", "function table: index 0", func(p parts) { p.dictionary.FunctionTable[0].StartLine = 1 }},
		{"zero link", "link table: index 0", func(p parts) {
			p.dictionary.LinkTable[0] = &profilespb.Link{TraceId: make([]byte, 16), SpanId: make([]byte, 8)}
		}},
		{"zero string", "string table: index 0", func(p parts) { p.dictionary.StringTable[0] = "x" }},
		{"zero attribute", "attribute table: index 0", func(p parts) { p.dictionary.AttributeTable[0].KeyStrindex = 1 }},
		{"zero stack", "stack table: index 0", func(p parts) { p.dictionary.StackTable[0].LocationIndices = []int32{1} }},
		{"no zero mapping", "mapping table: index 0", func(p parts) { p.dictionary.MappingTable = nil }},
		{"no zero string", "string table: index 0", func(p parts) { p.dictionary.StringTable = nil }},
		{"nil zero stack", "stack table: index 0", func(p parts) { p.dictionary.StackTable[0] = nil }},

		{"mapping's file name", "mapping 1: file name: index", func(p parts) { p.mapping().FilenameStrindex = far }},
		{"mapping's attribute", "mapping 1: attribute: index", func(p parts) { p.mapping().AttributeIndices = []int32{far} }},
		{"location's mapping", "location 1: mapping: index", func(p parts) { p.location().MappingIndex = far }},
		{"location's function", "location 1: line 0: function: index", func(p parts) { p.location().Lines[0].FunctionIndex = -1 }},
		{"location's attribute", "location 1: attribute: index", func(p parts) { p.location().AttributeIndices[0] = far }},
		{"function's name", "function 1: name: index", func(p parts) { p.function().NameStrindex = far }},
		{"function's system name", "function 1: system name: index", func(p parts) { p.function().SystemNameStrindex = far }},
		{"function's file", "function 1: file name: index", func(p parts) { p.function().FilenameStrindex = far }},
		{"attribute's key", "key: index", func(p parts) { p.attribute().KeyStrindex = far }},
		{"attribute's unit", "unit: index", func(p parts) { p.attribute().UnitStrindex = far }},
		{"stack's location", "stack 1: location 0: index", func(p parts) { p.stack().LocationIndices[0] = far }},
		{"sample's stack", "stack: index", func(p parts) { p.sample.StackIndex = far }},
		{"sample's link", "link: index", func(p parts) { p.sample.LinkIndex = far }},
		{"sample's attribute", "attribute: index", func(p parts) { p.sample.AttributeIndices[0] = far }},
		{"sample type", "sample type: index", func(p parts) { p.profile.SampleType.TypeStrindex = far }},
		{"period type", "period type: unit: index", func(p parts) { p.profile.PeriodType.UnitStrindex = far }},
		{"profile's attribute", "attribute: index", func(p parts) { p.profile.AttributeIndices = []int32{far} }},

		{"no duplicate mapping", "is a duplicate", func(p parts) { add(&p.dictionary.MappingTable, p.mapping()) }},
		{"no duplicate mapping in another order", "is a duplicate", func(p parts) {
			p.mapping().AttributeIndices = []int32{1, 2}
			same := proto.CloneOf(p.mapping())
			same.AttributeIndices = []int32{2, 1}
			add(&p.dictionary.MappingTable, same)
		}},
		{"no duplicate location", "is a duplicate", func(p parts) { add(&p.dictionary.LocationTable, p.location()) }},
		{"no duplicate function", "is a duplicate", func(p parts) { add(&p.dictionary.FunctionTable, p.function()) }},
		{"no duplicate link", "is a duplicate", func(p parts) { add(&p.dictionary.LinkTable, p.link()) }},
		{"no duplicate string", "is a duplicate", func(p parts) { add(&p.dictionary.StringTable, "cpu") }},
		{"no duplicate attribute", "is a duplicate", func(p parts) { add(&p.dictionary.AttributeTable, p.attribute()) }},
		{"no duplicate stack", "is a duplicate", func(p parts) { add(&p.dictionary.StackTable, p.stack()) }},

		{"no orphaned mapping", "is an orphan", func(p parts) { add(&p.dictionary.MappingTable, &profilespb.Mapping{MemoryLimit: 1}) }},
		{"no orphaned location", "is an orphan", func(p parts) { add(&p.dictionary.LocationTable, &profilespb.Location{Address: 1}) }},
		{"no orphaned function", "is an orphan", func(p parts) { add(&p.dictionary.FunctionTable, &profilespb.Function{NameStrindex: 1, StartLine: far}) }},
		{"no orphaned link", "is an orphan", func(p parts) {
			add(&p.dictionary.LinkTable, &profilespb.Link{TraceId: linkA.traceID[:], SpanId: []byte("12345678")})
		}},
		{"no orphaned string", "is an orphan", func(p parts) { add(&p.dictionary.StringTable, "nobody's") }},
		{"no orphaned attribute", "is an orphan", func(p parts) { add(&p.dictionary.AttributeTable, &profilespb.KeyValueAndUnit{KeyStrindex: 1}) }},
		{"no orphaned stack", "is an orphan", func(p parts) { add(&p.dictionary.StackTable, &profilespb.Stack{LocationIndices: []int32{1}}) }},

		{"strings are UTF-8", "is not UTF-8", func(p parts) { p.dictionary.StringTable[1] = "\xff" }},
		{"values are UTF-8", "is not UTF-8", func(p parts) {
			p.attribute().Value = StringAttribute("", "").GetValue()
			setString(p.attribute().GetValue(), "\xff")
		}},
		{"trace id's length", "trace id", func(p parts) { p.link().TraceId = p.link().GetTraceId()[1:] }},
		{"span id's length", "span id", func(p parts) { p.link().SpanId = nil }},
		{"trace id is valid", "trace id", func(p parts) { p.link().TraceId = make([]byte, 16) }},
		{"span id is valid", "span id", func(p parts) { p.link().SpanId = make([]byte, 8) }},
		{"mapping's range", "is empty", func(p parts) { p.mapping().MemoryLimit = p.mapping().GetMemoryStart() }},
		{"address in mapping", "is not in its mapping", func(p parts) { p.location().Address = 1 }},
		{"line of a function", "is of no function", func(p parts) { p.location().Lines[0].FunctionIndex = 0 }},
		{"line's number", "place", func(p parts) { p.location().Lines[0].Line = -1 }},
		{"function's name is set", "has no name", func(p parts) { p.function().NameStrindex = 0 }},
		{"function's start", "starts in line", func(p parts) { p.function().StartLine = -1 }},
		{"stack does not use location 0", "which stands for none", func(p parts) { p.stack().LocationIndices[0] = 0 }},
		{"sample does not use attribute 0", "which stands for none", func(p parts) { p.sample.AttributeIndices[0] = 0 }},
		{"attribute's key is set", "has no key", func(p parts) { p.attribute().KeyStrindex = 0 }},
		{"attribute's value is not a string index", "refers to string", func(p parts) {
			p.attribute().Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 1}}
		}},
		{"keys are unique", "twice", func(p parts) {
			p.sample.AttributeIndices = append(p.sample.AttributeIndices, p.sample.GetAttributeIndices()[0])
		}},
		{"frame type is known", "profile.frame.type is", func(p parts) {
			setString(p.dictionary.GetAttributeTable()[p.location().GetAttributeIndices()[0]].GetValue(), "gopher")
		}},
		{"build id is set", "build_id", func(p parts) {
			setString(p.dictionary.GetAttributeTable()[p.mapping().GetAttributeIndices()[0]].GetValue(), "")
		}},

		{"resource is set", "resource 0: not set", func(p parts) { p.resource.Resource = nil }},
		{"resource's keys are unique", "twice", func(p parts) {
			p.resource.Resource.Attributes = append(p.resource.Resource.Attributes, p.resource.GetResource().GetAttributes()[0])
		}},
		{"resource's keys are set", `key ""`, func(p parts) { p.resource.Resource.Attributes[0].Key = "" }},
		{"resource's keys are not string indices", "refers to string", func(p parts) { p.resource.Resource.Attributes[0].KeyStrindex = 1 }},
		{"one profile for a resource", "another profile of the same resource", func(p parts) {
			p.data.ResourceProfiles[1].Resource = p.resource.GetResource()
		}},
		{"one scope", "not exactly one profile", func(p parts) {
			p.resource.ScopeProfiles = append(p.resource.ScopeProfiles, &profilespb.ScopeProfiles{})
		}},
		{"one profile", "not exactly one profile", func(p parts) { p.scope.Profiles = nil }},

		{"profile id's length", "profile id", func(p parts) { p.profile.ProfileId = []byte{1} }},
		{"profile id is valid", "profile id", func(p parts) { p.profile.ProfileId = make([]byte, 16) }},
		{"profile id is unique", "is another profile's", func(p parts) {
			p.profile.ProfileId = p.data.GetResourceProfiles()[1].GetScopeProfiles()[0].GetProfiles()[0].GetProfileId()
		}},
		{"payload without a format", "not set together", func(p parts) { p.profile.OriginalPayload = []byte{1} }},
		{"format without a payload", "not set together", func(p parts) { p.profile.OriginalPayloadFormat = "pprof" }},
		{"no payload", "original payload is set", func(p parts) {
			p.profile.OriginalPayloadFormat, p.profile.OriginalPayload = "pprof", []byte{1}
		}},
		{"sample type is samples", "sample type", func(p parts) { p.profile.SampleType = p.profile.GetPeriodType() }},
		{"sample type is set", "sample type", func(p parts) { p.profile.SampleType = nil }},
		{"period type is cpu", "period type", func(p parts) { p.profile.PeriodType = nil }},
		{"period", "period is 0", func(p parts) { p.profile.Period = 0 }},
		{"time", "range", func(p parts) { p.profile.TimeUnixNano = 0 }},
		{"duration", "range", func(p parts) { p.profile.DurationNano = 1 << 63 }},

		{"sample's times", "0 values, 0 times", func(p parts) { p.sample.TimestampsUnixNano = nil }},
		{"times alone", "1 values, ", func(p parts) { p.sample.Values = []int64{1} }},
		{"values instead of times", "1 values, 0 times", func(p parts) { p.sample.Values, p.sample.TimestampsUnixNano = []int64{2}, nil }},
		{"time before the profile", "is not in", func(p parts) { p.sample.TimestampsUnixNano[0] = p.profile.GetTimeUnixNano() - 1 }},
		{"time behind the profile", "is not in", func(p parts) {
			p.sample.TimestampsUnixNano[0] = p.profile.GetTimeUnixNano() + p.profile.GetDurationNano()
		}},
		{"samples are combined", "not combined", func(p parts) {
			same := proto.CloneOf(p.sample)
			same.AttributeIndices[0], same.AttributeIndices[1] = same.GetAttributeIndices()[1], same.GetAttributeIndices()[0]
			p.profile.Samples = append(p.profile.Samples, same)
		}},
	} {
		t.Run(m.rule, func(t *testing.T) {
			data := proto.CloneOf(good)
			m.mutate(partsOf(t, data))
			assert.ErrorContains(t, Check(data), m.want)
			// CheckFormat must not report violations of this package's guarantees.
			problems := CheckFormat(data)
			if promises[m.rule] {
				assert.NotContains(t, fmt.Sprint(problems), m.want)
			} else {
				assert.ErrorContains(t, errors.Join(problems...), m.want)
			}
		})
	}
}

func setString(v *commonpb.AnyValue, s string) {
	v.Value = &commonpb.AnyValue_StringValue{StringValue: s}
}

// TestCheckHostile checks that Check reports incomplete messages and does not crash.
func TestCheckHostile(t *testing.T) {
	require.Error(t, Check(nil))
	require.Error(t, Check(&profilespb.ProfilesData{}))
	require.Error(t, Check(&profilespb.ProfilesData{
		Dictionary:       record(t).GetDictionary(),
		ResourceProfiles: []*profilespb.ResourceProfiles{nil, {ScopeProfiles: []*profilespb.ScopeProfiles{nil, {Profiles: []*profilespb.Profile{nil, {Samples: []*profilespb.Sample{nil}}}}}}},
	}))
}

// FuzzCheck checks that Check does not crash for any message. For messages that Check accepts, it checks that the parts
// from a successful Split are valid and together have all samples.
func FuzzCheck(f *testing.F) {
	for _, data := range []*profilespb.ProfilesData{fixed(f).Data(start.Add(duration)), record(f)} {
		encoded, err := proto.Marshal(data)
		require.NoError(f, err)
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		data := &profilespb.ProfilesData{}
		if proto.Unmarshal(encoded, data) != nil || Check(data) != nil {
			return
		}
		sum := Samples(data)
		if parts, err := collect(data, max(proto.Size(data)-1, 0)); err == nil {
			for _, part := range parts {
				require.NoError(t, Check(part))
				sum -= Samples(part)
			}
			assert.Zero(t, sum)
		}
	})
}
