// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/testing/golden"
)

// fixed returns a builder with a recording that is the same on every machine.
func fixed(t testing.TB) *Builder {
	t.Helper()
	binary := &symbols.Mapping{Start: 0x401000, Limit: 0x500000, FileOffset: 0x1000, Path: "/usr/bin/shop", GoBuildID: "a/b/c/d", HTLHash: "0123456789abcdef0123456789abcdef"}
	libc := &symbols.Mapping{Start: 0x7f0000001000, Limit: 0x7f0000200000, Path: "/lib/libc.so.6", GNUBuildID: "c0ffee", GoBuildID: "x/y"}
	vmlinux := &symbols.Mapping{Start: 0xffffffff81000000, Limit: 0xffffffff82000000, Path: "[kernel.kallsyms]"}
	outer := &symbols.Location{Mapping: binary, Address: 0x401234, Type: symbols.TypeGo, Lines: []symbols.Line{
		{Function: "main.inlined", File: "main.go", Line: 12, Start: 10}, {Function: "main.main", File: "main.go", Line: 3, Start: 1},
	}}
	native := &symbols.Location{Mapping: libc, Address: 0x7f0000001500, Type: symbols.TypeNative, Lines: []symbols.Line{{Function: "qsort"}}}
	unknown := &symbols.Location{Mapping: libc, Address: 0x7f0000001600, Type: symbols.TypeNative}
	kernel := &symbols.Location{Mapping: vmlinux, Address: 0xffffffff81000010, Type: symbols.TypeKernel, Lines: []symbols.Line{{Function: "do_syscall_64"}}}
	b := New(Options{Start: start, Frequency: frequency})
	shop := mustResource(t, StringAttribute("service.name", "shop"), StringAttribute("secret", "x"), IntAttribute("process.pid", 7))
	other := mustResource(t, StringAttribute("service.name", "other"))
	thread := []*commonpb.KeyValue{IntAttribute("thread.id", 9), StringAttribute("thread.name", "worker")}
	b.Add(shop, Sample{Stack: []*symbols.Location{kernel, unknown, outer}}, start)
	for _, seconds := range []int{3, 1, 2, 0} {
		at := start.Add(time.Duration(seconds) * time.Second)
		b.Add(shop, Sample{Stack: []*symbols.Location{native, outer}, Link: &linkA, Attributes: thread}, at)
		b.Add(shop, Sample{Stack: []*symbols.Location{outer}, Link: &linkB}, at)
	}
	b.Add(other, Sample{Stack: []*symbols.Location{outer}}, start)
	return b
}

// TestGolden compares a recording and its conversion with reviewed files.
func TestGolden(t *testing.T) {
	data := fixed(t).Data(start.Add(duration))
	require.NoError(t, Check(data))
	p, err := Pprof(data)
	require.NoError(t, err)
	for _, r := range data.GetResourceProfiles() {
		r.GetScopeProfiles()[0].GetProfiles()[0].ProfileId = nil // a random one
	}
	encoded, err := protojson.Marshal(data)
	require.NoError(t, err)
	var indented bytes.Buffer
	require.NoError(t, json.Indent(&indented, encoded, "", "  "))
	golden.Compare(t, "data.json", indented.String())

	golden.Compare(t, "pprof.golden", p.String())
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	again, err := profile.Parse(&b)
	require.NoError(t, err)
	require.NoError(t, again.CheckValid())
	assert.Equal(t, p.String(), again.String())
	for i, m := range again.Mapping {
		assert.True(t, m.HasFunctions, "mapping %d", i)
	}
	// pprof's main mapping is the program's, whatever was sampled first.
	assert.NotEqual(t, "[kernel.kallsyms]", again.Mapping[0].File)
}

// TestPprofBuildID checks that a mapping without names does not get Go's build id, with which pprof would
// refuse to symbolize by the file.
func TestPprofBuildID(t *testing.T) {
	lines := []symbols.Line{{Function: "main.main"}}
	for _, c := range []struct {
		gnu   string
		lines []symbols.Line
		want  string
	}{{"c0ffee", nil, "c0ffee"}, {"c0ffee", lines, "c0ffee"}, {"", nil, ""}, {"", lines, "a/b"}} {
		b := New(Options{Start: start, Frequency: frequency})
		mapping := &symbols.Mapping{Start: 1, Limit: 1000, Path: "/bin/shop", GNUBuildID: c.gnu, GoBuildID: "a/b"}
		b.Add(mustResource(t), Sample{Stack: []*symbols.Location{{Mapping: mapping, Address: 10, Lines: c.lines}}}, start)
		data := b.Data(start.Add(duration))
		require.NoError(t, Check(data))
		p, err := Pprof(data)
		require.NoError(t, err)
		assert.Equal(t, c.want, p.Mapping[0].BuildID)
	}
}

// TestPprofTool filters by span, trace, service and thread with the Go distribution's tool.
func TestPprofTool(t *testing.T) {
	p, err := Pprof(fixed(t).Data(start.Add(duration)))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "cpu.pb.gz")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, p.Write(f))
	require.NoError(t, f.Close())
	// The go command may have to build the tool, and takes longer to start it than it runs.
	output, err := exec.Command("go", "tool", "-n", "pprof").Output()
	require.NoError(t, err)
	tool := strings.TrimSpace(string(output))
	for _, c := range []struct {
		filter string
		count  string
	}{
		{"", "10"},
		{"-tagfocus=span_id=" + hex.EncodeToString(linkA.SpanID[:]), "4"},
		{"-tagignore=span_id=" + hex.EncodeToString(linkA.SpanID[:]), "6"},
		{"-tagfocus=trace_id=" + hex.EncodeToString(linkA.TraceID[:]), "8"},
		{"-tagfocus=span_id=^" + hex.EncodeToString(linkB.SpanID[:]) + "$", "4"},
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
