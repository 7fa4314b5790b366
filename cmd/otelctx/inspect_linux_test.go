// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestInspectGolden(t *testing.T) {
	goPublisher := startPublisher(t, "checkout", "7f1d6bcd")
	foreign := startForeign(t, foreignContext())
	for _, test := range []struct {
		golden string
		pid    int
		args   []string
	}{
		{"go.txt", goPublisher.PID(), nil},
		{"go.json", goPublisher.PID(), []string{"--json"}},
		{"foreign.txt", foreign.PID(), nil},
		{"foreign.json", foreign.PID(), []string{"--json"}},
	} {
		t.Run(test.golden, func(t *testing.T) {
			got := otelctx(t, append([]string{"inspect", strconv.Itoa(test.pid)}, test.args...)...)
			require.Zero(t, got.code, got.stderr)
			assert.Empty(t, got.stderr)
			assertGolden(t, test.golden, normalize(got.stdout))
		})
	}
}

// foreignContext is what a library in another language might publish, and some of
// it had better not: no service.name, duplicate keys, text meant for the terminal.
func foreignContext() *processcontextpb.ProcessContext {
	return &processcontextpb.ProcessContext{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
			{Key: "duplicate", Value: text("first")},
			{Key: "telemetry.sdk.language", Value: text("cpp")},
			{Key: "value.empty", Value: &commonpb.AnyValue{}},
			{Key: "value.missing"},
			{Key: "value.other_signal", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValueStrindex{StringValueStrindex: 3}}},
			{Key: "value.unknown_type", Value: unknownValue()},
			{Key: "", Value: text("an empty key")},
			{Key: "duplicate", Value: text("last")},
			{Key: "\x1b[2Jkey", Value: text("\x1b]0;title\x07 \u009b31m \u202eevil\u202c \u007f \U000e0041 line\r\nbreak")},
			{Key: "text.empty", Value: text("")},
			{Key: "text.like_a_number", Value: text("12")},
			{Key: "text.unicode", Value: text("Grüße, Ελλάδα")},
			{Key: "text.html", Value: text("<a href=\"x\">&</a>")},
		}},
		Attributes: []*commonpb.KeyValue{
			{Key: "double", Value: double(0.1)},
			{Key: "double.nan", Value: double(math.NaN())},
			{Key: "double.infinity", Value: double(math.Inf(1))},
			{Key: "double.negative_infinity", Value: double(math.Inf(-1))},
			{Key: "int.min", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: math.MinInt64}}},
			{Key: "bytes", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: []byte{0, 0xff, 0x1b}}}},
			{Key: "bytes.empty", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{}}},
			{Key: "array.empty", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{}}},
			{Key: "map", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{
				Values: []*commonpb.KeyValue{
					{Key: "z", Value: text("first")}, {Key: "a", Value: double(1)}, {Key: "z", Value: text("last\x1b")},
				},
			}}}},
		},
	}
}

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func double(f float64) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: f}}
}

// unknownValue is of a type that a later version of OTLP may add.
func unknownValue() *commonpb.AnyValue {
	v := &commonpb.AnyValue{}
	v.ProtoReflect().SetUnknown([]byte{0xa2, 0x06, 0x03, 'n', 'e', 'w'}) // Field 100, length-delimited.
	return v
}

func TestInspectEmptyContext(t *testing.T) {
	c := startForeign(t, &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{}})
	pid := strconv.Itoa(c.PID())

	human := otelctx(t, "inspect", pid)
	require.Zero(t, human.code, human.stderr)
	assert.Contains(t, human.stdout, "Resource: none")
	assert.Contains(t, human.stdout, "Extra attributes: none")

	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(otelctx(t, "inspect", pid, "--json").stdout), &got))
	assert.Equal(t, map[string]any{}, got["resource"])
	assert.Equal(t, map[string]any{}, got["attributes"])
	assert.Empty(t, got["schema_url"])
	assert.Contains(t, got, "schema_url")
}

func TestInspectCutsOnlyWhatPeopleRead(t *testing.T) {
	long := strings.Repeat("long ", 10_000)
	c := startForeign(t, &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{
		Attributes: []*commonpb.KeyValue{{Key: "long", Value: text(long + ".")}},
	}})
	pid := strconv.Itoa(c.PID())

	human := otelctx(t, "inspect", pid)
	require.Zero(t, human.code, human.stderr)
	assert.Less(t, len(human.stdout), 1000)
	assert.Contains(t, human.stdout, "… (50001 characters, --json shows all)")

	var got document
	require.NoError(t, json.Unmarshal([]byte(otelctx(t, "inspect", pid, "--json").stdout), &got))
	assert.Equal(t, long+".", got.Resource["long"])
}

// Publishers written to OTEP 4719's first text date contexts by the epoch.
func TestInspectEpochTimestamp(t *testing.T) {
	h := goodHeader(t)
	h.publishedAt = 1_700_000_000_000_000_000
	got := inspect(t, startWriter(t, h, []byte{0x0a, 0}))
	require.Zero(t, got.code, got.stderr)
	assert.Contains(t, got.stdout, "2023-11-14 22:13:20 UTC")

	h.publishedAt = math.MaxUint64
	got = inspect(t, startWriter(t, h, []byte{0x0a, 0}))
	require.Zero(t, got.code, got.stderr)
	assert.Contains(t, got.stdout, "lies ahead")
}

// volatile is what differs between runs and kernels.
var volatile = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`process \d+`), `process PID`},
	{regexp.MustCompile(`"pid": \d+`), `"pid": 1234`},
	{regexp.MustCompile(`Published( +).*`), `Published${1}TIME (AGE ago)`},
	{regexp.MustCompile(`"published_at_ns": \d+`), `"published_at_ns": 5678`},
	{regexp.MustCompile(`Mapping( +)\S*OTEL_CTX.* at 0x[0-9a-f]+`), `Mapping${1}NAME at ADDRESS`},
	{regexp.MustCompile(`"mapping": "\S*OTEL_CTX.*"`), `"mapping": "NAME"`},
}

func normalize(s string) string {
	for _, v := range volatile {
		s = v.pattern.ReplaceAllString(s, v.replacement)
	}
	return s
}

func assertGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}
