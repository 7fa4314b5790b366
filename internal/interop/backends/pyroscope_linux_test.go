// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"bytes"
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
	"testing"

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

// find returns a flame graph of all samples that match a label selector.
func (c pyroscopeClient) find(t *testing.T, selector string) (g flameGraph) {
	t.Helper()
	c.ask(t, "SelectMergeStacktraces", map[string]any{"profileTypeID": pyroscopeType, "labelSelector": selector, "maxNodes": 1 << 20}, &g)
	return g
}

// total returns the number of samples that match a label selector.
func (c pyroscopeClient) total(t *testing.T, selector string) int {
	t.Helper()
	return int(c.find(t, selector).Flamegraph.Total / c.of.period)
}

// byFunction returns the number of matching samples for each innermost function.
func (c pyroscopeClient) byFunction(t *testing.T, selector string) map[string]int {
	t.Helper()
	g := c.find(t, selector).Flamegraph
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

// span returns the number of samples of a span. It sends the same query as "Profiles for this span"
// in Grafana.
func (c pyroscopeClient) span(t *testing.T, id string) int {
	t.Helper()
	var g flameGraph
	c.ask(t, "SelectMergeSpanProfile", map[string]any{
		"profileTypeID": pyroscopeType, "labelSelector": fmt.Sprintf("{service_name=%q}", serviceName), "spanSelector": []string{id},
	}, &g)
	return int(g.Flamegraph.Total / c.of.period)
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

// TestPyroscopeWithoutLabels checks that Pyroscope finds samples by span even if its configuration
// drops the labels for traces and threads.
func TestPyroscopeWithoutLabels(t *testing.T) {
	needBackends(t)
	address := startPyroscope(t, filepath.Join("testdata", "pyroscope", "config.yaml"))
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
