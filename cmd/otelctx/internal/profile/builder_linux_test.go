// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

func onlyProfile(t *testing.T, data *profilespb.ProfilesData) *profilespb.Profile {
	t.Helper()
	require.Len(t, data.GetResourceProfiles(), 1)
	require.Len(t, data.GetResourceProfiles()[0].GetScopeProfiles(), 1)
	require.Len(t, data.GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles(), 1)
	return data.GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles()[0]
}

func attributes(d *profilespb.ProfilesDictionary, indices []int32) map[string]string {
	found := map[string]string{}
	for _, i := range indices {
		a := d.GetAttributeTable()[i]
		found[d.GetStringTable()[a.GetKeyStrindex()]] = a.GetValue().GetStringValue()
	}
	return found
}

// TestEvictedLocations checks that equal locations get one entry even if their pointers differ. Package
// symbols returns a new pointer if it has evicted the location in the meantime.
func TestEvictedLocations(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	for range 2 {
		addSamples(t, b)
	}
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	once := record(t)
	assert.Len(t, data.GetDictionary().GetLocationTable(), len(once.GetDictionary().GetLocationTable()))
	assert.Equal(t, 2*Samples(once), Samples(data))
}

// TestEmpty checks that a recording without samples yields valid data without profiles.
func TestEmpty(t *testing.T) {
	data := New(Options{Start: start, Frequency: frequency}).Data(start.Add(duration))
	require.NoError(t, Check(data))
	assert.Empty(t, data.GetResourceProfiles())
}

// TestDataIsSnapshot checks that samples added after a call of Data do not change the returned data.
func TestDataIsSnapshot(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	addSamples(t, b)
	data := b.Data(start.Add(duration))
	before := proto.Clone(data)
	b.Add(mustResource(t), []*symbols.Location{{Address: 77}}, [16]byte{9}, [8]byte{9}, nil, start)
	addSamples(t, b)
	assert.True(t, proto.Equal(before, data))
	require.NoError(t, Check(b.Data(start.Add(duration))))

	b = New(Options{Start: start, Frequency: frequency})
	for i := range 3 {
		b.Add(mustResource(t), nil, [16]byte{}, [8]byte{}, nil, start.Add(time.Duration(i+1)))
	}
	data = b.Data(start.Add(duration))
	before = proto.Clone(data)
	b.Add(mustResource(t), nil, [16]byte{}, [8]byte{}, nil, start)
	b.Data(start.Add(duration))
	assert.True(t, proto.Equal(before, data), "times are sorted in a copy")
}

// TestEstimatesAddUp checks that the objects and bytes of a stack's samples add up to those of the stack, although each sample
// is of another span and has a fraction of an object.
func TestEstimatesAddUp(t *testing.T) {
	for _, each := range []float64{1, 1.45, 1.5, 2.54} {
		b := New(Options{Start: start, Allocations: true})
		const samples, size = 1000, 100.3
		for i := range samples {
			for stack := range uint64(2) {
				b.AddAllocated(mustResource(t), []*symbols.Location{{Address: stack + 1}}, [16]byte{1}, [8]byte{byte(i), byte(i >> 8), 1}, nil, each, each*size)
			}
		}
		data := b.Data(start.Add(duration))
		require.NoError(t, Check(data))
		sums := map[string]map[int32]int64{}
		for _, p := range Each(data) {
			require.Len(t, p.GetSamples(), 2*samples)
			sum := map[int32]int64{}
			for _, s := range p.GetSamples() {
				require.Positive(t, s.GetValues()[0])
				sum[s.GetStackIndex()] += s.GetValues()[0]
			}
			sums[KindOf(data.GetDictionary(), p)] = sum
		}
		for kind, want := range map[string]float64{TypeAllocObjects: samples * each, TypeAllocSpace: samples * each * size} {
			require.Len(t, sums[kind], 2)
			for _, got := range sums[kind] {
				assert.InDelta(t, want, got, 0.51, "%s of %v objects", kind, each)
			}
		}
	}
}

// TestRange checks that the range of a profile includes a sample from before the start of the recording and a sample
// from its end, although a range does not contain its own end.
func TestRange(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	b.Add(mustResource(t), nil, [16]byte{}, [8]byte{}, nil, start.Add(-time.Second), start.Add(duration))
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	p := onlyProfile(t, data)
	assert.EqualValues(t, start.Add(-time.Second).UnixNano(), p.GetTimeUnixNano())
	assert.EqualValues(t, duration+time.Second+1, p.GetDurationNano())
}

// TestOrder checks that resources are sorted by their number of samples, the largest first.
func TestOrder(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	for n, service := range []string{"few", "most", "many"} {
		r, _ := NewResource([]*commonpb.KeyValue{StringAttribute("service.name", service)}, "")
		for i := range []int{1, 9, 5}[n] {
			b.Add(r, nil, [16]byte{}, [8]byte{}, nil, start.Add(time.Duration(i)))
		}
	}
	var got []string
	for _, r := range b.Data(start.Add(duration)).GetResourceProfiles() {
		got = append(got, r.GetResource().GetAttributes()[0].GetValue().GetStringValue())
	}
	assert.Equal(t, []string{"most", "many", "few"}, got)
}

// TestInvalidInput checks that profiles are valid even if samples have invalid or empty parts.
func TestInvalidInput(t *testing.T) {
	b := New(Options{Start: start})
	resource, dropped := NewResource([]*commonpb.KeyValue{StringAttribute("k", "1"), StringAttribute("a", ""), StringAttribute("k", "2")}, "\xff")
	assert.Zero(t, dropped)
	same, dropped := NewResource([]*commonpb.KeyValue{StringAttribute("a", ""), StringAttribute("k", "2")}, "\xff")
	assert.Zero(t, dropped)
	assert.Equal(t, resource, same)

	stack := []*symbols.Location{
		{},
		{Address: 1},
		{Address: 1, Lines: []symbols.Line{{Function: "\xff"}, {Function: "\xfe"}}},
		{Mapping: &symbols.Mapping{}, Address: 2},
	}
	b.Add(resource, stack, [16]byte{1}, [8]byte{}, // no span
		[]*commonpb.KeyValue{{Key: "\xff"}, {}, StringAttribute("\xfe", ""), StringAttribute("k", "1"), StringAttribute("k", "2")}, start)
	data := b.Data(start)
	require.NoError(t, Check(data))
	_, err := proto.Marshal(data)
	require.NoError(t, err)
	s := onlyProfile(t, data).GetSamples()[0]
	assert.Zero(t, s.GetLinkIndex())
	assert.Len(t, data.GetDictionary().GetStackTable()[s.GetStackIndex()].GetLocationIndices(), 3)
	assert.Equal(t, map[string]string{"k": "2", "�": ""}, attributes(data.GetDictionary(), s.GetAttributeIndices()))
}

// TestFullDictionary checks that a builder whose text has reached maxText drops new names and attributes but
// no samples.
func TestFullDictionary(t *testing.T) {
	b := New(Options{Start: start, Frequency: frequency})
	b.dictionary.text = maxText - 1000
	for i := range 100 {
		text := fmt.Sprintf("%0100d", i)
		b.Add(mustResource(t), []*symbols.Location{{
			Mapping: &symbols.Mapping{Start: 1, Limit: 1000, Path: text, GNUBuildID: text, GoBuildID: text},
			Address: uint64(i + 1), Lines: []symbols.Line{{Function: "a" + text}, {Function: "b" + text, File: text}},
		}}, [16]byte{}, [8]byte{}, []*commonpb.KeyValue{StringAttribute(text, text)}, start)
	}
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	assert.EqualValues(t, 100, Samples(data))
	size := 0
	for _, s := range data.GetDictionary().GetStringTable() {
		size += len(s)
	}
	assert.Less(t, size, 1100)
	locations := data.GetDictionary().GetLocationTable()
	assert.Len(t, locations[1].GetLines(), 2)
	assert.Empty(t, locations[100].GetLines())
}

// collect returns all parts and errors that Split yields.
func collect(data *profilespb.ProfilesData, limit int) (parts []*profilespb.ProfilesData, err error) {
	for part, failed := range Split(data, limit) {
		if failed == nil {
			parts = append(parts, part)
		}
		err = errors.Join(err, failed)
	}
	return parts, err
}

func samplesOf(data *profilespb.ProfilesData) (all []*profilespb.Sample) {
	for _, p := range Each(data) {
		all = append(all, p.GetSamples()...)
	}
	return all
}

func TestSplit(t *testing.T) {
	data := record(t)
	same, err := collect(data, proto.Size(data))
	require.NoError(t, err)
	assert.Equal(t, []*profilespb.ProfilesData{data}, same)

	var times []uint64
	for _, s := range samplesOf(data) {
		times = append(times, s.GetTimestampsUnixNano()...)
	}
	for _, limit := range []int{proto.Size(data) - 1, proto.Size(data) * 3 / 4} {
		parts, err := collect(data, limit)
		require.NoError(t, err)
		assert.Greater(t, len(parts), 1)
		sum := uint64(0)
		var found []uint64
		ids := map[string]bool{}
		for _, part := range parts {
			require.NoError(t, Check(part))
			assert.LessOrEqual(t, proto.Size(part), limit)
			sum += Samples(part)
			for _, s := range samplesOf(part) {
				found = append(found, s.GetTimestampsUnixNano()...)
			}
			for _, r := range part.GetResourceProfiles() {
				id := string(r.GetScopeProfiles()[0].GetProfiles()[0].GetProfileId())
				assert.False(t, ids[id], "profiles that differ have one id")
				ids[id] = true
			}
		}
		assert.Equal(t, Samples(data), sum)
		slices.Sort(found)
		slices.Sort(times)
		assert.Equal(t, times, found)
	}
	_, err = collect(data, 300)
	require.Error(t, err)

	// One sample with many timestamps is divided. Each part contains a profile with some of them.
	b := New(Options{Start: start, Frequency: frequency})
	for i := range 1000 {
		b.Add(mustResource(t), nil, linkA.traceID, linkA.spanID, nil, start.Add(time.Duration(i)))
	}
	parts, err := collect(b.Data(start.Add(duration)), 4000)
	require.NoError(t, err)
	ids := map[string]bool{}
	for _, part := range parts {
		require.NoError(t, Check(part))
		ids[string(onlyProfile(t, part).GetProfileId())] = true
	}
	assert.Greater(t, len(parts), 2)
	assert.Len(t, ids, len(parts))

	// Samples of wall-clock time have no timestamps, so each goes to one part as a whole.
	b = New(Options{Start: start, Frequency: frequency, Wall: true})
	for i := range 1000 {
		b.AddTime(mustResource(t), nil, [16]byte{1}, [8]byte{byte(i), byte(i >> 8), 1}, nil, time.Duration(i+1))
	}
	parts, err = collect(b.Data(start.Add(duration)), 10_000)
	require.NoError(t, err)
	assert.Greater(t, len(parts), 2)
	sum := int64(0)
	for _, part := range parts {
		require.NoError(t, Check(part))
		for _, s := range samplesOf(part) {
			sum += s.GetValues()[0]
		}
	}
	assert.EqualValues(t, 1000*1001/2, sum)
}

// TestAttributeKeysAreShared checks that a long attribute key counts towards maxText only once, no matter how
// many values it has.
func TestAttributeKeysAreShared(t *testing.T) {
	d := newDictionary()
	const values = 1000
	key := strings.Repeat("k", maxForeignText)
	for i := range values {
		require.EqualValues(t, i+1, d.attribute(IntAttribute(key, int64(i))))
		require.EqualValues(t, i+1, d.attribute(IntAttribute(key, int64(i))))
	}
	assert.Less(t, d.text, maxForeignText+100*values)
}

// TestManyEntries checks that indices are right even if a table has more entries than are remembered.
func TestManyEntries(t *testing.T) {
	var all table
	for i := range 3 * maxKnownEntries {
		index, isNew := all.place([]byte(strconv.Itoa(i)))
		require.True(t, isNew)
		require.EqualValues(t, i, index)
		again, isNew := all.place([]byte(strconv.Itoa(i)))
		require.False(t, isNew)
		require.Equal(t, index, again)
		require.LessOrEqual(t, len(all.known), maxKnownEntries)
	}
	index, isNew := all.place(nil)
	assert.False(t, isNew, "the zero value is unique, even after forgetting entries")
	assert.Zero(t, index)
}
