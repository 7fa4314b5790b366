// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"
)

// Labels of pprof samples with the ids of the span in lower-case hexadecimal. A goroutine record's labels,
// and so a Go service's own profiles, use the same keys.
const (
	labelTraceID = "trace_id"
	labelSpanID  = "span_id"
)

// resourceLabels are the resource attributes that become labels of samples.
var resourceLabels = []string{
	string(semconv.ServiceNameKey),
	string(semconv.ServiceNamespaceKey),
	string(semconv.ServiceInstanceIDKey),
	string(semconv.HostNameKey),
	string(semconv.ContainerIDKey),
	string(semconv.ProcessPIDKey),
	string(semconv.ProcessExecutableNameKey),
}

// Pprof converts all profiles of data, which a [Builder] has made, to one pprof profile. Its values are the
// number of samples and their CPU time, or the wall-clock time alone. The labels of a sample are its
// trace_id and span_id, its attributes, and those resource attributes that distinguish services and
// processes. The format cannot represent timestamps of samples.
//
// `go tool pprof -tagfocus='span_id=^ID$'` selects one span. Without ^ and $ the tool takes about one id in
// 700 for a number with a unit and finds nothing.
func Pprof(data *profilespb.ProfilesData) (*profile.Profile, error) {
	c := converter{
		dictionary: data.GetDictionary(),
		result: &profile.Profile{
			SampleType:        []*profile.ValueType{{Type: typeSamples, Unit: unitCount}, {Type: typeCPU, Unit: unitNanoseconds}},
			DefaultSampleType: typeCPU,
			PeriodType:        &profile.ValueType{Type: typeCPU, Unit: unitNanoseconds},
		},
	}
	if isWall(data) {
		wall := &profile.ValueType{Type: typeWall, Unit: unitNanoseconds}
		c.result.SampleType, c.result.DefaultSampleType, c.result.PeriodType = []*profile.ValueType{wall}, typeWall, wall
	}
	c.tables()
	for _, r := range data.GetResourceProfiles() {
		for _, s := range r.GetScopeProfiles() {
			for _, p := range s.GetProfiles() {
				if err := c.profile(p, r.GetResource().GetAttributes()); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := c.result.CheckValid(); err != nil {
		return nil, err
	}
	return c.result, nil
}

// isWall reports whether the profiles contain wall-clock time.
func isWall(data *profilespb.ProfilesData) bool {
	for _, r := range data.GetResourceProfiles() {
		for _, s := range r.GetScopeProfiles() {
			for _, p := range s.GetProfiles() {
				return data.GetDictionary().GetStringTable()[p.GetSampleType().GetTypeStrindex()] == typeWall
			}
		}
	}
	return false
}

// converter builds a pprof profile. Entry i of its tables corresponds to index i of the dictionary's, nil
// for 0.
type converter struct {
	dictionary *profilespb.ProfilesDictionary
	result     *profile.Profile
	mappings   []*profile.Mapping
	functions  []*profile.Function
	locations  []*profile.Location
	limit      int64 // end of the last profile
}

// tables converts the tables that samples refer to.
func (c *converter) tables() {
	d := c.dictionary
	c.mappings = make([]*profile.Mapping, len(d.GetMappingTable()))
	for i, m := range d.GetMappingTable()[1:] {
		c.mappings[i+1] = &profile.Mapping{
			ID: uint64(i + 1), Start: m.GetMemoryStart(), Limit: m.GetMemoryLimit(), Offset: m.GetFileOffset(),
			File: c.text(m.GetFilenameStrindex()),
		}
	}
	c.functions = make([]*profile.Function, len(d.GetFunctionTable()))
	for i, f := range d.GetFunctionTable()[1:] {
		c.functions[i+1] = &profile.Function{
			ID: uint64(i + 1), Name: c.text(f.GetNameStrindex()), SystemName: c.text(f.GetSystemNameStrindex()),
			Filename: c.text(f.GetFilenameStrindex()), StartLine: f.GetStartLine(),
		}
		if c.functions[i+1].SystemName == "" {
			c.functions[i+1].SystemName = c.functions[i+1].Name
		}
	}
	c.locations = make([]*profile.Location, len(d.GetLocationTable()))
	for i, l := range d.GetLocationTable()[1:] {
		to := &profile.Location{ID: uint64(i + 1), Mapping: c.mappings[l.GetMappingIndex()], Address: l.GetAddress()}
		for _, line := range l.GetLines() {
			to.Line = append(to.Line, profile.Line{Function: c.functions[line.GetFunctionIndex()], Line: line.GetLine()})
		}
		markSymbolized(to)
		c.locations[i+1] = to
	}
	for i, m := range d.GetMappingTable()[1:] {
		c.mappings[i+1].BuildID = c.buildID(m, c.mappings[i+1].HasFunctions)
	}
	c.result.Mapping, c.result.Function, c.result.Location = slices.Clone(c.mappings[1:]), c.functions[1:], c.locations[1:]
	// pprof assumes that the first mapping is the program's, but the kernel may have been sampled first.
	slices.SortStableFunc(c.result.Mapping, func(a, b *profile.Mapping) int { return cmp.Compare(pseudo(a), pseudo(b)) })
}

// pseudo returns 1 for a mapping without a file, such as the kernel's, otherwise 0.
func pseudo(m *profile.Mapping) int {
	if m.File == "" || strings.HasPrefix(m.File, "[") {
		return 1
	}
	return 0
}

// markSymbolized marks the mapping as symbolized, so that pprof does not search for the file.
func markSymbolized(l *profile.Location) {
	if l.Mapping == nil || len(l.Line) == 0 {
		return
	}
	l.Mapping.HasFunctions = true
	l.Mapping.HasInlineFrames = l.Mapping.HasInlineFrames || len(l.Line) > 1
	for _, line := range l.Line {
		l.Mapping.HasFilenames = l.Mapping.HasFilenames || line.Function.Filename != ""
		l.Mapping.HasLineNumbers = l.Mapping.HasLineNumbers || line.Line != 0
	}
}

// profile adds the samples of p, whose resource has these attributes.
func (c *converter) profile(p *profilespb.Profile, resource []*commonpb.KeyValue) error {
	if c.result.Period != 0 && c.result.Period != p.GetPeriod() {
		return fmt.Errorf("profiles with periods of %d and %d ns cannot be one", c.result.Period, p.GetPeriod())
	}
	c.result.Period = p.GetPeriod()
	start, limit := int64(p.GetTimeUnixNano()), int64(p.GetTimeUnixNano()+p.GetDurationNano())
	if c.result.TimeNanos == 0 || start < c.result.TimeNanos {
		c.result.TimeNanos = start
	}
	c.limit = max(c.limit, limit)
	c.result.DurationNanos = c.limit - c.result.TimeNanos
	resource = slices.DeleteFunc(slices.Clone(resource), func(a *commonpb.KeyValue) bool {
		return !slices.Contains(resourceLabels, a.GetKey())
	})
	for _, s := range p.GetSamples() {
		to := &profile.Sample{Value: sampleValues(p, s), Label: map[string][]string{}, NumLabel: map[string][]int64{}}
		for _, i := range c.dictionary.GetStackTable()[s.GetStackIndex()].GetLocationIndices() {
			to.Location = append(to.Location, c.locations[i])
		}
		for _, a := range resource {
			label(to, a.GetKey(), a.GetValue())
		}
		for _, i := range s.GetAttributeIndices() {
			a := c.dictionary.GetAttributeTable()[i]
			label(to, c.text(a.GetKeyStrindex()), a.GetValue())
		}
		if i := s.GetLinkIndex(); i != 0 {
			link := c.dictionary.GetLinkTable()[i]
			to.Label[labelTraceID] = []string{hex.EncodeToString(link.GetTraceId())}
			to.Label[labelSpanID] = []string{hex.EncodeToString(link.GetSpanId())}
		}
		c.result.Sample = append(c.result.Sample, to)
	}
	return nil
}

// sampleValues returns the number of samples in s and their CPU time, or the wall-clock time of s.
func sampleValues(p *profilespb.Profile, s *profilespb.Sample) []int64 {
	if len(s.GetValues()) > 0 {
		return s.GetValues()
	}
	n := int64(len(s.GetTimestampsUnixNano()))
	return []int64{n, n * p.GetPeriod()}
}

func (c *converter) text(index int32) string { return c.dictionary.GetStringTable()[index] }

// buildID returns the GNU build id of m, or else Go's. pprof compares it with the GNU build id of the file
// that it would symbolize with, and symbolizes nothing if they differ. So a mapping without names must not
// get Go's.
func (c *converter) buildID(m *profilespb.Mapping, named bool) string {
	ids := map[string]string{}
	for _, i := range m.GetAttributeIndices() {
		a := c.dictionary.GetAttributeTable()[i]
		ids[c.text(a.GetKeyStrindex())] = a.GetValue().GetStringValue()
	}
	if id := ids[string(semconv.ProcessExecutableBuildIDGNUKey)]; id != "" {
		return id
	}
	if !named {
		return ""
	}
	return ids[string(semconv.ProcessExecutableBuildIDGoKey)]
}

// label adds an attribute to s as a label: numbers and strings as such, other values as JSON. Empty values
// are left out.
func label(s *profile.Sample, key string, value *commonpb.AnyValue) {
	delete(s.Label, key)
	delete(s.NumLabel, key)
	switch v := value.GetValue().(type) {
	case nil:
	case *commonpb.AnyValue_IntValue:
		s.NumLabel[key] = []int64{v.IntValue}
	case *commonpb.AnyValue_StringValue:
		if v.StringValue != "" {
			s.Label[key] = []string{v.StringValue}
		}
	case *commonpb.AnyValue_BoolValue:
		s.Label[key] = []string{strconv.FormatBool(v.BoolValue)}
	case *commonpb.AnyValue_DoubleValue:
		s.Label[key] = []string{strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)}
	default:
		s.Label[key] = []string{protojson.MarshalOptions{}.Format(value)}
	}
}
