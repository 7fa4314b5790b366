// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package collectortest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// link returns the span number n.
func link(n byte) *profile.Link {
	return &profile.Link{TraceID: [16]byte{0xa0, 15: n}, SpanID: [8]byte{0xb0, 7: n}}
}

// record returns a recording with spans, samples without, and stacks with inlined calls.
func record(t *testing.T) *profilespb.ProfilesData {
	t.Helper()
	mapping := &symbols.Mapping{Start: 0x1000, Limit: 0x2000, FileOffset: 0x100, Path: "/bin/shop", GoBuildID: "x/y"}
	stack := []*symbols.Location{
		{Mapping: mapping, Address: 0x1010, Type: symbols.TypeGo, Lines: []symbols.Line{
			{Function: "main.inner", File: "a.go", Line: 3}, {Function: "main.outer", File: "b.go", Line: 9},
		}},
		{Mapping: mapping, Address: 0x1020, Type: symbols.TypeNative},
	}
	start := time.Now()
	b := profile.New(profile.Options{Start: start, Frequency: 99})
	resource, _ := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", "shop")}, "https://opentelemetry.io/schemas/1.43.0")
	const spans = 9
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

// send exports data to a new collector and returns what the collector has got.
func send(t *testing.T, data *profilespb.ProfilesData) []pprofile.Profiles {
	t.Helper()
	c := startCollector(t)
	client, err := export.NewClient(c.endpoint)
	require.NoError(t, err)
	q := export.NewQueue(client)
	q.Add(data)
	require.NoError(t, q.Close())
	assert.Equal(t, export.Delivery{Sent: profile.Samples(data)}, q.Delivery())
	return c.profiles
}

// The collector gets what was recorded: over the network, and out of both kinds of files.
func TestCollectorReadsRecordings(t *testing.T) {
	data := record(t)
	for _, protocol := range []string{"grpc", httpProtobuf} {
		for _, compression := range []string{"none", "gzip"} {
			t.Setenv(protocolVariable, protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
			received := send(t, data)
			require.Len(t, received, 1)
			requireSame(t, data, received[0])
		}
	}
	for name, decoder := range map[string]pprofile.Unmarshaler{
		"a.json": &pprofile.JSONUnmarshaler{DisallowUnknownFields: true},
		"a.otlp": &pprofile.ProtoUnmarshaler{},
	} {
		path := filepath.Join(t.TempDir(), name)
		format, err := export.FormatOf(path)
		require.NoError(t, err)
		f, err := export.Create(t.Context(), path, format, nil)
		require.NoError(t, err)
		require.NoError(t, f.Add(data))
		require.NoError(t, f.Close())
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		decoded, err := decoder.UnmarshalProfiles(content)
		require.NoError(t, err, name)
		requireSame(t, data, decoded)
	}
}

// TestLargeRecording sends what takes several requests to a collector with its usual limit.
func TestLargeRecording(t *testing.T) {
	start := time.Now()
	b := profile.New(profile.Options{Start: start, Frequency: 99})
	resource, _ := profile.NewResource(nil, "")
	const samples = 1_000_000
	for i := range samples {
		b.Add(resource, profile.Sample{Link: link(1)}, start.Add(time.Duration(i)))
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000") // There may be little of the processor to have.
	received := send(t, b.Data(start.Add(time.Second)))
	assert.Greater(t, len(received), 1)
	total := 0
	for _, p := range received {
		total += p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0).TimestampsUnixNano().Len()
	}
	assert.Equal(t, samples, total)
}

// requireSame fails if the collector's model of a recording lacks anything that was sent.
// The model keeps no fields that it does not know. It reads JSON by the names of fields
// and writes protobuf by their numbers, so that a difference in either shows.
func requireSame(t *testing.T, sent *profilespb.ProfilesData, got pprofile.Profiles) {
	t.Helper()
	name, _ := got.ResourceProfiles().At(0).Resource().Attributes().Get("service.name")
	require.Equal(t, "shop", name.Str())
	noLink := got.Dictionary().LinkTable().At(0)
	require.True(t, noLink.TraceID().IsEmpty() && noLink.SpanID().IsEmpty())

	encoded, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(got)
	require.NoError(t, err)
	decoded, want := &profilespb.ProfilesData{}, proto.CloneOf(sent)
	require.NoError(t, proto.Unmarshal(encoded, decoded))
	strings := len(want.GetDictionary().GetStringTable())
	for _, data := range []*profilespb.ProfilesData{want, decoded} {
		// The model writes zero values in its own way, and adds the resource's strings to the table.
		data.ResourceProfiles[0].Resource = nil
		d := data.GetDictionary()
		d.LinkTable, d.AttributeTable, d.StringTable = d.GetLinkTable()[1:], d.GetAttributeTable()[1:], d.GetStringTable()[:strings]
	}
	require.True(t, proto.Equal(want, decoded), "sent %v\ngot %v", want, decoded)
}
