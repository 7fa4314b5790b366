// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Pyroscope is licensed under the AGPL: tests run it as a program and never link it.
var pyroscope = server{
	name: "pyroscope", module: "github.com/grafana/pyroscope", version: "v1.21.1",
	prepare: func(t *testing.T, source string) {
		t.Helper()
		// Pyroscope's go.mod replaces the API module with a local directory that the download does
		// not contain.
		run(t, goCommand(source, "mod", "edit", "-replace", "github.com/grafana/pyroscope/api=github.com/grafana/pyroscope/api@v1.5.0"))
	},
}

// withoutLabels is a configuration that drops the labels for traces and threads, which would exceed the number of series that Pyroscope
// allows.
var withoutLabels = filepath.Join("testdata", "pyroscope", "config.yaml")

// pyroscopeClient queries a Pyroscope for the period of a recording.
type pyroscopeClient struct {
	address string
	of      recording
}

// ask calls a method of Pyroscope's query API and decodes the answer.
func (c pyroscopeClient) ask(t *testing.T, method string, question map[string]any, answer any) {
	t.Helper()
	question["start"], question["end"] = c.of.first.UnixMilli()-1000, c.of.last.UnixMilli()+1000
	body, err := json.Marshal(question)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.address+"/querier.v1.QuerierService/"+method, bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	ask(t, request, answer)
}

// pyroscopeType is the profile type that Pyroscope assigns to the recording.
const pyroscopeType = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

// flameGraph is a flame graph in an answer of Pyroscope.
type flameGraph struct {
	Flamegraph struct {
		Total  int64 `json:",string"`
		Names  []string
		Levels []struct{ Values numbers }
	}
}

// numbers are integers encoded as JSON strings.
type numbers []int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *numbers) UnmarshalJSON(text []byte) error {
	var values []string
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}
	for _, v := range values {
		i, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return err
		}
		*n = append(*n, i)
	}
	return nil
}

// find returns a flame graph of all samples of a profile type that match a label selector.
func (c pyroscopeClient) find(t *testing.T, profileType, selector string) (g flameGraph) {
	t.Helper()
	c.ask(t, "SelectMergeStacktraces", map[string]any{"profileTypeID": profileType, "labelSelector": selector, "maxNodes": 1 << 20}, &g)
	return g
}

// total returns the number of samples that match a label selector.
func (c pyroscopeClient) total(t *testing.T, selector string) int {
	t.Helper()
	return int(c.find(t, pyroscopeType, selector).Flamegraph.Total / c.of.period)
}

// byFunction returns the number of matching samples for each innermost function.
func (c pyroscopeClient) byFunction(t *testing.T, selector string) map[string]int {
	t.Helper()
	g := c.find(t, pyroscopeType, selector).Flamegraph
	samples := map[string]int{}
	for _, level := range g.Levels {
		// A node has four numbers: its offset, its total, its own value, and the index of its name.
		for node := range slices.Chunk(level.Values, 4) {
			if own := node[2]; own > 0 {
				samples[g.Names[node[3]]] += int(own / c.of.period)
			}
		}
	}
	return samples
}

// span returns the number of samples of a span.
func (c pyroscopeClient) span(t *testing.T, id string) int {
	t.Helper()
	return c.findSpan(t, pyroscopeType, id) / int(c.of.period)
}

// findSpan returns the total of a span. It sends the same query as "Profiles for this span" in Grafana.
func (c pyroscopeClient) findSpan(t *testing.T, profileType, id string) int {
	t.Helper()
	var g flameGraph
	c.ask(t, "SelectMergeSpanProfile", map[string]any{
		"profileTypeID": profileType, "labelSelector": fmt.Sprintf("{service_name=%q}", serviceName), "spanSelector": []string{id},
	}, &g)
	return int(g.Flamegraph.Total)
}

// labelValues returns the values of a label in the service's profiles.
func (c pyroscopeClient) labelValues(t *testing.T, name string) []string {
	t.Helper()
	var answer struct{ Names []string }
	c.ask(t, "LabelValues", map[string]any{"name": name, "matchers": []string{fmt.Sprintf("{service_name=%q}", serviceName)}}, &answer)
	return answer.Names
}

// startPyroscope starts Pyroscope with a configuration file and returns its address.
func startPyroscope(t *testing.T, config string) (address string) {
	t.Helper()
	config, err := filepath.Abs(config)
	require.NoError(t, err)
	program := pyroscope.build(t)
	return start(t, 3, "/ready", func(addresses []string) *exec.Cmd {
		dir := t.TempDir()
		port := func(i int) string {
			_, port, err := net.SplitHostPort(addresses[i])
			require.NoError(t, err)
			return port
		}
		arguments := []string{
			"-config.file=" + config,
			"-self-profiling.disable-push", "-usage-stats.enabled=false",
			"-server.http-listen-address=127.0.0.1", "-server.http-listen-port=" + port(0),
			"-server.grpc-listen-address=127.0.0.1", "-server.grpc-listen-port=" + port(1),
			"-memberlist.bind-addr=127.0.0.1", "-memberlist.bind-port=" + port(2), "-memberlist.advertise-addr=127.0.0.1",
			"-pyroscopedb.data-path=" + filepath.Join(dir, "data"),
			"-storage.backend=filesystem", "-storage.filesystem.dir=" + filepath.Join(dir, "bucket"),
		}
		// By default, Pyroscope's components connect to each other through the machine's address.
		for _, part := range []string{
			"compactor.ring.instance-addr", "distributor.ring.instance-addr", "ingester.lifecycler.addr",
			"overrides-exporter.ring.instance-addr", "query-frontend.instance-addr", "query-scheduler.ring.instance-addr",
			"store-gateway.sharding-ring.instance-addr",
		} {
			arguments = append(arguments, "-"+part+"=127.0.0.1")
		}
		cmd := exec.Command(program, arguments...)
		cmd.Dir = dir // Pyroscope also writes to its working directory.
		return cmd
	})[0]
}

// TestPyroscope checks that Pyroscope finds a recording's samples by service, span, span name,
// endpoint and trace.
func TestPyroscope(t *testing.T) {
	needBackends(t)
	address := startPyroscope(t, os.DevNull)
	r := record(t, "http://"+address, "")
	c := pyroscopeClient{address, r}
	service := fmt.Sprintf("{service_name=%q}", serviceName)
	assert.Equal(t, r.samples, c.total(t, service), "by service")
	assert.Equal(t, r.byFunction, c.byFunction(t, service))
	assert.Zero(t, c.total(t, `{service_name="no such service"}`))
	c.checkSpans(t)
	for name, samples := range r.byName() {
		assert.Equal(t, samples, c.total(t, fmt.Sprintf("{span_name=%q}", name)), "by span name %s", name)
	}
	assert.Equal(t, r.inSpans(), c.total(t, fmt.Sprintf("{endpoint=%q}", endpointName)), "by endpoint")
	for id, samples := range top(texts(r.byTrace(), traceText)) {
		assert.Equal(t, samples, c.total(t, fmt.Sprintf("{trace_id=%q}", id)), "by trace %s", id)
	}
	assert.Equal(t, slices.Sorted(maps.Keys(texts(r.byTrace(), traceText))), c.labelValues(t, "trace_id"))
}

// TestPyroscopeAllocations checks that Pyroscope finds allocations and memory in use by service, endpoint, span name and span,
// beside the CPU time of the same recording.
func TestPyroscopeAllocations(t *testing.T) {
	needBackends(t)
	address := startPyroscope(t, withoutLabels)
	m := recordMemory(t, "http://"+address)
	c := pyroscopeClient{address, m.recording}
	var types struct{ ProfileTypes []struct{ ID string } }
	c.ask(t, "ProfileTypes", map[string]any{}, &types)
	found := []string{}
	for _, one := range types.ProfileTypes {
		found = append(found, one.ID)
	}
	want := []string{pyroscopeType}
	for kind, unit := range units {
		profileType := fmt.Sprintf("space:%s:%s:space:bytes", kind, unit)
		want = append(want, profileType)
		for _, l := range m.questions(kind) {
			assert.EqualValues(t, m.sums[kind][l], c.find(t, profileType, l.selector()).Flamegraph.Total, "%s of %v", kind, l)
		}
		for id, value := range top(texts(m.bySpan[kind], spanText)) {
			assert.Equal(t, value, c.findSpan(t, profileType, id), "%s of span %s", kind, id)
		}
	}
	assert.ElementsMatch(t, want, found)
	assert.Equal(t, m.sums[cpuSamples][label{}], c.total(t, fmt.Sprintf("{service_name=%q}", serviceName)))
}

// TestPyroscopePprof checks that Pyroscope finds allocations and memory in use by endpoint in pprof files that docs/backends.md
// uploads.
func TestPyroscopePprof(t *testing.T) {
	needBackends(t)
	address := startPyroscope(t, withoutLabels)
	r := recording{first: time.Now()}
	files, sums := recordPprof(t)
	r.last = time.Now()
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		body := fmt.Sprintf(`{"series": [{"labels": [{"name": "__name__", "value": "memory"}, {"name": "service_name", "value": "shop"}, {"name": "__delta__", "value": "false"}],
			"samples": [{"rawProfile": %q}]}]}`, base64.StdEncoding.EncodeToString(content))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/push.v1.PusherService/Push", strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		ask(t, request, new(struct{}))
	}
	c := pyroscopeClient{address, r}
	for kind, unit := range units {
		for endpoint, want := range sums[kind] {
			selector := `{service_name="shop"}`
			if endpoint != "" {
				selector = fmt.Sprintf("{endpoint=%q}", endpoint)
			}
			assert.EqualValues(t, want, c.find(t, fmt.Sprintf("memory:%s:%s:space:bytes", kind, unit), selector).Flamegraph.Total, "%s of %s", kind, endpoint)
		}
	}
}

// TestPyroscopeWithoutLabels checks that Pyroscope finds samples by span even if its configuration
// drops the labels for traces and threads.
func TestPyroscopeWithoutLabels(t *testing.T) {
	needBackends(t)
	address := startPyroscope(t, withoutLabels)
	r := record(t, "http://"+address, "")
	c := pyroscopeClient{address, r}
	assert.Equal(t, r.samples, c.total(t, fmt.Sprintf("{service_name=%q}", serviceName)), "by service")
	c.checkSpans(t)
	for _, name := range []string{"trace_id", "thread_id", "thread_name", "cpu_logical_number"} {
		assert.Empty(t, c.labelValues(t, name), name)
	}
	assert.NotEmpty(t, c.labelValues(t, "process_pid"))
}

// checkSpans checks the answers for the spans with the most samples, and for a span that does not
// exist.
func (c pyroscopeClient) checkSpans(t *testing.T) {
	t.Helper()
	for id, samples := range top(texts(c.of.bySpan, func(s span) string { return c.of.exported[s].profileID })) {
		assert.Equal(t, samples, c.span(t, id), "by span %s", id)
	}
	assert.Zero(t, c.span(t, "0123456789abcdef"))
}
