// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/symbols"
)

// onlyProfile returns the profile of data, which has one.
func onlyProfile(t *testing.T, data *profilespb.ProfilesData) *profilespb.Profile {
	t.Helper()
	require.Len(t, data.GetResourceProfiles(), 1)
	require.Len(t, data.GetResourceProfiles()[0].GetScopeProfiles(), 1)
	require.Len(t, data.GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles(), 1)
	return data.GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles()[0]
}

// TestData reads a small recording field by field.
func TestData(t *testing.T) {
	mapping := &symbols.Mapping{Start: 0x1000, Limit: 0x2000, FileOffset: 0x100, Path: "/bin/shop", GNUBuildID: "ab", GoBuildID: "x/y"}
	leaf := &symbols.Location{Mapping: mapping, Address: 0x1010, Type: symbols.TypeGo, Lines: []symbols.Line{
		{Function: "main.inner", File: "a.go", Line: 3}, {Function: "main.outer", File: "a.go", Line: 9},
	}}
	unknown := &symbols.Location{Mapping: mapping, Address: 0x1020, Type: symbols.TypeNative}
	b := New(Options{Start: start, Frequency: 100})
	resource := mustResource(t, StringAttribute("service.name", "shop"))
	later, earlier := start.Add(2*time.Second), start.Add(time.Second)
	for _, at := range []time.Time{later, earlier} {
		b.Add(resource, Sample{
			Stack: []*symbols.Location{leaf, unknown}, Link: &linkA,
			Attributes: []*commonpb.KeyValue{StringAttribute("thread.name", "t")},
		}, at)
	}
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))

	d, p := data.GetDictionary(), onlyProfile(t, data)
	text := func(i int32) string { return d.GetStringTable()[i] }
	assert.Equal(t, "cpu", text(p.GetSampleType().GetTypeStrindex()))
	assert.Equal(t, "nanoseconds", text(p.GetSampleType().GetUnitStrindex()))
	assert.True(t, proto.Equal(p.GetSampleType(), p.GetPeriodType()))
	assert.EqualValues(t, 10*time.Millisecond, p.GetPeriod())
	assert.EqualValues(t, start.UnixNano(), p.GetTimeUnixNano())
	assert.EqualValues(t, duration, p.GetDurationNano())
	assert.Len(t, p.GetProfileId(), 16)
	assert.Equal(t, "shop", data.GetResourceProfiles()[0].GetResource().GetAttributes()[0].GetValue().GetStringValue())
	assert.Equal(t, "https://opentelemetry.io/schemas/1.43.0", data.GetResourceProfiles()[0].GetSchemaUrl())

	require.Len(t, p.GetSamples(), 1)
	s := p.GetSamples()[0]
	assert.Equal(t, []uint64{uint64(earlier.UnixNano()), uint64(later.UnixNano())}, s.GetTimestampsUnixNano())
	assert.Equal(t, []int64{p.GetPeriod(), p.GetPeriod()}, s.GetValues())
	assert.Equal(t, linkA.TraceID[:], d.GetLinkTable()[s.GetLinkIndex()].GetTraceId())
	assert.Equal(t, linkA.SpanID[:], d.GetLinkTable()[s.GetLinkIndex()].GetSpanId())
	require.Len(t, s.GetAttributeIndices(), 1)
	assert.Equal(t, "thread.name", text(d.GetAttributeTable()[s.GetAttributeIndices()[0]].GetKeyStrindex()))

	stack := d.GetStackTable()[s.GetStackIndex()].GetLocationIndices()
	require.Len(t, stack, 2)
	first, second := d.GetLocationTable()[stack[0]], d.GetLocationTable()[stack[1]]
	assert.EqualValues(t, 0x1010, first.GetAddress())
	require.Len(t, first.GetLines(), 2)
	inner := first.GetLines()[0]
	assert.Equal(t, "main.inner", text(d.GetFunctionTable()[inner.GetFunctionIndex()].GetNameStrindex()))
	assert.Equal(t, "a.go", text(d.GetFunctionTable()[inner.GetFunctionIndex()].GetFilenameStrindex()))
	assert.EqualValues(t, 3, inner.GetLine())
	assert.Equal(t, map[string]string{"profile.frame.type": "go"}, attributes(d, first.GetAttributeIndices()))
	assert.Empty(t, second.GetLines())
	assert.Equal(t, map[string]string{"profile.frame.type": "native"}, attributes(d, second.GetAttributeIndices()))

	m := d.GetMappingTable()[first.GetMappingIndex()]
	assert.Equal(t, []uint64{0x1000, 0x2000, 0x100}, []uint64{m.GetMemoryStart(), m.GetMemoryLimit(), m.GetFileOffset()})
	assert.Equal(t, "/bin/shop", text(m.GetFilenameStrindex()))
	assert.Equal(t, map[string]string{
		"process.executable.build_id.gnu": "ab", "process.executable.build_id.go": "x/y",
	}, attributes(d, m.GetAttributeIndices()))
}

func attributes(d *profilespb.ProfilesDictionary, indices []int32) map[string]string {
	found := map[string]string{}
	for _, i := range indices {
		a := d.GetAttributeTable()[i]
		found[d.GetStringTable()[a.GetKeyStrindex()]] = a.GetValue().GetStringValue()
	}
	return found
}

// TestDeterministic makes one recording twice: they differ in nothing but the ids of
// the profiles.
func TestDeterministic(t *testing.T) {
	a, b := record(t), record(t)
	require.Len(t, a.GetResourceProfiles(), 2)
	for i, r := range a.GetResourceProfiles() {
		x, y := r.GetScopeProfiles()[0].GetProfiles()[0], b.GetResourceProfiles()[i].GetScopeProfiles()[0].GetProfiles()[0]
		assert.NotEqual(t, x.GetProfileId(), y.GetProfileId())
		y.ProfileId = x.GetProfileId()
	}
	assert.True(t, proto.Equal(a, b))
}

// TestForgottenLocations gives the same locations by other pointers, as symbols does
// after it has forgotten some.
func TestForgottenLocations(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	for range 2 {
		addSamples(t, b)
	}
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	once := record(t)
	assert.Len(t, data.GetDictionary().GetLocationTable(), len(once.GetDictionary().GetLocationTable()))
	assert.Equal(t, 2*total(once), total(data))
}

// total returns the sum of all values.
func total(data *profilespb.ProfilesData) int64 {
	var sum int64
	for s := range samplesOf(data) {
		for _, v := range s.GetValues() {
			sum += v
		}
	}
	return sum
}

// TestEmpty has nothing to say.
func TestEmpty(t *testing.T) {
	data := New(Options{Start: start, Frequency: frequency}).Data(start.Add(duration))
	require.NoError(t, Check(data))
	assert.Empty(t, data.GetResourceProfiles())
}

// TestDataAgain adds after a look, which does not change what was seen.
func TestDataAgain(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	addSamples(t, b)
	data := b.Data(start.Add(duration))
	before := proto.Clone(data)
	b.Add(mustResource(t), Sample{Stack: []*symbols.Location{{Address: 77}}, Link: &Link{TraceID: [16]byte{9}, SpanID: [8]byte{9}}}, start)
	addSamples(t, b)
	assert.True(t, proto.Equal(before, data))
	require.NoError(t, Check(b.Data(start.Add(duration))))

	b = New(Options{Start: start, Frequency: frequency})
	for i := range 3 {
		b.Add(mustResource(t), Sample{}, start.Add(time.Duration(i+1)))
	}
	data = b.Data(start.Add(duration))
	before = proto.Clone(data)
	b.Add(mustResource(t), Sample{}, start)
	b.Data(start.Add(duration))
	assert.True(t, proto.Equal(before, data), "times are sorted in a copy")
}

// TestRange has samples from outside the recording's time.
func TestRange(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	b.Add(mustResource(t), Sample{}, start.Add(-time.Second), start.Add(duration))
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	p := onlyProfile(t, data)
	assert.EqualValues(t, start.Add(-time.Second).UnixNano(), p.GetTimeUnixNano())
	assert.EqualValues(t, duration+time.Second+1, p.GetDurationNano())
}

// TestOdd gives what is not valid or says nothing.
func TestOdd(t *testing.T) {
	b := New(Options{Start: start})
	resource, dropped := NewResource([]*commonpb.KeyValue{StringAttribute("k", "1"), StringAttribute("a", ""), StringAttribute("k", "2")}, "\xff")
	assert.Zero(t, dropped)
	same, dropped := NewResource([]*commonpb.KeyValue{StringAttribute("a", ""), {Key: "", Value: &commonpb.AnyValue{}}, StringAttribute("k", "2")}, "\xff")
	assert.Equal(t, 1, dropped)
	assert.Equal(t, resource, same)

	b.Add(resource, Sample{
		Link: &Link{TraceID: [16]byte{1}}, // no span
		Stack: []*symbols.Location{
			{},
			{Address: 1},
			{Address: 1, Lines: []symbols.Line{{Function: "\xff"}, {Function: "\xfe"}}},
			{Mapping: &symbols.Mapping{}, Address: 2},
		},
		Attributes: []*commonpb.KeyValue{{Key: "\xff"}, {}, StringAttribute("\xfe", ""), StringAttribute("k", "1"), StringAttribute("k", "2")},
	}, start)
	data := b.Data(start)
	require.NoError(t, Check(data))
	_, err := proto.Marshal(data)
	require.NoError(t, err)
	s := onlyProfile(t, data).GetSamples()[0]
	assert.Zero(t, s.GetLinkIndex())
	assert.Len(t, data.GetDictionary().GetStackTable()[s.GetStackIndex()].GetLocationIndices(), 3)
	assert.Equal(t, map[string]string{"k": "2", "�": ""}, attributes(data.GetDictionary(), s.GetAttributeIndices()))
}

// TestNoRoom adds more names and attributes than a builder holds.
func TestNoRoom(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	b.dictionary.text = maxText - 1000
	for i := range 100 {
		text := fmt.Sprintf("%0100d", i)
		b.Add(mustResource(t), Sample{
			Stack: []*symbols.Location{{
				Mapping: &symbols.Mapping{Start: 1, Limit: 1000, Path: text, GNUBuildID: text, GoBuildID: text},
				Address: uint64(i + 1), Lines: []symbols.Line{{Function: "a" + text}, {Function: "b" + text, File: text}},
			}},
			Attributes: []*commonpb.KeyValue{StringAttribute(text, text)},
		}, start)
	}
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	assert.Equal(t, 100*b.period, total(data))
	size := 0
	for _, s := range data.GetDictionary().GetStringTable() {
		size += len(s)
	}
	assert.Less(t, size, 1100)
	locations := data.GetDictionary().GetLocationTable()
	assert.Len(t, locations[1].GetLines(), 2)
	assert.Empty(t, locations[100].GetLines())
}

func TestSplit(t *testing.T) {
	data := record(t)
	same, err := Split(data, proto.Size(data))
	require.NoError(t, err)
	assert.Equal(t, []*profilespb.ProfilesData{data}, same)

	var times []uint64
	for s := range samplesOf(data) {
		times = append(times, s.GetTimestampsUnixNano()...)
	}
	for _, limit := range []int{proto.Size(data) - 1, proto.Size(data) * 3 / 4} {
		parts, err := Split(data, limit)
		require.NoError(t, err)
		assert.Greater(t, len(parts), 1)
		var sum int64
		var found []uint64
		ids := map[string]bool{}
		for _, part := range parts {
			require.NoError(t, Check(part))
			assert.LessOrEqual(t, proto.Size(part), limit)
			sum += total(part)
			for s := range samplesOf(part) {
				found = append(found, s.GetTimestampsUnixNano()...)
			}
			for _, r := range part.GetResourceProfiles() {
				id := string(r.GetScopeProfiles()[0].GetProfiles()[0].GetProfileId())
				assert.False(t, ids[id], "profiles that differ have one id")
				ids[id] = true
			}
		}
		assert.Equal(t, total(data), sum)
		slices.Sort(found)
		slices.Sort(times)
		assert.Equal(t, times, found)
	}
	_, err = Split(data, 300)
	require.Error(t, err)

	// One sample with many times, and so one profile in each part.
	b := New(Options{Start: start, Frequency: frequency})
	for i := range 1000 {
		b.Add(mustResource(t), Sample{Link: &linkA}, start.Add(time.Duration(i)))
	}
	parts, err := Split(b.Data(start.Add(duration)), 4000)
	require.NoError(t, err)
	ids := map[string]bool{}
	for _, part := range parts {
		require.NoError(t, Check(part))
		ids[string(onlyProfile(t, part).GetProfileId())] = true
	}
	assert.Greater(t, len(parts), 2)
	assert.Len(t, ids, len(parts))
}
