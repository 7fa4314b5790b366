// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// fixed returns the reviewed recording in the test data of package profile.
func fixed(t testing.TB) *profilespb.ProfilesData {
	t.Helper()
	content, err := os.ReadFile("../testdata/data.json")
	require.NoError(t, err)
	data := &profilespb.ProfilesData{}
	require.NoError(t, protojson.Unmarshal(content, data))
	return data
}

// TestPprof compares a recording in pprof's format with a reviewed file.
func TestPprof(t *testing.T) {
	p := asPprof(t, fixed(t))
	golden.Compare(t, "pprof.golden", p.String())
	for i, m := range p.Mapping {
		assert.True(t, m.HasFunctions, "mapping %d", i)
	}
	// The first mapping must be the program's, even if the first sample was taken in the kernel.
	assert.NotEqual(t, "[kernel.kallsyms]", p.Mapping[0].File)
}

// TestParts checks that the parts of a recording that was too large for one request, joined in one file, have all of its
// samples, with their names, mappings, spans and attributes.
func TestParts(t *testing.T) {
	data := fixed(t)
	var parts []*profilespb.ProfilesData
	for part, err := range profile.Split(data, proto.Size(data)*3/4) {
		require.NoError(t, err)
		parts = append(parts, part)
	}
	require.Greater(t, len(parts), 1)
	joined := &profilespb.ProfilesData{}
	require.NoError(t, proto.Unmarshal(fileOf(t, OTLP, parts...), joined))
	assert.Equal(t, sorted(t, asPprof(t, data)).String(), sorted(t, asPprof(t, joined)).String())
}

// TestPprofBuildID checks that a mapping without function names does not get Go's build id, because pprof
// would then refuse to symbolize the mapping.
func TestPprofBuildID(t *testing.T) {
	lines := []symbols.Line{{Function: "main.main"}}
	for _, c := range []struct {
		gnu   string
		lines []symbols.Line
		want  string
	}{{"c0ffee", nil, "c0ffee"}, {"c0ffee", lines, "c0ffee"}, {"", nil, ""}, {"", lines, "a/b"}} {
		b := profile.New(profile.Options{Start: time.Unix(1, 0), Frequency: 99})
		mapping := &symbols.Mapping{Start: 1, Limit: 1000, Path: "/bin/shop", GNUBuildID: c.gnu, GoBuildID: "a/b"}
		b.Add(profile.Resource{}, []*symbols.Location{{Mapping: mapping, Address: 10, Lines: c.lines}}, [16]byte{}, [8]byte{}, nil, time.Unix(1, 0))
		data := b.Data(time.Unix(2, 0))
		require.NoError(t, profile.Check(data))
		assert.Equal(t, c.want, asPprof(t, data).Mapping[0].BuildID)
	}
}

// TestPprofTool checks that go tool pprof can filter by span, trace, service and thread.
func TestPprofTool(t *testing.T) {
	testenv.NeedAll(t) // because the go command compiles pprof
	path := filepath.Join(t.TempDir(), "cpu.pb.gz")
	require.NoError(t, write(path, Pprof, fixed(t)))
	// Run the tool directly, because the go command may have to build it and takes longer to start it than the
	// tool takes to run.
	output, err := exec.Command("go", "tool", "-n", "pprof").Output()
	require.NoError(t, err)
	tool := strings.TrimSpace(string(output))
	for _, c := range []struct {
		filter string
		count  string
	}{
		{"", "10"},
		{"-tagfocus=span_id=0b00000000000002", "4"},
		{"-tagignore=span_id=0b00000000000002", "6"},
		{"-tagfocus=trace_id=0a000000000000000000000000000001", "8"},
		{"-tagfocus=span_id=^1234567890abcdef$", "4"}, // Without ^ and $ this id would be parsed as a number with a unit.
		{"-tagfocus=service.name=other", "1"},
		{"-tagfocus=process.pid=7", "9"},
		{"-tagfocus=thread.id=9", "4"},
	} {
		args := []string{"-symbolize=none", "-sample_index=samples", "-top", "-flat"}
		if c.filter != "" {
			args = append(args, c.filter)
		}
		output, err := exec.Command(tool, append(args, path)...).CombinedOutput()
		require.NoError(t, err, "%s", output)
		total := "Showing nodes accounting for " + c.count + ","
		assert.Contains(t, string(output), total, "%s: %s", c.filter, output)
	}
	output, err = exec.Command(tool, "-symbolize=none", "-tags", path).CombinedOutput()
	require.NoError(t, err)
	for _, tag := range []string{"trace_id:", "span_id:", "service.name:", "process.pid:", "thread.id:"} {
		assert.Contains(t, string(output), tag)
	}
	assert.NotContains(t, string(output), "secret", "an attribute that does not distinguish services")
}

// FuzzPprof checks that conversion to pprof's format loses no CPU samples of any message that Check accepts, unless the
// conversion fails because profiles have different periods.
func FuzzPprof(f *testing.F) {
	encoded, err := proto.Marshal(fixed(f))
	require.NoError(f, err)
	f.Add(encoded)
	f.Fuzz(func(t *testing.T, encoded []byte) {
		data := &profilespb.ProfilesData{}
		if proto.Unmarshal(encoded, data) != nil || profile.Check(data) != nil {
			return
		}
		var b bytes.Buffer
		e := newPprofEncoder(&b, []string{profile.TypeCPU, profile.TypeWall})
		if e.add(data) != nil {
			return // the periods differ
		}
		require.NoError(t, e.close())
		sum := int64(0)
		for _, s := range parse(t, b.Bytes()).Sample {
			sum += s.Value[0]
		}
		want := int64(0)
		for _, p := range profile.Each(data) {
			for _, s := range p.GetSamples() {
				want += int64(len(s.GetTimestampsUnixNano()))
			}
		}
		assert.Equal(t, want, sum)
	})
}
