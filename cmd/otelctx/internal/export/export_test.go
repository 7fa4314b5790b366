// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/symbols"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recording returns a recording of n stacks, with two samples of each.
func recording(t *testing.T, n int) *profilespb.ProfilesData {
	t.Helper()
	start := time.Unix(1700000000, 0)
	b := profile.New(profile.Options{Start: start, Frequency: 99})
	resource, err := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", "shop")}, "")
	require.NoError(t, err)
	mapping := &symbols.Mapping{Start: 0x1000, Limit: 0x100000, Path: "/bin/shop"}
	for i := range 2 * n {
		b.Add(resource, profile.Sample{
			Time:  start.Add(time.Duration(i) * time.Millisecond),
			Stack: []*symbols.Location{{Mapping: mapping, Address: 0x1000 + uint64(i%n), Lines: []symbols.Line{{Function: "main.main"}}}},
			Link:  &profile.Link{TraceID: [16]byte{1, 15: 2}, SpanID: [8]byte{3, 7: 4}},
		})
	}
	data := b.Data(start.Add(time.Minute))
	require.NoError(t, profile.Check(data))
	return data
}

func TestWriteFile(t *testing.T) {
	data := recording(t, 3)
	dir := t.TempDir()
	write := func(name string) []byte {
		path := filepath.Join(dir, name)
		require.NoError(t, WriteFile(path, data))
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		return content
	}
	for _, name := range []string{"a.pb.gz", "a.pprof", "A.PPROF", "a.pprof.gz"} {
		p, err := pprof.Parse(bytes.NewReader(write(name)))
		require.NoError(t, err)
		require.Len(t, p.Sample, 3)
		assert.Equal(t, []string{"0300000000000004"}, p.Sample[0].Label["span_id"])
	}
	for _, name := range []string{"a.otlp", "a.pb", "a"} {
		decoded := &profilespb.ProfilesData{}
		require.NoError(t, proto.Unmarshal(write(name), decoded))
		assert.True(t, proto.Equal(data, decoded))
	}
	assert.True(t, json.Valid(write("a.json")))

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 8, "nothing temporary is left")
}

// TestWriteFileFails leaves a file that was there before.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.pprof")
	require.NoError(t, os.WriteFile(path, []byte("before"), 0o600))
	broken := recording(t, 1)
	broken.Dictionary = nil
	require.Error(t, WriteFile(path, broken))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "before", string(content))
	require.Error(t, WriteFile(filepath.Join(path, "no directory"), recording(t, 1)))

	require.NoError(t, WriteFile(path, recording(t, 1)))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm(), "the file's owner has decided")
}

// TestWriteFileElsewhere writes through a link, and to what is no file.
func TestWriteFileElsewhere(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target.json"), filepath.Join(dir, "link.json")
	require.NoError(t, os.WriteFile(target, nil, 0o600))
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, WriteFile(link, recording(t, 1)))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink)
	content, err := os.ReadFile(target)
	require.NoError(t, err)
	assert.True(t, json.Valid(content))

	require.NoError(t, WriteFile(os.DevNull, recording(t, 1)))
	info, err = os.Stat(os.DevNull)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeDevice)
}

// TestMarshalJSON looks at what OTLP has otherwise than protobuf.
func TestMarshalJSON(t *testing.T) {
	data := recording(t, 1)
	encoded, err := MarshalJSON(data)
	require.NoError(t, err)
	again, err := MarshalJSON(data)
	require.NoError(t, err)
	assert.Equal(t, encoded, again)
	var document struct {
		Dictionary struct {
			LinkTable []struct{ TraceID, SpanID string }
		}
		ResourceProfiles []struct {
			ScopeProfiles []struct {
				Profiles []struct {
					ProfileID    string
					TimeUnixNano string
					Samples      []struct {
						LinkIndex          int
						TimestampsUnixNano []string
					}
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal(encoded, &document))
	require.Len(t, document.Dictionary.LinkTable, 2)
	assert.Equal(t, "01000000000000000000000000000002", document.Dictionary.LinkTable[1].TraceID)
	assert.Equal(t, "0300000000000004", document.Dictionary.LinkTable[1].SpanID)
	p := document.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	assert.Regexp(t, "^[0-9a-f]{32}$", p.ProfileID)
	assert.Equal(t, "1700000000000000000", p.TimeUnixNano)
	assert.Equal(t, []string{"1700000000000000000", "1700000000001000000"}, p.Samples[0].TimestampsUnixNano)
	assert.Equal(t, 1, p.Samples[0].LinkIndex)
}
