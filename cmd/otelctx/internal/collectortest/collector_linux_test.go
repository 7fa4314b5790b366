// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package collectortest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/symbols"
)

// link returns the span number n.
func link(n byte) *profile.Link {
	return &profile.Link{TraceID: [16]byte{0xa0, 15: n}, SpanID: [8]byte{0xb0, 7: n}}
}

// spans is how many spans the recording has.
const spans = 9

// record returns a recording of this very process: with spans, and samples without.
func record(t *testing.T) *profilespb.ProfilesData {
	t.Helper()
	files := symbols.NewFiles()
	defer files.Close()
	process, err := files.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, process.Close()) }()
	var stack []*symbols.Location
	pcs := make([]uintptr, 32)
	for _, pc := range pcs[:runtime.Callers(1, pcs)] {
		region := process.Table().Find(uint64(pc) - 1)
		region.Attach()
		stack = append(stack, region.Locate(uint64(pc)-1))
	}
	start := time.Now()
	b := profile.New(profile.Options{Start: start, Frequency: 99})
	resource, _ := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", "shop")}, "https://opentelemetry.io/schemas/1.43.0")
	for i := range 5 * (spans + 1) {
		s := profile.Sample{Stack: stack[i%2:]}
		if n := i % (spans + 1); n > 0 {
			s.Link = link(byte(n))
		}
		if i%3 == 0 {
			s.Attributes = []*commonpb.KeyValue{profile.IntAttribute("thread.id", 42)}
		}
		b.Add(resource, s, start.Add(time.Duration(i)*time.Millisecond))
	}
	data := b.Data(start.Add(time.Second))
	require.NoError(t, profile.Check(data))
	return data
}

// TestReceived sends a recording to the collector.
func TestReceived(t *testing.T) {
	data := record(t)
	c := startCollector(t)
	client, err := export.NewClient(c.endpoint)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	warnings, err := client.Export(t.Context(), data)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	require.Len(t, c.profiles, 1)
	requireSame(t, data, c.profiles[0])
}

// TestFiles has the collector's decoders read the files.
func TestFiles(t *testing.T) {
	data := record(t)
	read := func(name string) []byte {
		path := filepath.Join(t.TempDir(), name)
		format, err := export.FormatOf(path)
		require.NoError(t, err)
		f, err := export.Create(path, format, nil)
		require.NoError(t, err)
		require.NoError(t, f.Add(data))
		require.NoError(t, f.Close())
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		return content
	}
	got, err := (&pprofile.JSONUnmarshaler{DisallowUnknownFields: true}).UnmarshalProfiles(read("a.json"))
	require.NoError(t, err)
	requireSame(t, data, got)
	got, err = (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(read("a.otlp"))
	require.NoError(t, err)
	requireSame(t, data, got)
}

// TestLarge sends what takes several requests to a collector with its usual limit.
func TestLarge(t *testing.T) {
	start := time.Now()
	b := profile.New(profile.Options{Start: start, Frequency: 99})
	resource, _ := profile.NewResource(nil, "")
	const samples = 500_000
	for i := range samples {
		b.Add(resource, profile.Sample{Link: link(1)}, start.Add(time.Duration(i)))
	}
	c := startCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000") // There may be little of the processor to have.
	client, err := export.NewClient(c.endpoint)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	_, err = client.Export(t.Context(), b.Data(start.Add(time.Second)))
	require.NoError(t, err)
	assert.Greater(t, len(c.profiles), 1)
	total := 0
	for _, p := range c.profiles {
		total += p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0).Values().Len()
	}
	assert.Equal(t, samples, total)
}

// requireSame compares what was sent with what the collector has, by what it means:
// ids, names and numbers, both ways.
func requireSame(t *testing.T, sent *profilespb.ProfilesData, got pprofile.Profiles) {
	t.Helper()
	require.Equal(t, 1, got.ResourceProfiles().Len())
	r := got.ResourceProfiles().At(0)
	name, _ := r.Resource().Attributes().Get("service.name")
	require.Equal(t, "shop", name.Str())
	require.Equal(t, "https://opentelemetry.io/schemas/1.43.0", r.SchemaUrl())
	require.Equal(t, profile.ScopeName, r.ScopeProfiles().At(0).Scope().Name())
	p, d := r.ScopeProfiles().At(0).Profiles().At(0), got.Dictionary()
	from := sent.GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles()[0]
	require.Equal(t, pprofile.ProfileID(from.GetProfileId()), p.ProfileID())
	require.Equal(t, pcommon.Timestamp(from.GetTimeUnixNano()), p.Time())
	require.Equal(t, from.GetDurationNano(), p.DurationNano())
	require.Equal(t, from.GetPeriod(), p.Period())
	require.Equal(t, "cpu", d.StringTable().At(int(p.SampleType().TypeStrindex())))
	require.Equal(t, "nanoseconds", d.StringTable().At(int(p.PeriodType().UnitStrindex())))

	wanted := map[profile.Link]bool{}
	for n := range byte(spans) {
		wanted[*link(n + 1)] = true
	}
	found := map[profile.Link]bool{}
	require.Equal(t, len(from.GetSamples()), p.Samples().Len())
	for i, s := range p.Samples().All() {
		want := from.GetSamples()[i]
		require.Equal(t, want.GetTimestampsUnixNano(), s.TimestampsUnixNano().AsRaw())
		require.Equal(t, want.GetValues(), s.Values().AsRaw())
		l := d.LinkTable().At(int(s.LinkIndex()))
		if s.LinkIndex() == 0 {
			require.True(t, l.TraceID().IsEmpty())
			require.True(t, l.SpanID().IsEmpty())
		} else {
			found[profile.Link{TraceID: l.TraceID(), SpanID: l.SpanID()}] = true
		}
		require.Equal(t, sentStack(sent.GetDictionary(), want.GetStackIndex()), gotStack(d, s.StackIndex()))
		require.Equal(t, len(want.GetAttributeIndices()), s.AttributeIndices().Len())
		for _, i := range s.AttributeIndices().All() {
			a := d.AttributeTable().At(int(i))
			require.Equal(t, "thread.id", d.StringTable().At(int(a.KeyStrindex())))
			require.EqualValues(t, 42, a.Value().Int())
		}
	}
	require.Equal(t, wanted, found)
}

// frame is a frame by its meaning.
type frame struct {
	address        uint64
	file, kind     string
	function, path []string
	line           []int64
}

func sentStack(d *profilespb.ProfilesDictionary, i int32) []frame {
	var frames []frame
	for _, i := range d.GetStackTable()[i].GetLocationIndices() {
		l := d.GetLocationTable()[i]
		f := frame{address: l.GetAddress(), file: d.GetStringTable()[d.GetMappingTable()[l.GetMappingIndex()].GetFilenameStrindex()]}
		for _, line := range l.GetLines() {
			function := d.GetFunctionTable()[line.GetFunctionIndex()]
			f.function = append(f.function, d.GetStringTable()[function.GetNameStrindex()])
			f.path = append(f.path, d.GetStringTable()[function.GetFilenameStrindex()])
			f.line = append(f.line, line.GetLine())
		}
		for _, i := range l.GetAttributeIndices() {
			f.kind += d.GetAttributeTable()[i].GetValue().GetStringValue()
		}
		frames = append(frames, f)
	}
	return frames
}

func gotStack(d pprofile.ProfilesDictionary, i int32) []frame {
	var frames []frame
	for _, i := range d.StackTable().At(int(i)).LocationIndices().All() {
		l := d.LocationTable().At(int(i))
		f := frame{address: l.Address(), file: d.StringTable().At(int(d.MappingTable().At(int(l.MappingIndex())).FilenameStrindex()))}
		for _, line := range l.Lines().All() {
			function := d.FunctionTable().At(int(line.FunctionIndex()))
			f.function = append(f.function, d.StringTable().At(int(function.NameStrindex())))
			f.path = append(f.path, d.StringTable().At(int(function.FilenameStrindex())))
			f.line = append(f.line, line.Line())
		}
		for _, i := range l.AttributeIndices().All() {
			f.kind += d.AttributeTable().At(int(i)).Value().Str()
		}
		frames = append(frames, f)
	}
	return frames
}
