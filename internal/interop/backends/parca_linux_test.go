// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var parca = server{
	name: "parca", module: "github.com/parca-dev/parca", version: "v0.28.0",
	prepare: func(t *testing.T, source string) {
		t.Helper()
		// Parca embeds its user interface, which the Go module does not contain.
		ui := filepath.Join(source, "ui", "packages", "app", "web", "build")
		require.NoError(t, os.MkdirAll(ui, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(ui, "index.html"), nil, 0o600))
	},
}

// parcaClient queries a Parca for the period of a recording.
type parcaClient struct {
	address string
	of      recording
}

func (c parcaClient) ask(t *testing.T, path string, question url.Values, answer any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.address+"/api/profiles/"+path+"?"+question.Encode(), nil)
	require.NoError(t, err)
	ask(t, request, answer)
}

func (c parcaClient) start() string {
	return c.of.first.Add(-time.Second).UTC().Format(time.RFC3339Nano)
}

func (c parcaClient) end() string { return c.of.last.Add(time.Second).UTC().Format(time.RFC3339Nano) }

// parcaScope is the name of the instrumentation scope, with which Parca's profile types start.
const parcaScope = "github_com_otelctx_otelctx_cmd_otelctx"

// parcaType is the profile type that Parca assigns to a recording of CPU time.
const parcaType = parcaScope + ":samples:count:cpu:nanoseconds:delta"

// total returns the number of samples that have the given value of a label. Parca returns
// nanoseconds, which total converts to samples.
func (c parcaClient) total(t *testing.T, label, value string) int {
	t.Helper()
	return c.find(t, parcaType, fmt.Sprintf("{%s=%q}", label, value)) / int(c.of.period)
}

// find returns the total of all samples of a profile type that match a label selector.
func (c parcaClient) find(t *testing.T, profileType, selector string) int {
	t.Helper()
	var answer struct {
		Total int `json:",string"`
	}
	c.ask(t, "query", url.Values{
		"mode": {"MODE_MERGE"}, "reportType": {"REPORT_TYPE_FLAMEGRAPH_ARROW"},
		"merge.query": {profileType + selector}, "merge.start": {c.start()}, "merge.end": {c.end()},
	}, &answer)
	return answer.Total
}

func (c parcaClient) labelValues(t *testing.T, name string) []string {
	t.Helper()
	var answer struct{ LabelValues []string }
	c.ask(t, "labels/"+name+"/values", url.Values{"start": {c.start()}, "end": {c.end()}}, &answer)
	return answer.LabelValues
}

func startParca(t *testing.T) (address string) {
	t.Helper()
	program := parca.build(t)
	return start(t, 1, "/ready", func(addresses []string) *exec.Cmd {
		dir := t.TempDir()
		config := filepath.Join(dir, "parca.yaml")
		require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "object_storage:\n  bucket:\n    type: FILESYSTEM\n    config:\n      directory: %q\n", dir), 0o600))
		return exec.Command(program, "--config-path="+config, "--http-address="+addresses[0], "--storage-path="+dir, "--debuginfo-cache-dir="+dir)
	})[0]
}

// TestParca checks that Parca finds a recording's samples by service and span name. Parca cannot find
// them by span id, because it drops links.
func TestParca(t *testing.T) {
	needBackends(t)
	address := startParca(t)
	r := record(t, "http://"+address, "")
	c := parcaClient{address, r}
	assert.Equal(t, r.samples, c.total(t, "service_name", serviceName), "by service")
	assert.Zero(t, c.total(t, "service_name", "no such service"))
	for name, samples := range r.byName() {
		assert.Equal(t, samples, c.total(t, "span_name", name), "by span name %s", name)
	}
	assert.Equal(t, r.inSpans(), c.total(t, "endpoint", endpointName), "by endpoint")
	assert.Empty(t, c.labelValues(t, "span_id"))
}

// TestParcaAllocations checks that Parca finds allocations and memory in use by service, endpoint and span name, beside the CPU time of
// the same recording.
func TestParcaAllocations(t *testing.T) {
	needBackends(t)
	address := startParca(t)
	m := recordMemory(t, "http://"+address)
	c := parcaClient{address, m.recording}
	for kind, unit := range units {
		for _, l := range m.questions(kind) {
			assert.Equal(t, m.sums[kind][l], c.find(t, fmt.Sprintf("%s:%s:%s:space:bytes:delta", parcaScope, kind, unit), l.selector()), "%s of %v", kind, l)
		}
	}
	assert.Equal(t, m.sums[cpuSamples][label{}], c.total(t, "service_name", serviceName))
}

// TestParcaPprof checks that Parca accepts pprof files of allocations as docs/backends.md uploads them, and drops the labels of
// their samples.
func TestParcaPprof(t *testing.T) {
	needBackends(t)
	address := startParca(t)
	r := recording{first: time.Now()}
	files, sums := recordPprof(t)
	r.last = time.Now()
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		body := fmt.Sprintf(`{"series": [{"labels": {"labels": [{"name": "__name__", "value": "otelctx"}, {"name": "service_name", "value": "shop"}]},
			"samples": [{"rawProfile": %q}]}]}`, base64.StdEncoding.EncodeToString(content))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/profiles/writeraw", strings.NewReader(body))
		require.NoError(t, err)
		ask(t, request, new(struct{}))
	}
	c := parcaClient{address, r}
	for kind, unit := range units {
		assert.Positive(t, sums[kind][""], kind)
		assert.Equal(t, sums[kind][""], c.find(t, fmt.Sprintf("otelctx:%s:%s:space:bytes:delta", kind, unit), `{service_name="shop"}`), kind)
	}
	assert.Empty(t, c.labelValues(t, "endpoint"))
}

// TestParcaWithIDs checks that Parca also finds samples by span and trace if the samples have the ids
// as attributes.
func TestParcaWithIDs(t *testing.T) {
	needBackends(t)
	address := startParca(t)
	r := record(t, "http://"+address, "", "--id-attributes")
	c := parcaClient{address, r}
	assert.Equal(t, r.samples, c.total(t, "service_name", serviceName), "by service")
	for id, samples := range top(texts(r.bySpan, spanText)) {
		assert.Equal(t, samples, c.total(t, "span_id", id), "by span %s", id)
	}
	for id, samples := range top(texts(r.byTrace(), traceText)) {
		assert.Equal(t, samples, c.total(t, "trace_id", id), "by trace %s", id)
	}
	assert.Zero(t, c.total(t, "span_id", "0123456789abcdef"))
	assert.Equal(t, slices.Sorted(maps.Keys(texts(r.bySpan, spanText))), c.labelValues(t, "span_id"))
	assert.Equal(t, slices.Sorted(maps.Keys(texts(r.byTrace(), traceText))), c.labelValues(t, "trace_id"))
}
