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

// These labels of a sample in pprof's format say which span it belongs to, in
// lower-case hex. They are those of the goroutine record, and so of a Go service's own
// profiles.
const (
	labelTraceID = "trace_id"
	labelSpanID  = "span_id"
)

// resourceLabels are the resource attributes that samples get as labels.
var resourceLabels = []string{
	string(semconv.ServiceNameKey),
	string(semconv.ServiceNamespaceKey),
	string(semconv.ServiceInstanceIDKey),
	string(semconv.HostNameKey),
	string(semconv.ContainerIDKey),
	string(semconv.ProcessPIDKey),
	string(semconv.ProcessExecutableNameKey),
}

// Pprof returns all profiles of data, which a [Builder] has made, as one profile in pprof's
// format. Its values are the number of samples and their CPU time, or the wall-clock time alone. The labels
// of a sample are its trace_id and span_id, its attributes, and those attributes of
// its resource that tell services and processes apart. Times of single samples have no
// place in that format.
//
// `go tool pprof -tagfocus='span_id=^ID$'` shows one span. Without ^ and $ the tool
// takes about one id in 700 for a number with a unit, and finds nothing.
func Pprof(data *profilespb.ProfilesData) (*profile.Profile, error) {
	c := converter{
		dictionary: data.GetDictionary(),
		to: &profile.Profile{
			SampleType:        []*profile.ValueType{{Type: typeSamples, Unit: unitCount}, {Type: typeCPU, Unit: unitNanoseconds}},
			DefaultSampleType: typeCPU,
			PeriodType:        &profile.ValueType{Type: typeCPU, Unit: unitNanoseconds},
		},
	}
	if isWall(data) {
		wall := &profile.ValueType{Type: typeWall, Unit: unitNanoseconds}
		c.to.SampleType, c.to.DefaultSampleType, c.to.PeriodType = []*profile.ValueType{wall}, typeWall, wall
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
	if err := c.to.CheckValid(); err != nil {
		return nil, err
	}
	return c.to, nil
}

// isWall reports whether profiles are of wall-clock time.
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

// converter writes to one pprof profile. Entry i of its tables is what index i of the
// dictionary's stands for, nil for 0.
type converter struct {
	dictionary *profilespb.ProfilesDictionary
	to         *profile.Profile
	mappings   []*profile.Mapping
	functions  []*profile.Function
	locations  []*profile.Location
	limit      int64 // end of the last profile
}

// tables converts what samples refer to.
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
	c.to.Mapping, c.to.Function, c.to.Location = slices.Clone(c.mappings[1:]), c.functions[1:], c.locations[1:]
	// pprof takes the first mapping for that of the program, and it may have been the
	// kernel that was sampled first.
	slices.SortStableFunc(c.to.Mapping, func(a, b *profile.Mapping) int { return cmp.Compare(pseudo(a), pseudo(b)) })
}

// pseudo returns 1 for a mapping of no file, such as the kernel's, else 0.
func pseudo(m *profile.Mapping) int {
	if m.File == "" || strings.HasPrefix(m.File, "[") {
		return 1
	}
	return 0
}

// markSymbolized tells pprof what is known of the mapping's code, so that it does not
// look for the file to find that out.
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
	if c.to.Period != 0 && c.to.Period != p.GetPeriod() {
		return fmt.Errorf("profiles with periods of %d and %d ns cannot be one", c.to.Period, p.GetPeriod())
	}
	c.to.Period = p.GetPeriod()
	start, limit := int64(p.GetTimeUnixNano()), int64(p.GetTimeUnixNano()+p.GetDurationNano())
	if c.to.TimeNanos == 0 || start < c.to.TimeNanos {
		c.to.TimeNanos = start
	}
	c.limit = max(c.limit, limit)
	c.to.DurationNanos = c.limit - c.to.TimeNanos
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
		c.to.Sample = append(c.to.Sample, to)
	}
	return nil
}

// sampleValues returns how many samples s stands for, and their CPU time; or its wall-clock time.
func sampleValues(p *profilespb.Profile, s *profilespb.Sample) []int64 {
	if len(s.GetValues()) > 0 {
		return s.GetValues()
	}
	n := int64(len(s.GetTimestampsUnixNano()))
	return []int64{n, n * p.GetPeriod()}
}

func (c *converter) text(index int32) string { return c.dictionary.GetStringTable()[index] }

// buildID returns the GNU build id of m, or else Go's. pprof compares it with the GNU build id
// of the file that it is to name functions by. If they differ it names none. With Go's it
// could name none, so that a mapping without names does not get that one.
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

// label labels s with an attribute: numbers as such, strings as they are, and other
// values as JSON has them. What is empty is no label.
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
