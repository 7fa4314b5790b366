// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/wire"
)

// hostile is a name that would run a script in a page and break the lines of folded stacks if it were not escaped.
const hostile = `</script><img src=x onerror="document.title='harmed'"><!--;&amp; "' \u2028`

// endpoints maps span names in the recording to endpoints.
var endpoints = map[string]string{"GET /cart": "GET /cart", "SELECT": "GET /cart", hostile: hostile}

// requests returns a recording of two processes: a shop, with two span names in three traces, and a hostile
// process.
func requests(t *testing.T) *profilespb.ProfilesData {
	t.Helper()
	start := time.Unix(1700000000, 0)
	b := profile.New(profile.Options{Start: start, Frequency: 100})
	resource := func(service string) profile.Resource {
		r, _ := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", service)}, "")
		return r
	}
	add := func(samples int, service string, trace byte, name string, functions ...string) {
		var stack []*symbols.Location
		var attributes []*commonpb.KeyValue
		for i, f := range functions { // the innermost first
			l := &symbols.Location{Address: uint64(i + 1), Lines: []symbols.Line{{Function: f}}}
			if f == "" {
				l.Lines, l.Mapping = nil, &symbols.Mapping{Start: 1, Limit: 9, Path: "/lib/libc.so.6"}
			}
			stack = append(stack, l)
		}
		if trace != 0 {
			attributes = []*commonpb.KeyValue{profile.StringAttribute(wire.NameKey, name)}
			if endpoint := endpoints[name]; endpoint != "" {
				attributes = append(attributes, profile.StringAttribute(wire.EndpointKey, endpoint))
			}
		}
		times := make([]time.Time, samples)
		for i := range times {
			times[i] = start.Add(time.Duration(i) * 10 * time.Millisecond)
		}
		b.Add(resource(service), stack, [16]byte{trace}, [8]byte{trace}, attributes, times...)
	}
	add(40, "shop", 1, "GET /cart", "crypto/sha256.block", "main.hash", "main.cart")
	add(10, "shop", 2, "GET /cart", "main.cart")
	add(20, "shop", 3, "SELECT", "", "main.query", "main.cart")
	add(20, "shop", 0, "", "runtime.gcBgMarkWorker")
	add(10, hostile, 4, hostile, hostile, "main.main")
	data := b.Data(start.Add(time.Minute))
	require.NoError(t, profile.Check(data))
	return data
}

func TestFolded(t *testing.T) {
	data := requests(t)
	harmless := strings.ReplaceAll(hostile, ";", ":")
	part := strings.Join([]string{
		harmless + ";main.main;" + harmless + " 10",
		"shop;main.cart 10",
		"shop;main.cart;main.hash;crypto/sha256.block 40",
		"shop;main.cart;main.query;[libc.so.6] 20",
		"shop;runtime.gcBgMarkWorker 20\n",
	}, "\n")
	assert.Equal(t, part+part, string(fileOf(t, Folded, data, data)))
}

// documentsOf returns the flame graphs in a page.
func documentsOf(t *testing.T, page []byte) (d []flameDocument) {
	t.Helper()
	_, document, found := strings.Cut(string(page), `<script id="profiles" type="application/json">`)
	require.True(t, found)
	document, _, found = strings.Cut(document, "</script>")
	require.True(t, found)
	require.NoError(t, json.Unmarshal([]byte(document), &d))
	return d
}

// TestFlameGraph checks that a page has one graph with the samples of all parts of a recording.
func TestFlameGraph(t *testing.T) {
	data := requests(t)
	d := documentsOf(t, fileOf(t, HTML, data, data))[0]
	assert.Equal(t, int64(10*time.Millisecond), d.Period)
	assert.False(t, d.Cut)
	assert.Equal(t, []string{"", "others", "GET /cart", "SELECT", hostile}, d.Names)
	assert.Equal(t, []string{"", "others", "GET /cart", hostile}, d.Endpoints)
	got := map[string]int64{}
	for i := 0; i < len(d.Samples); i += 5 {
		stack := ""
		for n := d.Samples[i]; n != 0; n = int64(d.Nodes[2*n]) {
			require.Less(t, int64(d.Nodes[2*n]), n)
			stack = ";" + d.Functions[d.Nodes[2*n+1]] + stack
		}
		name, endpoint, trace := d.Names[d.Samples[i+1]], d.Endpoints[d.Samples[i+2]], d.Traces[d.Samples[i+3]]
		assert.Equal(t, endpoints[name], endpoint)
		got[fmt.Sprintf("%s %s %.2s", stack, name, trace)] = d.Samples[i+4]
	}
	assert.Equal(t, map[string]int64{
		";shop;main.cart;main.hash;crypto/sha256.block GET /cart 01":    80,
		";shop;main.cart GET /cart 02":                                  20,
		";shop;main.cart;main.query;[libc.so.6] SELECT 03":              40,
		";shop;runtime.gcBgMarkWorker  ":                                40,
		";" + hostile + ";main.main;" + hostile + " " + hostile + " 04": 20,
	}, got)

	// An empty recording.
	assert.Equal(t, []int32{0, 0}, documentsOf(t, fileOf(t, HTML))[0].Nodes)
}

// TestFlameGraphIsBounded checks that a flame graph stays within its bounds, that no samples are lost when rare stacks,
// traces and names are merged, and that a frequent name and trace are kept.
func TestFlameGraphIsBounded(t *testing.T) {
	bounds := flameBounds{nodes: 1 << 10, samples: 1 << 12, names: 1 << 4, traces: 1 << 9, text: 1 << 16}
	f, total := newFlame(profile.TypeCPU, bounds), int64(0)
	for i := range 3 * bounds.samples {
		name := fmt.Sprintf("%d-%s", i%5000, strings.Repeat("x", i%100))
		s := &sample{
			dictionary: &profilespb.ProfilesDictionary{
				StringTable:   []string{"", name, "main.often"},
				FunctionTable: []*profilespb.Function{{}, {NameStrindex: 1}, {NameStrindex: 2}},
				LocationTable: []*profilespb.Location{{}, {Lines: []*profilespb.Line{{FunctionIndex: 1}}}, {Lines: []*profilespb.Line{{FunctionIndex: 2}}}},
			},
			locations: []int32{1, 2}, value: 1,
			labels: []label{{key: labelTraceID, text: strconv.Itoa(i % 2000)}, {key: wire.NameKey, text: strconv.Itoa(i % 30)}, {key: wire.EndpointKey, text: strconv.Itoa(i % 40)}},
		}
		if i%4 == 0 {
			s.labels = []label{{key: labelTraceID, text: "often"}, {key: wire.NameKey, text: "often"}}
		}
		f.add(s)
		total += s.value
		require.LessOrEqual(t, len(f.nodes), bounds.nodes)
		require.LessOrEqual(t, f.functions.size, bounds.text)
		require.LessOrEqual(t, len(f.samples), bounds.samples)
		require.LessOrEqual(t, len(f.words[flameTrace].all), bounds.traces)
		require.LessOrEqual(t, len(f.words[flameName].all), bounds.names)
		require.LessOrEqual(t, len(f.words[flameEndpoint].all), bounds.names)
	}
	d := f.document()
	assert.True(t, d.Cut)
	shown, often := int64(0), int64(0)
	for i := 0; i < len(d.Samples); i += 5 {
		shown += d.Samples[i+4]
		if d.Traces[d.Samples[i+3]] == "often" && d.Names[d.Samples[i+1]] == "often" {
			often += d.Samples[i+4]
		}
	}
	assert.Equal(t, total, shown)
	assert.Equal(t, total/4, often)
}
