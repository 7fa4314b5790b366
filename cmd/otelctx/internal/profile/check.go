// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// Check returns an error that lists the problems in data, up to a limit. It checks the rules of the format (MUST
// and SHOULD in profiles.proto v0.4.0) and what this package guarantees in addition for data made by a
// [Builder]. data may come from an untrusted source.
//
// The main rules of the format: Entry 0 of each table is the zero value, and all indices are valid. Tables have
// neither duplicates nor unused entries. Attribute keys are unique, profile ids are unique, and ids have the right
// length. Addresses are within their mapping. The timestamps of a sample are within the profile's range, and no two
// samples of a profile have the same identity. original_payload and original_payload_format are set together or not
// at all. Check covers all rules of profcheck, the checker of OpenTelemetry's profiling group.
//
// The guarantees: Link 0 is the empty message, and all other links have nonzero ids. Each resource has one
// profile of each kind: CPU time, wall-clock time, and allocated objects and bytes. Samples of CPU time are counts with
// a period; they have timestamps and no values. Other samples have one value and no timestamps. Frames in unknown
// functions have no lines, and frame types are those of package symbols. Attribute values, and the keys of resource
// attributes, are not indices of the string table. original_payload is unset.
func Check(data *profilespb.ProfilesData) error {
	return errors.Join(check(data, true)...)
}

// CheckFormat returns an error for each violation of the format, up to a limit. Unlike [Check], it checks only
// the rules of profiles.proto v0.4.0 (MUST and SHOULD), which apply to every writer. Each error names the
// position and the rule. data may come from an untrusted source.
func CheckFormat(data *profilespb.ProfilesData) []error { return check(data, false) }

func check(data *profilespb.ProfilesData, promises bool) []error {
	c := checker{dictionary: data.GetDictionary(), promises: promises}
	c.tables()
	if len(c.errs) == 0 { // indices are valid
		c.profiles(data.GetResourceProfiles())
		c.orphans()
	}
	return c.errs
}

// CheckFile is [CheckFormat] for a file of OTLP profiles whose name ends with ext: .otlp (protobuf), .json, or
// .jsonl with one message per line. It returns an error if the file cannot be decoded, or has more than 2,097,152
// messages and strings.
func CheckFile(ext string, content []byte) ([]error, error) {
	decode := unmarshalJSON
	switch ext {
	case ".otlp":
		decode = func(b []byte, data *profilespb.ProfilesData) error { return proto.Unmarshal(b, data) }
		if tooMany(content, (*profilespb.ProfilesData)(nil).ProtoReflect().Descriptor()) {
			return nil, errTooManyMessages
		}
	case ".json", ".jsonl":
		if tooManyJSON(content) {
			return nil, errTooManyMessages
		}
	default:
		return nil, fmt.Errorf("%q is none of .otlp, .json and .jsonl", ext)
	}
	messages := func(yield func([]byte) bool) { yield(content) }
	lines := ext == ".jsonl"
	if lines {
		messages = bytes.SplitSeq(bytes.TrimSuffix(content, []byte("\n")), []byte("\n"))
	}
	var problems []error
	line := 0
	for m := range messages {
		line++
		data := &profilespb.ProfilesData{}
		if err := decode(m, data); err != nil {
			return nil, fmt.Errorf("message %d: %w", line-1, err)
		}
		for _, err := range CheckFormat(data) {
			if lines {
				err = fmt.Errorf("line %d: %w", line, err)
			}
			if problems = append(problems, err); len(problems) == maxProblems {
				return problems, nil
			}
		}
	}
	return problems, nil
}

// unmarshalJSON decodes OTLP's JSON encoding, in which, unlike in protobuf's JSON encoding, ids are hexadecimal
// instead of base64. Package protojson decodes their digits as base64, so unmarshalJSON encodes the result as base64
// to get the digits back.
func unmarshalJSON(b []byte, data *profilespb.ProfilesData) error {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, data); err != nil {
		return err
	}
	var failed error
	fromHex := func(id []byte) []byte {
		out, err := hex.DecodeString(base64.StdEncoding.EncodeToString(id))
		failed = errors.Join(failed, err)
		return out
	}
	for _, l := range data.GetDictionary().GetLinkTable() {
		l.TraceId, l.SpanId = fromHex(l.GetTraceId()), fromHex(l.GetSpanId())
	}
	for _, r := range data.GetResourceProfiles() {
		for _, s := range r.GetScopeProfiles() {
			for _, p := range s.GetProfiles() {
				p.ProfileId = fromHex(p.GetProfileId())
			}
		}
	}
	return failed
}

// maxProblems is the maximum number of problems that Check, CheckFormat and CheckFile return.
const maxProblems = 100

// checker checks one message and collects the problems.
type checker struct {
	dictionary *profilespb.ProfilesDictionary
	used       usage
	// promises is set to check this package's additional guarantees, too.
	promises bool
	errs     []error
}

func (c *checker) problem(format string, args ...any) {
	if len(c.errs) < maxProblems {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

// full reports whether no further problems are recorded, so that there is no reason to look for them.
func (c *checker) full() bool { return len(c.errs) == maxProblems }

// promise records a violation of this package's additional guarantees, if these are checked.
func (c *checker) promise(format string, args ...any) {
	if c.promises {
		c.problem(format, args...)
	}
}

// inside reports whether index is valid in a table with len(used) entries. If it is not, inside records a
// problem.
func (c *checker) inside(used []bool, index int32, what string, args ...any) bool {
	if index < 0 || int(index) >= len(used) {
		if !c.full() {
			c.problem("%s: index %d of %d", fmt.Sprintf(what, args...), index, len(used))
		}
		return false
	}
	return true
}

// tables checks each table of the dictionary: Entry 0 must be the zero value, indices must be valid, and there
// must be no duplicates. Entries that differ only in the order of their attributes count as duplicates.
func (c *checker) tables() {
	d := c.dictionary
	if d == nil {
		c.problem("no dictionary")
		return
	}
	c.used = newUsage(d)
	checkTable(c, "mapping", d.GetMappingTable(), zeroMessage, func(m *profilespb.Mapping) string {
		m = proto.CloneOf(m)
		slices.Sort(m.GetAttributeIndices())
		return encode(m)
	}, c.mapping)
	checkTable(c, "location", d.GetLocationTable(), zeroMessage, func(l *profilespb.Location) string {
		l = proto.CloneOf(l)
		slices.Sort(l.GetAttributeIndices())
		return encode(l)
	}, c.location)
	checkTable(c, "function", d.GetFunctionTable(), zeroMessage, encode, c.function)
	checkTable(c, "link", d.GetLinkTable(), c.zeroLink, encode, c.link)
	checkTable(c, "string", d.GetStringTable(), func(s string) bool { return s == "" }, func(s string) string { return s }, c.string)
	checkTable(c, "attribute", d.GetAttributeTable(), zeroMessage, encode, c.attribute)
	checkTable(c, "stack", d.GetStackTable(), zeroMessage, encode, c.stack)
}

// checkTable checks that entry 0 of table is zero and that no two entries have the same key. It calls check
// for each entry except entry 0.
func checkTable[T any](c *checker, name string, table []T, zero func(T) bool, key func(T) string, check func(name string, entry T)) {
	if len(table) == 0 || !zero(table[0]) {
		c.problem("%s table: index 0 is not the zero value", name)
	}
	if len(table) > math.MaxInt32 {
		c.problem("%s table: %d entries", name, len(table))
	}
	seen := make(map[string]int, len(table))
	for i, entry := range table {
		if c.full() {
			return
		}
		if other, ok := seen[key(entry)]; ok {
			c.problem("%s %d is a duplicate of %d", name, i, other)
		}
		seen[key(entry)] = i
		if i > 0 {
			check(fmt.Sprintf("%s %d", name, i), entry)
		}
	}
}

// zeroLink reports whether l may be link 0. The format allows an empty message, or ids of zeros. If the checker
// also checks this package's promises, only the empty message is allowed.
func (c *checker) zeroLink(l *profilespb.Link) bool {
	return zeroMessage(l) || !c.promises && len(l.GetTraceId()) == 16 && len(l.GetSpanId()) == 8 && allZero(l.GetTraceId()) && allZero(l.GetSpanId())
}

func zeroMessage[T proto.Message](m T) bool { return m.ProtoReflect().IsValid() && proto.Size(m) == 0 }

func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

// encode returns a string that is the same for equal messages. For a message with invalid UTF-8, which cannot be
// encoded, the string is meaningless; other checks report the text.
func encode[T proto.Message](m T) string {
	b, _ := marshal.Marshal(m)
	return string(b)
}

// The following methods check one entry of a table. They follow the indices in the entry, but not the indices in
// the entries that it refers to, because these may be invalid.

func (c *checker) string(name, s string) {
	if !utf8.ValidString(s) {
		c.problem("%s is not UTF-8: %q", name, s)
	}
}

func (c *checker) mapping(name string, m *profilespb.Mapping) {
	if m.GetMemoryStart() >= m.GetMemoryLimit() {
		c.problem("%s: range %#x-%#x is empty", name, m.GetMemoryStart(), m.GetMemoryLimit())
	}
	c.inside(c.used.strings, m.GetFilenameStrindex(), "%s: file name", name)
	c.attributeIndices(name, m.GetAttributeIndices())
}

func (c *checker) location(name string, l *profilespb.Location) {
	if c.inside(c.used.mappings, l.GetMappingIndex(), "%s: mapping", name) && l.GetMappingIndex() != 0 {
		m := c.dictionary.GetMappingTable()[l.GetMappingIndex()]
		if l.GetAddress() < m.GetMemoryStart() || l.GetAddress() > m.GetMemoryLimit() {
			c.problem("%s: address %#x is not in its mapping %#x-%#x", name, l.GetAddress(), m.GetMemoryStart(), m.GetMemoryLimit())
		}
	}
	for i, line := range l.GetLines() {
		if c.inside(c.used.functions, line.GetFunctionIndex(), "%s: line %d: function", name, i) && line.GetFunctionIndex() == 0 {
			c.promise("%s: line %d is of no function", name, i)
		}
		if line.GetLine() < 0 || line.GetColumn() < 0 {
			c.problem("%s: line %d: place %d:%d", name, i, line.GetLine(), line.GetColumn())
		}
	}
	c.attributeIndices(name, l.GetAttributeIndices())
}

func (c *checker) function(name string, f *profilespb.Function) {
	if c.inside(c.used.strings, f.GetNameStrindex(), "%s: name", name) && f.GetNameStrindex() == 0 {
		c.promise("%s has no name", name)
	}
	c.inside(c.used.strings, f.GetSystemNameStrindex(), "%s: system name", name)
	c.inside(c.used.strings, f.GetFilenameStrindex(), "%s: file name", name)
	if f.GetStartLine() < 0 {
		c.problem("%s: starts in line %d", name, f.GetStartLine())
	}
}

func (c *checker) link(name string, l *profilespb.Link) {
	const traceIDSize, spanIDSize = 16, 8
	if len(l.GetTraceId()) != traceIDSize || c.promises && allZero(l.GetTraceId()) {
		c.problem("%s: trace id %x is not valid", name, l.GetTraceId())
	}
	if len(l.GetSpanId()) != spanIDSize || c.promises && allZero(l.GetSpanId()) {
		c.problem("%s: span id %x is not valid", name, l.GetSpanId())
	}
}

func (c *checker) attribute(name string, a *profilespb.KeyValueAndUnit) {
	if c.inside(c.used.strings, a.GetKeyStrindex(), "%s: key", name) && a.GetKeyStrindex() == 0 {
		c.problem("%s has no key", name)
	}
	c.inside(c.used.strings, a.GetUnitStrindex(), "%s: unit", name)
	c.value(name, a.GetValue())
}

func (c *checker) stack(name string, s *profilespb.Stack) {
	for i, l := range s.GetLocationIndices() {
		if l > 0 && int(l) < len(c.used.locations) {
			continue // A file can have millions of them.
		}
		if c.inside(c.used.locations, l, "%s: location %d", name, i) && l == 0 {
			c.problem("%s: location %d is index 0, which stands for none", name, i)
		}
	}
}

// value checks an attribute's value, which may be unset.
func (c *checker) value(name string, v *commonpb.AnyValue) {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValueStrindex:
		c.promise("%s: value refers to string %d", name, v.StringValueStrindex)
	case *commonpb.AnyValue_StringValue:
		if !utf8.ValidString(v.StringValue) {
			c.problem("%s: value is not UTF-8: %q", name, v.StringValue)
		}
	case *commonpb.AnyValue_ArrayValue:
		for _, element := range v.ArrayValue.GetValues() {
			c.value(name, element)
		}
	case *commonpb.AnyValue_KvlistValue:
		c.keyValues(name, v.KvlistValue.GetValues())
	}
}

// keyValues checks attributes that are not entries of the attribute table: those of resources and scopes, and
// nested ones.
func (c *checker) keyValues(name string, attributes []*commonpb.KeyValue) {
	seen := map[string]bool{}
	for _, a := range attributes {
		key := a.GetKey()
		if a.GetKeyStrindex() != 0 {
			c.promise("%s: key %q refers to string %d", name, key, a.GetKeyStrindex())
		}
		if key == "" || !utf8.ValidString(key) {
			c.problem("%s: key %q", name, key)
		}
		if seen[key] {
			c.problem("%s: key %q twice", name, key)
		}
		seen[key] = true
		c.value(fmt.Sprintf("%s: %q", name, key), a.GetValue())
	}
}

// attributeIndices checks indices of the attribute table.
func (c *checker) attributeIndices(name string, indices []int32) {
	seen := map[int32]bool{}
	for _, i := range indices {
		if !c.inside(c.used.attributes, i, "%s: attribute", name) {
			continue
		}
		if i == 0 {
			c.problem("%s: attribute index 0, which stands for none", name)
		}
		a := c.dictionary.GetAttributeTable()[i]
		key := a.GetKeyStrindex()
		if seen[key] {
			c.problem("%s: attribute key %d twice", name, key)
		}
		seen[key] = true
		if key > 0 && int(key) < len(c.used.strings) {
			c.wellKnown(name, c.dictionary.GetStringTable()[key], a.GetValue())
		}
	}
}

// wellKnown checks the value of an attribute whose key stands for a frame type or a build id.
func (c *checker) wellKnown(name, key string, v *commonpb.AnyValue) {
	switch key {
	case string(semconv.ProfileFrameTypeKey):
		if !slices.Contains(frameTypes, v.GetStringValue()) {
			c.promise("%s: %s is %v", name, key, v)
		}
	case string(semconv.ProcessExecutableBuildIDGNUKey), string(semconv.ProcessExecutableBuildIDGoKey),
		string(semconv.ProcessExecutableBuildIDHtlhashKey):
		if v.GetStringValue() == "" {
			c.problem("%s: %s is %v", name, key, v)
		}
	}
}

// frameTypes lists the values of profile.frame.type that package symbols produces.
var frameTypes = []string{symbols.TypeGo, symbols.TypeNative, symbols.TypeKernel}

// profiles checks everything outside the dictionary.
func (c *checker) profiles(resources []*profilespb.ResourceProfiles) {
	seen, ids := map[string]bool{}, map[string]bool{}
	for i, r := range resources {
		name := fmt.Sprintf("resource %d", i)
		if r.GetResource() == nil {
			c.problem("%s: not set", name)
		}
		c.keyValues(name, r.GetResource().GetAttributes())
		key := r.GetSchemaUrl() + "\x00" + encode(&resourcepb.Resource{Attributes: unique(r.GetResource().GetAttributes())})
		if len(r.GetScopeProfiles()) != 1 || len(r.GetScopeProfiles()[0].GetProfiles()) != 1 {
			c.promise("%s: not exactly one profile", name)
		}
		for _, s := range r.GetScopeProfiles() {
			c.keyValues(name+": scope", s.GetScope().GetAttributes())
			for _, p := range s.GetProfiles() {
				kind := c.profile(name, p)
				if seen[kind+key] {
					c.promise("%s: there is another profile of the same resource", name)
				}
				seen[kind+key] = true
				if ids[string(p.GetProfileId())] {
					c.problem("%s: profile id %x is another profile's", name, p.GetProfileId())
				}
				ids[string(p.GetProfileId())] = true
			}
		}
	}
}

// valueTypes lists the sample type and the period type of the kinds of profiles, each with its unit.
var valueTypes = map[string][4]string{
	TypeCPU:          {TypeSamples, UnitCount, TypeCPU, UnitNanoseconds},
	TypeWall:         {TypeWall, UnitNanoseconds, TypeWall, UnitNanoseconds},
	TypeAllocObjects: {TypeAllocObjects, UnitCount, TypeSpace, UnitBytes},
	TypeAllocSpace:   {TypeAllocSpace, UnitBytes, TypeSpace, UnitBytes},
	TypeInuseObjects: {TypeInuseObjects, UnitCount, TypeSpace, UnitBytes},
	TypeInuseSpace:   {TypeInuseSpace, UnitBytes, TypeSpace, UnitBytes},
}

// profile checks a profile, and returns what it measures: see [KindOf].
func (c *checker) profile(name string, p *profilespb.Profile) (kind string) {
	if len(p.GetProfileId()) != profileIDSize || allZero(p.GetProfileId()) {
		c.problem("%s: profile id %x is not valid", name, p.GetProfileId())
	}
	if (p.GetOriginalPayloadFormat() == "") != (len(p.GetOriginalPayload()) == 0) {
		c.problem("%s: original payload and its format are not set together", name)
	}
	if p.GetOriginalPayloadFormat() != "" || len(p.GetOriginalPayload()) != 0 {
		c.promise("%s: original payload is set", name)
	}
	kind = TypeCPU
	if t := p.GetSampleType().GetTypeStrindex(); t >= 0 && int(t) < len(c.used.strings) {
		kind = KindOf(c.dictionary, p)
	}
	types := valueTypes[kind]
	c.valueType(name+": sample type", p.GetSampleType(), types[0], types[1])
	c.valueType(name+": period type", p.GetPeriodType(), types[2], types[3])
	if p.GetPeriod() <= 0 {
		c.problem("%s: period is %d", name, p.GetPeriod())
	}
	c.attributeIndices(name, p.GetAttributeIndices())
	c.used.useAttributes(p.GetAttributeIndices())
	if p.GetTimeUnixNano() == 0 || p.GetTimeUnixNano() > math.MaxInt64 || p.GetDurationNano() > math.MaxInt64-p.GetTimeUnixNano() {
		c.problem("%s: range %d+%d ns", name, p.GetTimeUnixNano(), p.GetDurationNano())
	}
	identities := map[string]int{}
	for i, s := range p.GetSamples() {
		name := fmt.Sprintf("%s: sample %d", name, i)
		c.sample(name, p, s)
		if values := len(s.GetValues()); kind != TypeCPU && values != 1 || kind == TypeCPU && values > 0 {
			c.promise("%s: %d values, %d times in a profile of %s", name, values, len(s.GetTimestampsUnixNano()), kind)
		}
		key := identity(s)
		if other, ok := identities[key]; ok {
			c.problem("%s: not combined with sample %d, which has the same stack, attributes and link", name, other)
		}
		identities[key] = i
	}
	return kind
}

func (c *checker) valueType(name string, t *profilespb.ValueType, kind, unit string) {
	if !c.inside(c.used.strings, t.GetTypeStrindex(), "%s", name) || !c.inside(c.used.strings, t.GetUnitStrindex(), "%s: unit", name) {
		return
	}
	c.used.valueType(t)
	table := c.dictionary.GetStringTable()
	if table[t.GetTypeStrindex()] != kind || table[t.GetUnitStrindex()] != unit {
		c.promise("%s: %q in %q, not %q in %q", name, table[t.GetTypeStrindex()], table[t.GetUnitStrindex()], kind, unit)
	}
}

func (c *checker) sample(name string, p *profilespb.Profile, s *profilespb.Sample) {
	values, times := s.GetValues(), s.GetTimestampsUnixNano()
	if len(values) != len(times) && len(values) > 0 && len(times) > 0 || len(values)+len(times) == 0 {
		c.problem("%s: %d values, %d times", name, len(values), len(times))
	}
	for _, t := range times {
		if t < p.GetTimeUnixNano() || t-p.GetTimeUnixNano() >= p.GetDurationNano() {
			c.problem("%s: time %d is not in %d+%d", name, t, p.GetTimeUnixNano(), p.GetDurationNano())
		}
	}
	if c.inside(c.used.links, s.GetLinkIndex(), "%s: link", name) {
		c.used.links[s.GetLinkIndex()] = true
	}
	c.attributeIndices(name, s.GetAttributeIndices())
	c.used.useAttributes(s.GetAttributeIndices())
	if c.inside(c.used.stacks, s.GetStackIndex(), "%s: stack", name) {
		c.used.stack(s.GetStackIndex())
	}
}

// identity returns the identity of a sample as defined by the format: stack_index,
// set_of(attribute_indices), link_index.
func identity(s *profilespb.Sample) string {
	key := appendIndex(appendIndex(nil, s.GetStackIndex()), s.GetLinkIndex())
	indices := slices.Clone(s.GetAttributeIndices())
	slices.Sort(indices)
	for _, i := range slices.Compact(indices) {
		key = appendIndex(key, i)
	}
	return string(key)
}

// orphans checks that all entries of the dictionary are used, except entry 0 of each table.
func (c *checker) orphans() {
	for _, table := range []struct {
		name string
		used []bool
	}{
		{"mapping", c.used.mappings},
		{"location", c.used.locations},
		{"function", c.used.functions},
		{"link", c.used.links},
		{"string", c.used.strings},
		{"attribute", c.used.attributes},
		{"stack", c.used.stacks},
	} {
		for i, used := range table.used {
			if i > 0 && !used && !c.full() {
				c.problem("%s %d is an orphan", table.name, i)
			}
		}
	}
}
